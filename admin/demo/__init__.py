"""``sluice demo``: clients in front of an embedded broker. Not for production."""
