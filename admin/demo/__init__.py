"""``sluice demo``: an embedded broker, the sidecar, and clients that show what it does. Not for production."""
