"""Checks all limits of a request together, and explains the result."""
