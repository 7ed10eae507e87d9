"""Free ports, so that several runs of the tests can share a machine."""

import itertools
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

# Below Linux's ephemeral range, so that no outgoing connection takes one of these.
_FIRST, _LAST = 15_000, 32_000
_STEP = 5
_EVERY = range(_FIRST, _LAST, _STEP)
# Concurrent runs begin in different places, and each can use all ports.
_start = os.getpid() * 4 % len(_EVERY)
_candidates: Iterator[int] = itertools.cycle((*_EVERY[_start:], *_EVERY[:_start]))
# Bound without listening, so that no other program gets the ports between two of their listeners.
_kept: list[ExitStack] = []


def free_port(*, offsets: Iterable[int] = (0,)) -> int:
    """Return a port that is free on every address of this machine, together with its neighbours at ``offsets``."""
    wanted = tuple(offsets)
    reason: OSError | None = None
    for port in itertools.islice(_candidates, len(_EVERY)):
        with ExitStack() as keeping:
            try:
                for offset in wanted:
                    _keep(keeping, port + offset)
            except OSError as error:
                reason = error
                continue
            _kept.append(keeping.pop_all())
            return port
    raise RuntimeError(f"no free port was found for the integration tests: {reason}")


def _keep(keeping: ExitStack, port: int) -> None:
    # The wildcard address: a program that listens there needs the port free on every address.
    sock = keeping.enter_context(socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET))
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    # Without SO_REUSEADDR this fails if another socket has the port. With it, listening is possible later.
    sock.bind(("", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
