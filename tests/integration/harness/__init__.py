"""Real processes for the integration tests: name server, broker, sluice, and client programs."""
