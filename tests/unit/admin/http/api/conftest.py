from served_api import served

__all__ = ["served"]
