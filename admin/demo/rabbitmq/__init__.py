"""``make demo-rabbitmq``: Sluice in front of a real RabbitMQ while one queue is flooded. Not for production."""
