"""The data path."""
