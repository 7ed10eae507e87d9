"""Counts what became of requests, second by second."""
