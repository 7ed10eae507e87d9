"""Non-blocking sockets for the data path.

Unlike trio's streams, they write without yielding to the event loop, need no buffer while they wait, and send many
slices in one ``sendmsg`` call.
"""

import errno
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from select import EPOLLIN
from typing import Any, Final

import trio

from proxy.net.reactor import Reactor, Watched
from proxy.protocols.base import Buffer

#: Slices per ``sendmsg`` (IOV_MAX on Linux).
_MAX_SLICES = 1024
#: Errors that concern the new connection, not the listener (accept(2)).
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

_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

_NO_ROOM_PAUSE_S: Final = 0.1
_ACCEPTS_PER_TURN: Final = 8

Address = tuple[str, int]


class NoRoomError(OSError):
    """This machine has run out of file descriptors, memory or ports."""


def plain_address(address: Sequence[Any]) -> Address:
    host, port = address[:2]
    return host.removeprefix("::ffff:") if "." in host else host, port


def format_address(address: Address) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ReadAhead:
    """Counts and limits the memory that ``Wire.read_ahead`` uses."""

    #: Per connection. By default, both kernels together buffer this much for a departed client.
    MAX_BYTES: Final = 16 * 1024 * 1024
    MAX_TOTAL_BYTES: Final = 128 * 1024 * 1024
    CHUNK_BYTES: Final = 256 * 1024

    def __init__(self) -> None:
        self.taken_bytes = 0


def _set_options(sock: socket.socket) -> None:
    """Set TCP options. On Linux, accepted sockets inherit them from the listening socket."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Wire:
    """A connected, non-blocking TCP socket. ``ended`` is set when ``read_ahead`` reaches the end of the stream."""

    ended = False
    _ahead: bytes | bytearray = b""
    _ahead_of_all = ReadAhead()
    # The error to raise after the data that was read ahead, because the kernel reports it only once.
    _errno = 0

    def __init__(self, sock: socket.socket, *, inherits: bool = False) -> None:
        if sock.gettimeout() != 0:
            sock.setblocking(False)
        if not inherits:
            _set_options(sock)
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def bound_writes(self, timeout_s: float) -> None:
        """Abort the connection if the peer does not acknowledge data within ``timeout_s``.

        On Linux 6.18, the peer must also read the data.
        """
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(timeout_s * 1000)))

    def local_address(self) -> Address:
        return plain_address(self._sock.getsockname())

    def remote_address(self) -> Address:
        return plain_address(self._sock.getpeername())

    def peek(self, size_bytes: int) -> bytes | None:
        """Return data without consuming it, empty bytes at the end of the stream, or None if there is no data."""
        try:
            return self._sock.recv(size_bytes, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return None

    def skip(self, size_bytes: int) -> None:
        self._sock.recv(size_bytes)

    def handshake(self) -> int:
        """Continue the handshake. Return the epoll event to wait for, or 0 when done."""
        return 0

    def hand_over(self) -> socket.socket:
        return self._sock

    def has_left(self, *, half_closes: bool) -> bool:
        """Return whether the peer has disconnected. If ``half_closes``, EOF alone does not count: it may still read."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK) and not half_closes
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read data. Return the number of bytes, 0 at the end of the stream, or None if there is no data."""
        if self._ahead:
            return self._take_ahead(buffer)
        if self._errno:
            raise OSError(self._errno, os.strerror(self._errno))
        try:
            return self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def read_ahead(self, of_all: ReadAhead, *, a_little: bool = False) -> int | None:
        """Read a paused peer's data into memory before writing to the peer. Later reads return this data first.

        If ``a_little``, read one chunk to open the receive window, unless the read-ahead buffer is already half full.
        The other half is reserved for reads that must precede a write.

        Returns:
            The number of bytes read, or None if the stream has ended or there is no room.
        """
        began = len(self._ahead)
        ahead = self._ahead = self._ahead or bytearray()
        assert isinstance(ahead, bytearray)  # noqa: S101 - as above
        self._ahead_of_all = of_all
        try:
            room = 2 if a_little else 1
            while not self.ended and room * len(ahead) < of_all.MAX_BYTES:
                if room * of_all.taken_bytes >= of_all.MAX_TOTAL_BYTES or (a_little and len(ahead) > began):
                    break
                chunk = self._sock.recv(of_all.CHUNK_BYTES)
                self.ended = not chunk
                ahead += chunk
                of_all.taken_bytes += len(chunk)
        except (BlockingIOError, InterruptedError):
            return len(ahead) - began
        except OSError:
            self.ended = True
            raise
        return None

    @property
    def has_unread(self) -> bool:
        """Whether some of the unread data has already left the kernel."""
        return bool(self._ahead)

    @property
    def is_plain(self) -> bool:
        return type(self) is Wire

    def put_back(self, data: bytes, errno: int, of_all: ReadAhead) -> None:
        """Make later reads return ``data`` first, then raise OSError with ``errno`` unless that is 0."""
        self._errno = errno
        if data:
            self._ahead, self._ahead_of_all = bytearray(data), of_all
            of_all.taken_bytes += len(data)

    def _take_ahead(self, buffer: memoryview) -> int:
        ahead = self._ahead
        assert isinstance(ahead, bytearray)  # noqa: S101 - made by read_ahead
        count = min(len(ahead), len(buffer))
        buffer[:count] = ahead[:count]
        del ahead[:count]
        self._ahead_of_all.taken_bytes -= count
        return count

    def take_ahead(self) -> bytes:
        ahead, self._ahead = bytes(self._ahead), b""
        self._ahead_of_all.taken_bytes -= len(ahead)
        return ahead

    def unread_bytes(self) -> int:
        (in_kernel,) = struct.unpack("i", fcntl.ioctl(self._sock, termios.FIONREAD, bytes(4)))
        return len(self._ahead) + int(in_kernel)

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Write as much as the kernel accepts. Return the rest."""
        first = 0
        while first < len(buffers):
            slices = buffers[first : first + _MAX_SLICES]
            try:
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
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            # The peer has disconnected. The next read reports it.
            if error.errno != errno.ENOTCONN:
                raise

    def close(self) -> None:
        self.take_ahead()
        self._sock.close()


