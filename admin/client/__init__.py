"""The client of the HTTP API, behind the commands that ask a running sidecar."""
