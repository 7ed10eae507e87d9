"""Asks all limits of a request together, and explains the answer."""
