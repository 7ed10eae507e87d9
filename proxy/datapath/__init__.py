"""The data path of one process, behind ``proxy.control``."""
