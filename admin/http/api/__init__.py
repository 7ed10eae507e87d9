"""The HTTP API under ``/api/v1``: the state of the data path and the limits, and changes to them.

It makes no decisions: ``admin.edits`` changes limits, figures come from ``admin.stats`` and from the data path's
interface, and ``admin.http.guard`` checks access first.
"""

from admin.http.api.endpoints import application
from admin.http.api.state import Services

__all__ = ["Services", "application"]
