"""What the demos with real brokers share: a broker of its own, flooded, with Sluice in front of it or without."""
