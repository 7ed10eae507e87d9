"""Network I/O of the data path."""
