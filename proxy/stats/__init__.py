"""Counters, snapshots and explanations of a data path, for operators."""
