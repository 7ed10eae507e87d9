"""Reads and checks the configuration."""
