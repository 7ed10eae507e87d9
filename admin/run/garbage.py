"""The garbage collector's pauses: kept short by never looking twice at what has come to stay.

A full collection looks at every object there is. With ten thousand live limits that takes a tenth of a second, in
which no message moves. So what has survived one is set aside, and the next looks at what is new since. Garbage in
cycles that was set aside is found only when all is looked at again: that is done when as much has been set aside as
there was at the last time, so that memory at most doubles. Connections that end leave no cycles.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

_FULL: Final = 2
"""The oldest generation; its collection is a full one."""
LEAST: Final = 200_000
"""Objects that may be set aside however few there were: some dozen megabytes."""


@contextmanager
def short_pauses() -> Iterator[None]:
    """Keep pauses short from now on; what is there now is set aside at once."""
    gc.collect()
    gc.freeze()
    # Objects at the last look at all; how many were set aside since, those that have gone again among them.
    stayed, set_aside, look_at_all = gc.get_freeze_count(), 0, False

    def looked(phase: str, info: Mapping[str, Any]) -> None:
        nonlocal stayed, set_aside, look_at_all
        if phase != "stop" or info["generation"] != _FULL:
            return
        set_aside += len(gc.get_objects(_FULL))
        gc.freeze()
        if look_at_all:
            stayed, set_aside, look_at_all = gc.get_freeze_count(), 0, False
        elif set_aside >= max(stayed, LEAST):
            # To count takes a few milliseconds, so it is done this rarely. Most of it, like what a scrape gathers,
            # was set aside and has gone since.
            set_aside = max(gc.get_freeze_count() - stayed, 0)
            if set_aside >= max(stayed, LEAST):
                look_at_all = True
                gc.unfreeze()

    gc.callbacks.append(looked)
    try:
        yield
    finally:
        gc.callbacks.remove(looked)
        gc.unfreeze()
