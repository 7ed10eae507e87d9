"""A data path that runs in a single process. Implements ``proxy.control``."""
