"""Helpers for the whole data path."""
