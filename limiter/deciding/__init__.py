"""Checks requests against all limits that apply to them, and explains the decisions."""
