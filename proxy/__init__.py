"""What a byte touches: listeners, connections, protocols, the handler pipeline and its executor."""
