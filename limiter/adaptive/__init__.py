"""Finds how much a listener's broker can take, from how it answers."""
