"""The admin address: HTTP connections, access, and the API."""
