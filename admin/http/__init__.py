"""The admin address: HTTP connections, who may ask, and the API."""
