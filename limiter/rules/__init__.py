"""What a rule says, which names it stands for, and the set of rules in force."""
