"""The HTTP API under ``/api/v1``. ``admin.http.guard`` has already checked each request's access."""

from admin.http.api.endpoints import application
from admin.http.api.state import Services

__all__ = ["Services", "application"]
