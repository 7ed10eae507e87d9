"""Bytes of the protocol as values: codes, whole commands, frames, and headers as the broker reads them."""
