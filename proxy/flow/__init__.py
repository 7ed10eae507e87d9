"""Back pressure: credit between stages, bottleneck diagnosis, memory and disk alarms."""
