"""AMQP 0.9.1 for tests: frames to send and to read, and a driver for one session."""
