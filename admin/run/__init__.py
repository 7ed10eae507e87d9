"""Composes, runs and reloads a sidecar."""
