"""Helpers used throughout the data path."""
