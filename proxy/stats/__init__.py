"""What operators see of a data path: counters, snapshots and explanations."""
