"""RocketMQ's wire format. Headers are read exactly as the broker reads them."""
