"""What the sidecar asks of its own process: enough file descriptors, and how those that there are get shared out."""

import resource
from pathlib import Path
from typing import Final, NamedTuple

from admin.common.errors import StartError
from admin.http.http1 import MAX_CONNECTIONS

#: Of each listener: its sockets, and one to try the broker with.
_PER_LISTENER: Final = 3
#: Logs, configuration and names are read and written now and then; and the admin address listens.
_RESERVE: Final = 16
#: Of what is left where there is little: the admin address answers however many clients there are.
_ADMIN_SHARE: Final = 1 / 4
_LEAST_ADMIN: Final = 4


class Descriptors(NamedTuple):
    """How the open files are shared out.

    Attributes:
        open_files: how many the system allows.
        clients: connections of clients that there is room for, each with one to the broker.
        admin: connections to the admin address at once.
    """

    open_files: int
    clients: int
    admin: int


def share_descriptors(max_connections: int, listeners: int) -> Descriptors:
    """Allow this process as many open files as it may need, and share out what it gets.

    Args:
        max_connections: clients that may be connected at once.
        listeners: how many there are.

    Raises:
        StartError: the system allows so few that nobody could be served.
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
    admin = min(MAX_CONNECTIONS, max(int(left * _ADMIN_SHARE), _LEAST_ADMIN))
    clients = (left - admin) // 2
    if clients < 1:
        raise StartError(
            f"open files: the system allows {open_files}, and Sluice needs {others + _LEAST_ADMIN + 2} to serve one"
            f" client, and two for each other one; raise the limit (ulimit -n, LimitNOFILE=) to {needed} for"
            f" bounds.max_connections = {max_connections}"
        )
    return Descriptors(open_files, clients, admin)


def _in_use() -> int:
    # The directory that is read here is one of them.
    return len(list(Path("/proc/self/fd").iterdir())) - 1
