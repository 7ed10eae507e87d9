"""All socket calls of the data path, and nothing else.

Plain non-blocking sockets, which the reactor watches, instead of trio's own streams: a write that the kernel takes
at once costs no turn of the event loop, a read needs no buffer before there is something to read, and many slices go
out in one ``sendmsg``.
"""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import trio

from proxy.protocols.base import Buffer

#: Slices per ``sendmsg``; Linux refuses more than 1024 (IOV_MAX).
_MAX_SLICES = 1024
#: accept(2) says to treat these as belonging to the one connection that failed, not to the listener.
_ACCEPT_PASSING = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
    }
)

#: What the system says when the process or the machine has no room for another connection.
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

Address = tuple[str, int]


class NoRoomError(OSError):
    """This process or machine has no descriptor, memory or port left for a connection; whom it was to is no matter."""


def format_address(address: Address) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Wire:
    """One connected, non-blocking TCP socket. Errors of the peer come as OSError."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    def fileno(self) -> int:
        """Return the descriptor, for the reactor."""
        return self._sock.fileno()

    def has_left(self, *, half_closes: bool) -> bool:
        """Return whether nobody is there any more and nothing is left to read.

        Args:
            half_closes: a peer that has ended its stream may still want to hear something.
        """
        try:
            return not self._sock.recv(1, socket.MSG_PEEK) and not half_closes
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read what is there; returns the number of bytes, 0 at the end of the stream, None when nothing is there."""
        try:
            return self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Write as much as the kernel takes without waiting; returns what is left, in order."""
        first = 0
        while first < len(buffers):
            slices = buffers[first : first + _MAX_SLICES]
            try:
                # send is a little cheaper than sendmsg, and one slice is what unrefused traffic is.
                sent = self._sock.send(slices[0]) if len(slices) == 1 else self._sock.sendmsg(slices)
            except (BlockingIOError, InterruptedError):
                return buffers[first:]
            for buffer in slices:
                size = len(buffer)
                if sent < size:
                    return [memoryview(buffer)[sent:], *buffers[first + 1 :]]
                sent -= size
                first += 1
        return ()

    def end(self) -> None:
        """Send the end of the stream; reading goes on."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            # The peer is gone already: its reader reports that.
            if error.errno != errno.ENOTCONN:
                raise

    def close(self) -> None:
        """Close; the reactor is told before."""
        self._sock.close()


async def _resolve(host: str, port: int, flags: int = 0) -> list[tuple[int, int, int, Any]]:
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:
        # What cannot be a host name at all, e.g. with an empty label.
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a host name") from None
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]


async def connect(host: str, port: int) -> Wire:
    """Connect to a broker, trying all its addresses in turn.

    Raises:
        NoRoomError: there is no room for a connection here.
        OSError: none of them accepted, or the name does not resolve.
    """
    last = OSError(f"no address for {host}")
    for family, kind, protocol, address in await _resolve(host, port):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            last = _told_apart(error)
            continue
        try:
            sock.setblocking(False)
            code = sock.connect_ex(address)
            if code == errno.EINPROGRESS:
                await trio.lowlevel.wait_writable(sock)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))  # noqa: TRY301 - tried for each address
            return Wire(sock)
        except OSError as error:
            sock.close()
            last = _told_apart(error)
        except BaseException:
            sock.close()
            raise
    raise last


def _told_apart(error: OSError) -> OSError:
    return NoRoomError(error.errno, error.strerror) if error.errno in _NO_ROOM else error


class ListeningSocket:
    """One bound TCP socket, which listens from ``start`` on, until ``pause``. The address stays its own meanwhile."""

    def __init__(self, sock: socket.socket, backlog: int) -> None:
        self._sock = sock
        self._backlog = backlog
        self._started = trio.Event()
        host, port = sock.getsockname()[:2]
        self.address: Address = (host, port)

    def start(self) -> None:
        """Listen.

        Raises:
            OSError: somebody else, who was allowed to bind the address, too, listens there now.
        """
        self._sock.listen(self._backlog)
        self._started.set()

    def pause(self) -> None:
        """Stop listening: who connects is refused, and who waits in the backlog is reset.

        So does Linux (tcp(7) does not say it; HAProxy pauses its listeners in this way, too).
        """
        if self._started.is_set():
            self._started = trio.Event()
            self._sock.shutdown(socket.SHUT_RD)

    async def accept(self) -> tuple[Wire, Address]:
        """Wait for the next client, in a pause for its end, too.

        Raises:
            OSError: the process or the machine has no room for it (EMFILE, ENFILE, ENOBUFS, ENOMEM).
        """
        while True:
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                await trio.lowlevel.wait_readable(self._sock)
            except OSError as error:
                if not self._started.is_set():
                    await self._started.wait()
                elif error.errno in _ACCEPT_PASSING:
                    await trio.lowlevel.checkpoint()
                else:
                    raise
            else:
                try:
                    return Wire(sock), (address[0], address[1])
                except OSError:
                    # Gone between accept and the first option: nobody to serve.
                    sock.close()

    def close(self) -> None:
        """Stop listening; connections that wait in the backlog are reset by the kernel."""
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


async def bind(host: str, port: int, backlog: int) -> list[ListeningSocket]:
    """Bind every address of ``host``, and do not listen yet; port 0 takes a free one for each.

    Raises:
        OSError: an address is taken, foreign to this machine, or not permitted.
    """
    found = await _resolve(host, port, socket.AI_PASSIVE)
    bound: list[ListeningSocket] = []
    try:
        for family, kind, protocol, address in found:
            with ExitStack() as failing:
                sock = _bind(family, kind, protocol, address, failing)
                if port == 0:
                    # Of a port that it chose itself Linux lets go in a pause. One that two sockets have is nobody
                    # else's, and then the first of them is not needed any more.
                    chosen, sock = sock, _bind(family, kind, protocol, sock.getsockname(), failing)
                    chosen.close()
                failing.pop_all()
            bound.append(ListeningSocket(sock, backlog))
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


def _bind(family: int, kind: int, protocol: int, address: Any, failing: ExitStack) -> socket.socket:
    sock = failing.enter_context(socket.socket(family, kind, protocol))
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(address)
    return sock
