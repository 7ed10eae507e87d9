"""The data path of one process. Implements ``proxy.control``."""
