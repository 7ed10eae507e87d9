"""The configuration: its keys, their sources, and error messages."""
