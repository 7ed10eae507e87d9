"""HTTP API client for the commands that query a running sidecar."""
