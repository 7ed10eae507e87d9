"""The only I/O of the data path."""
