"""Serves the admin address: the HTTP server, access control, and the API."""
