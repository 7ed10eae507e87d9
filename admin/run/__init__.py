"""Composes a sidecar from its settings, runs it, and reads its configuration again."""
