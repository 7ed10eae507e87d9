"""Helpers shared by the data path: buffers, admission, threads, rate-limited logging."""
