"""Counts the outcomes of requests, second by second."""
