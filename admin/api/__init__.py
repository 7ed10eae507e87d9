"""The HTTP API under ``/api/v1``: what the data path and the limits are and do, and the way to change them.

It decides nothing itself: limits are changed by ``admin.live``, figures come from ``admin.board`` and from the data
path's one interface. Who may ask is settled before a request comes here, by ``admin.guard``.
"""

from admin.api.app import application
from admin.api.services import Services

__all__ = ["Services", "application"]
