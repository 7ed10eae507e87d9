"""Counts request outcomes, in total and for each second."""
