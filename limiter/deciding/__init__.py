"""Checks all limits that apply to a request together, and explains the result."""
