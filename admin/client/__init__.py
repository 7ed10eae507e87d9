"""Client of the HTTP API, for commands that query a running sidecar."""
