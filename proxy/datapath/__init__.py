"""The data path in one process, which implements ``proxy.control``."""
