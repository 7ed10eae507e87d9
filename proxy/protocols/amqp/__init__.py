"""Code shared by AMQP 0.9.1 and AMQP 1.0."""
