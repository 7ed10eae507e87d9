"""AMQP 1.0 for tests, independent of the code under test: a codec, and two peers that check each other."""
