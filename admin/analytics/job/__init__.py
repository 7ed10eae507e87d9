"""Runs a report: once over the logs there are, or following them."""
