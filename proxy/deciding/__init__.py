"""Runs batches of requests through the handlers."""
