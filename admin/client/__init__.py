"""HTTP API client for commands that query a running sidecar."""
