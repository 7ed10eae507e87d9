"""Keeps requests that wait for permits, in order and for a limited time."""
