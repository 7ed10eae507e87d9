"""``make demo-rocketmq``: Sluice in front of a real RocketMQ while one topic is flooded. Not for production."""
