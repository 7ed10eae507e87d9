"""The HTTP API under ``/api/v1``.

It makes no decisions: ``admin.edits`` changes limits, and ``admin.http.guard`` checks access first.
"""

from admin.http.api.endpoints import application
from admin.http.api.state import Services

__all__ = ["Services", "application"]
