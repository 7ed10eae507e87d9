"""Decides on batches of requests."""
