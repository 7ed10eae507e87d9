"""RocketMQ's encoding: codes, commands, frames, and headers as the broker reads them."""
