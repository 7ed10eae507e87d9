"""Limiters (token buckets with a breaker) and their warm-up, fair, adaptive and fleet variants."""
