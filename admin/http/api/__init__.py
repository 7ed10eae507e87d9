"""The HTTP API under ``/api/v1``: what the data path and the limits are and do, and the way to change them.

It decides nothing itself: limits are changed by ``admin.edits``, figures come from ``admin.stats`` and from the data
path's one interface. Who may ask is settled before a request comes here, by ``admin.http.guard``.
"""

from admin.http.api.endpoints import application
from admin.http.api.state import Services

__all__ = ["Services", "application"]
