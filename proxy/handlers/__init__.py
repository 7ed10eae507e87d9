"""The handlers that come with Sluice; each is one file, registered by name as an entry point."""
