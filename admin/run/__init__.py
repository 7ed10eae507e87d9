"""Builds, runs and reloads a sidecar."""
