"""Sockets, listeners and connections: the only I/O of the data path."""
