"""A change of the audit trail, for tests of its texts."""

from typing import Any

import msgspec

from admin.edits.model import Change


def make(**fields: Any) -> Change:
    """Return change 17, of the topic ``a`` by ada, with these other fields."""
    base = {
        "id": 17,
        "at": "2026-11-21T20:00:00Z",
        "by": "ada",
        "address": "",
        "action": "set",
        "target": "limits/topic/a",
    }
    return msgspec.convert(base | fields, Change)
