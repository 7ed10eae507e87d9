"""Rules, their patterns and schedules, and rule sets."""
