"""Operational data of a data path: counters, snapshots, explanations."""
