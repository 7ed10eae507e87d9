"""What a data path tells operators: counters, snapshots, explanations."""
