"""The configuration: its keys, where they come from, what is wrong with them."""
