"""Requests that may wait for their permits: in which order, and for how long."""
