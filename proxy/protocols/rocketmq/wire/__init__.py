"""The protocol's bytes as values: codes, commands, frames, and headers as the broker reads them."""
