"""Helpers that the rest of the admin side shares."""
