"""Holds requests while they wait for permits, in order and for a limited time."""
