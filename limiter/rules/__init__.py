"""Rules, the patterns they match, their schedules, and the active rule set."""
