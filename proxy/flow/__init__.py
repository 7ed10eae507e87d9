"""Back pressure: credit between stages, bottleneck diagnosis, and alarms for memory and disk."""
