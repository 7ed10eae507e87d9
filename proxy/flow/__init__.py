"""Back pressure: credit between stages, the bottleneck among them, and alarms of memory and disk."""
