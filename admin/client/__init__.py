"""The client of the HTTP API, for the commands that query a running sidecar."""
