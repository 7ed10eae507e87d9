"""Allocates file descriptors, and keeps interruptions of the event loop short."""

import gc
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from admin.common.errors import StartError
from admin.http.http1 import MAX_CONNECTIONS

#: Descriptors for each listener: its sockets, and one for probing the broker.
_PER_LISTENER: Final = 3
#: Descriptors for logs, the configuration, DNS and the admin listener.
_RESERVE: Final = 16
#: Keeps the admin address reachable, however many clients there are.
_ADMIN_SHARE: Final = 1 / 4
_MIN_ADMIN: Final = 4


#: The oldest generation.
_FULL: Final = 2
_SWITCH_S: Final = 0.0005
"""How long a thread may keep the event loop from running. Python's default is 0.005."""
MIN_FROZEN: Final = 200_000
"""Minimum number of newly frozen objects (tens of megabytes) before a full collection inspects them again."""


class Descriptors(NamedTuple):
    open_files: int
    clients: int
    admin: int


def share_descriptors(max_connections: int, listeners: int) -> Descriptors:
    """Raise the limit on open files if needed, and divide it among clients and the admin address.

    Raises StartError if the limit is too low for even one client.
    """
    others = _in_use() + _RESERVE + _PER_LISTENER * listeners
    needed = 2 * max_connections + MAX_CONNECTIONS + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Descriptors(needed, max_connections, MAX_CONNECTIONS)
    open_files = soft
    if soft < needed:
        open_files = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
    left = open_files - others
    admin = min(MAX_CONNECTIONS, max(int(left * _ADMIN_SHARE), _MIN_ADMIN))
    clients = (left - admin) // 2
    if clients < 1:
        raise StartError(
            f"open files: the system allows {open_files}, but Sluice needs {others + _MIN_ADMIN + 2} for one client,"
            f" and two more for each additional client; raise the limit (ulimit -n, LimitNOFILE=) to {needed} for"
            f" bounds.max_connections = {max_connections}"
        )
    return Descriptors(open_files, clients, admin)


def _in_use() -> int:
    # One descriptor belongs to the directory being read.
    return len(list(Path("/proc/self/fd").iterdir())) - 1


@contextmanager
def short_pauses() -> Iterator[None]:
    """Limit how long other threads and garbage collection can interrupt the event loop.

    A full collection takes 0.1 s with ten thousand live limits. Surviving objects are therefore frozen, and are
    inspected again only when their number has doubled. Cyclic garbage can at most double memory usage.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    at_last_look, frozen_since, look_at_all = gc.get_freeze_count(), 0, False

    def looked(phase: str, info: Mapping[str, Any]) -> None:
        nonlocal at_last_look, frozen_since, look_at_all
        if phase != "stop" or info["generation"] != _FULL:
            return
        frozen_since += len(gc.get_objects(_FULL))
        gc.freeze()
        if look_at_all:
            at_last_look, frozen_since, look_at_all = gc.get_freeze_count(), 0, False
        elif frozen_since >= max(at_last_look, MIN_FROZEN):
            # Many of these objects may have been freed. Counting takes milliseconds, so count only now.
            frozen_since = max(gc.get_freeze_count() - at_last_look, 0)
            if frozen_since >= max(at_last_look, MIN_FROZEN):
                look_at_all = True
                gc.unfreeze()

    gc.callbacks.append(looked)
    try:
        yield
    finally:
        gc.callbacks.remove(looked)
        gc.unfreeze()
