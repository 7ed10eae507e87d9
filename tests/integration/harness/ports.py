"""Free ports, so that several runs of the tests can share a machine."""

import itertools
import os
import socket
from collections.abc import Iterable

# Below Linux's ephemeral range: no outgoing connection takes one of these between choosing it and listening on it.
_FIRST, _LAST = 15_000, 32_000
# Runs that start at once begin in different places; within a run the ports only go up.
_candidates = itertools.cycle(range(_FIRST + os.getpid() * 20 % (_LAST - _FIRST), _LAST, 5))


def free_port(*hosts: str, offsets: Iterable[int] = (0,)) -> int:
    """Return a port that is free on every host, together with its neighbours at ``offsets``.

    Raises:
        RuntimeError: none was found.
    """
    wanted = tuple(offsets)
    for port in itertools.islice(_candidates, 2_000):
        if all(_is_free(host, port + offset) for host in hosts or ("127.0.0.1",) for offset in wanted):
            return port
    raise RuntimeError("no free port was found for the integration tests")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
