"""What the sidecar asks of its own process: enough file descriptors."""

import resource
from typing import NamedTuple

from admin.connections import MAX_CONNECTIONS

#: Listeners, the event loop, logs, files and a reserve; and all connections of the admin address.
_OTHER_DESCRIPTORS = 256 + MAX_CONNECTIONS


class OpenFilesLimited(NamedTuple):
    """The system allows fewer open files than the connections need.

    Attributes:
        open_files: how many it allows.
        room_for_connections: how many clients these are enough for.
    """

    open_files: int
    room_for_connections: int


def raise_descriptor_limit(max_connections: int) -> OpenFilesLimited | None:
    """Allow as many open files as the connections need: one for the client and one for the broker of each.

    Args:
        max_connections: clients that may be connected at once.

    Returns:
        What there is room for when the system does not allow that many, otherwise None.
    """
    needed = 2 * max_connections + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= needed:
        return None
    return OpenFilesLimited(allowed, max(0, allowed - _OTHER_DESCRIPTORS) // 2)