Found = tuple[int, int, int, Any]


async def resolve(host: str, port: int, flags: int = 0) -> list[Found]:
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a valid host name") from None
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]


def resolved(host: str, port: int) -> list[Found] | None:
    """Resolve an IP address without I/O. Return None if ``host`` is a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]


class Connecting:
    """Connects to a broker by trying its addresses in order. ``place`` is the current address."""

    place: Found

    def __init__(self, host: str, found: Iterable[Found]) -> None:
        self._left = list(found)[::-1]
        self._sock: socket.socket | None = None
        self._host = host
        self._last: OSError | None = None

    def fileno(self) -> int:
        assert self._sock is not None  # noqa: S101 - resume comes first
        return self._sock.fileno()

    def resume(self) -> Wire | None:
        """Continue connecting. Return None if this must be called again when the socket is writable.

        Raises NoRoomError or OSError if all addresses fail.
        """
        while self._sock is not None or self._left:
            try:
                if self._sock is None:
                    self.place = self._left.pop()
                    family, kind, protocol, _ = self.place
                    self._sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
                code = self._sock.connect_ex(self.place[-1])
                if code == errno.EINPROGRESS:
                    # Local connections are established by now, and checking is cheaper than waiting for an event.
                    code = self._sock.connect_ex(self.place[-1])
                if code == errno.EALREADY:
                    return None
                if code:
                    raise OSError(code, os.strerror(code))  # noqa: TRY301 - tried for each address
                wire, self._sock = Wire(self._sock), None
            except OSError as error:
                self.close()
                self._last = NoRoomError(error.errno, error.strerror) if error.errno in _NO_ROOM else error
            else:
                return wire
        raise self._last or OSError(f"no address found for {self._host}")

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


async def connect(host: str, port: int) -> Wire:
    connecting = Connecting(host, await resolve(host, port))
    try:
        while (wire := connecting.resume()) is None:
            await trio.lowlevel.wait_writable(connecting.fileno())
    except BaseException:
        connecting.close()
        raise
    return wire


class Inherited:
    """Bound sockets that another process has passed on."""

    def __init__(self, given: Iterable[socket.socket] = ()) -> None:
        self._given = list(given)

    def take(self, family: int, address: Address) -> socket.socket | None:
        for sock in self._given:
            if sock.family == family and sock.getsockname()[:2] == address[:2]:
                self._given.remove(sock)
                sock.setblocking(False)
                return sock
        return None

    def close(self) -> list[str]:
        left = [format_address(sock.getsockname()) for sock in self._given]
        for sock in self._given:
            sock.close()
        self._given.clear()
        return left


class ListeningSocket(Watched):
    """A bound socket, which listens after ``start`` is called.

    Args:
        enter: Called with each client's wire, the client's address, and the address that the client connected to.
        no_room: Called with the error if clients cannot be accepted.

    Attributes:
        is_given: Whether another process may also use the socket, and may already listen on it.
    """

    def __init__(
        self,
        reactor: Reactor,
        enter: Callable[[Wire, Address, Address], None],
        no_room: Callable[[Exception], None],
        backlog: int,
        sock: socket.socket,
    ) -> None:
        super().__init__(reactor, sock.fileno())
        _set_options(sock)
        self._enter = enter
        self._no_room = no_room
        self._backlog = backlog
        self._sock = sock
        self._started = self._paused = self.is_given = False
        host, port = sock.getsockname()[:2]
        self.address: Address = (host, port)
        self._is_wildcard = host in {"0.0.0.0", "::"}

    def start(self) -> None:
        """Start listening. Raises OSError if another process is listening on the address."""
        self._sock.listen(self._backlog)
        self._started, self._paused = True, False
        self.add_interest(EPOLLIN)

    def hold(self) -> None:
        """Stop accepting. New clients wait in the backlog for another process."""
        self._started = self._paused = False
        self.unwatch()

    def pause(self) -> None:
        """Refuse new clients and reset those in the backlog, as HAProxy does when it pauses a listener."""
        if self._started or (self.is_given and self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
            self._started, self._paused = False, True
            self.unwatch()
            self._sock.shutdown(socket.SHUT_RD)

    def fileno(self) -> int:
        return self._sock.fileno()

    def readable(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            accepted = self.accept()
            if accepted is None:
                return
            wire, peer = accepted
            self._enter(wire, peer, wire.local_address() if self._is_wildcard else self.address)
        self.reactor.end_round()

    def writable(self) -> None:
        """Never called, because EPOLLOUT is not requested."""

    def failed(self, error: Exception) -> None:
        """Pause accepting, because the socket would stay ready while clients cannot be accepted."""
        self.unwatch()
        self.reactor.after(_NO_ROOM_PAUSE_S, self._resume)
        self._no_room(error)

    def _resume(self) -> None:
        if self._started:
            self.add_interest(EPOLLIN)

    def accept(self) -> tuple[Wire, Address] | None:
        while self._started:
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as error:
                if error.errno not in _ACCEPT_PASSING:
                    raise
            else:
                try:
                    # Clients may have connected before an inherited socket's options were set.
                    return Wire(sock, inherits=not self.is_given), plain_address(address)
                except OSError:
                    sock.close()
        return None

    def close(self) -> None:
        """Close the socket. Clients in the backlog are reset, unless another process has the socket too."""
        self._started = False
        self.unwatch()
        if self.is_given and self._paused:
            # systemd abandons sockets that do not listen. New clients wait for the next process.
            with suppress(OSError):
                self._sock.listen(self._backlog)
        self._sock.close()


async def bind(
    host: str,
    port: int,
    make: Callable[[socket.socket], ListeningSocket],
    inherited: Inherited | None = None,
    *,
    v6only: bool = False,
    reuse_port: bool = False,
) -> list[ListeningSocket]:
    """Bind without listening. Port 0 selects a free port for each address. ``::`` includes IPv4 unless ``v6only``."""
    found = await resolve(host, port, socket.AI_PASSIVE)
    bound: list[ListeningSocket] = []
    try:
        v6only = v6only or any(family == socket.AF_INET for family, *_ in found)
        for family, kind, protocol, address in found:
            both = address[0] == "::" and not v6only
            given = None if inherited is None else inherited.take(family, address)
            if given is not None:
                # Linux checks this option when another socket binds to the address.
                given.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
                bound.append(make(given))
                bound[-1].is_given = True
                if both and given.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
                    found.append((socket.AF_INET, kind, protocol, ("0.0.0.0", port)))
                continue
            with ExitStack() as failing:
                how = partial(_bind, family, kind, protocol, failing=failing, both=both, reuse_port=reuse_port)
                sock = how(address)
                if port == 0:
                    # Linux releases a port of its own choice when the socket stops listening, but not a port that was
                    # bound explicitly.
                    chosen, sock = sock, how(sock.getsockname())
                    chosen.close()
                failing.pop_all()
            bound.append(make(sock))
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


def _bind(
    family: int, kind: int, protocol: int, address: Any, *, failing: ExitStack, both: bool, reuse_port: bool
) -> socket.socket:
    sock = failing.enter_context(socket.socket(family, kind, protocol))
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
    sock.bind(address)
    return sock
