"""Rules: what each says, which names it matches, and the set that is active."""
