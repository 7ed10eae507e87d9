"""Finds the rate that a listener's broker can handle, from its responses."""
