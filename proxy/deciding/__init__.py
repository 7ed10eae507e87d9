"""Batches of requests, the handlers that decide on them, and the executor that runs handlers."""
