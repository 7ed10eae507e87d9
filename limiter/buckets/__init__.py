"""What one limit is made of: token bucket and breaker, warm-up, fair shares."""
