"""AMQP 1.0 for tests, made apart from the code under test: a codec, and two peers that hold each other to the rules."""
