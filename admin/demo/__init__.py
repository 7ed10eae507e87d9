"""``sluice demo``: clients that show what Sluice does, in front of an embedded broker. Not for production."""
