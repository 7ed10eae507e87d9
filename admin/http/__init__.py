"""The HTTP server for the admin address."""
