"""The data path: listeners, connections, protocols, the handler pipeline and its executor."""
