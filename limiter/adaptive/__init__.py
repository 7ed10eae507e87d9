"""Estimates the rate that a listener's broker can handle."""
