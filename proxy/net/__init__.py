"""Network I/O for the data path."""
