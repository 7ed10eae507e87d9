"""The HTTP API under ``/api/v1``. ``admin.http.guard`` checks access, and ``admin.edits`` makes all changes."""

from admin.http.api.endpoints import application
from admin.http.api.state import Services

__all__ = ["Services", "application"]
