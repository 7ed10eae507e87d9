"""The parts of a limit: token bucket and breaker, warm-up, fair shares."""
