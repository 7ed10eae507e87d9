"""Which limiters a request meets: found once, kept in bounded memory, and how near each is to its limit."""
