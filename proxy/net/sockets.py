"""All socket calls of the data path, and nothing else.

Plain non-blocking sockets, which the reactor watches, instead of trio's own streams: a write that the kernel takes
at once costs no turn of the event loop, a read needs no buffer before there is something to read, and many slices go
out in one ``sendmsg``.
"""

import errno
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from select import EPOLLIN
from typing import Any, Final

import trio

from proxy.net.reactor import Reactor, Watched
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

#: When a peer is asked whether it is still there, in seconds: after so long without a byte, then so often, and so many
#: times without an answer until it counts as gone. Linux asks after two hours by itself.
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}

#: What the system says when the process or the machine has no room for another connection.
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

#: How long to wait before accepting again when the process or the machine has no room for another socket.
_NO_ROOM_PAUSE_S: Final = 0.1
#: Accepted without giving other sockets a turn, at the most.
_ACCEPTS_A_TURN: Final = 8

Address = tuple[str, int]


class NoRoomError(OSError):
    """This process or machine has no descriptor, memory or port left for a connection; whom it was to is no matter."""


def plain_address(address: Sequence[Any]) -> Address:
    """Return host and port of a socket's address; an IPv4 one that came over IPv6 as IPv4."""
    host, port = address[:2]
    return host.removeprefix("::ffff:") if "." in host else host, port


def format_address(address: Address) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ReadAhead:
    """What was read ahead of the sessions of all connections, in memory; see ``Wire.read_ahead``."""

    #: Of one connection: what the kernels of both ends hold of a client that has left, with Linux's own settings.
    MAX_BYTES: Final = 16 * 1024 * 1024
    #: Of all connections.
    MAX_BYTES_IN_ALL: Final = 128 * 1024 * 1024
    #: What one read takes.
    CHUNK_BYTES: Final = 256 * 1024

    def __init__(self) -> None:
        self.taken_bytes = 0


def _set_options(sock: socket.socket) -> None:
    """Set what all sockets have; Linux hands it down from a listening socket to those that it accepts."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Wire:
    """One connected, non-blocking TCP socket. Errors of the peer come as OSError.

    Args:
        sock: the socket.
        inherits: it has the options of the listening socket that accepted it.

    Attributes:
        ended: ``read_ahead`` has found the end of the stream, so the peer's kernel has nothing left to send.
    """

    ended = False
    #: What was read ahead, and where that is counted.
    _ahead: bytes | bytearray = b""
    _ahead_of_all = ReadAhead()
    # What the kernel has said of the socket, behind what was read ahead: it says it once.
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
        """Have the system give the connection up when the peer has taken nothing of what is written for so long.

        So it does whether the peer is gone or only reads nothing (TCP_USER_TIMEOUT; seen with Linux 6.18).
        """
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(timeout_s * 1000)))

    def local_address(self) -> Address:
        """Return the address at this end; for a client's socket, what it has connected to."""
        return plain_address(self._sock.getsockname())

    def remote_address(self) -> Address:
        return plain_address(self._sock.getpeername())

    def peek(self, size_bytes: int) -> bytes | None:
        """Return what is there, at most so much, and leave it; empty at the end of the stream, None if nothing."""
        try:
            return self._sock.recv(size_bytes, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return None

    def skip(self, size_bytes: int) -> None:
        """Drop bytes that ``peek`` has returned."""
        self._sock.recv(size_bytes)

    def handshake(self) -> int:
        """Go on with what comes before the first byte; return the event that it waits for, and 0 once it is done."""
        return 0

    def hand_over(self) -> socket.socket:
        """Return the socket, for a wire that goes over this one; this one is not used any more."""
        return self._sock

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
        if self._ahead:
            return self._take_ahead(buffer)
        if self._errno:
            raise OSError(self._errno, os.strerror(self._errno))
        try:
            return self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def read_ahead(self, of_all: ReadAhead, *, a_little: bool = False) -> int | None:
        """Move what the kernel holds to memory; ``receive_into`` returns it before all that comes later.

        A peer that sends more than the receive window holds, and leaves, leaves the rest and its end in its own kernel,
        which forgets both as soon as something is written to it. So this comes before a write to a peer that is not
        read.

        Args:
            of_all: where it is counted.
            a_little: read no more than opens the receive window, and leave half of the room for what comes before a
                write.

        Returns:
            How many bytes were read; None if nothing more will be, as the stream has ended or there is no room.

        Raises:
            OSError: as ``receive_into`` does; what was read before stays.
        """
        began = len(self._ahead)
        ahead = self._ahead = self._ahead or bytearray()
        assert isinstance(ahead, bytearray)  # noqa: S101 - as above
        self._ahead_of_all = of_all
        try:
            room = 2 if a_little else 1
            while not self.ended and room * len(ahead) < of_all.MAX_BYTES:
                if room * of_all.taken_bytes >= of_all.MAX_BYTES_IN_ALL or (a_little and len(ahead) > began):
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
        """Whether there is something to receive of which the kernel knows nothing any more."""
        return bool(self._ahead)

    @property
    def is_plain(self) -> bool:
        """Whether the kernel's bytes are the peer's."""
        return type(self) is Wire

    def put_back(self, data: bytes, errno: int, of_all: ReadAhead) -> None:
        """Have ``receive_into`` return bytes that somebody else has read, and then raise what they met, if anything."""
        self._errno = errno
        if data:
            self._ahead, self._ahead_of_all = bytearray(data), of_all
            of_all.taken_bytes += len(data)

    def _take_ahead(self, buffer: memoryview) -> int:
        ahead = self._ahead
        assert isinstance(ahead, bytearray)  # noqa: S101 - as read_ahead made it
        count = min(len(ahead), len(buffer))
        buffer[:count] = ahead[:count]
        del ahead[:count]
        self._ahead_of_all.taken_bytes -= count
        return count

    def take_ahead(self) -> bytes:
        """Return all that was read ahead; it counts as received."""
        ahead, self._ahead = bytes(self._ahead), b""
        self._ahead_of_all.taken_bytes -= len(ahead)
        return ahead

    def unread_bytes(self) -> int:
        """Return how many bytes have come that nobody has received."""
        (in_kernel,) = struct.unpack("i", fcntl.ioctl(self._sock, termios.FIONREAD, bytes(4)))
        return len(self._ahead) + int(in_kernel)

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
        self.take_ahead()
        self._sock.close()


Found = tuple[int, int, int, Any]


async def resolve(host: str, port: int, flags: int = 0) -> list[Found]:
    """Return what a name stands for, for ``Connecting``.

    Raises:
        OSError: nothing that is known.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:
        # What cannot be a host name at all, e.g. with an empty label.
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a host name") from None
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]


def resolved(host: str, port: int) -> list[Found] | None:
    """Return what ``resolve`` would, if that is an IP address and not a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]


class Connecting:
    """An attempt to connect to a broker, at all its addresses in turn.

    Args:
        host: its name, for the error.
        found: what the name stands for.

    Attributes:
        place: the one of them that is tried.
    """

    place: Found

    def __init__(self, host: str, found: Iterable[Found]) -> None:
        self._left = list(found)[::-1]
        self._sock: socket.socket | None = None
        self._host = host
        self._last: OSError | None = None

    def fileno(self) -> int:
        """Return the descriptor of the socket that is being connected; another one after each ``go_on``."""
        assert self._sock is not None  # noqa: S101 - go_on comes first
        return self._sock.fileno()

    def go_on(self) -> Wire | None:
        """Return the connection if it is there; if not, it is to be called again when the socket can be written.

        Raises:
            NoRoomError: there is no room for a connection here.
            OSError: none of the addresses accepted.
        """
        while self._sock is not None or self._left:
            try:
                if self._sock is None:
                    self.place = self._left.pop()
                    family, kind, protocol, _ = self.place
                    self._sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
                code = self._sock.connect_ex(self.place[-1])
                if code == errno.EINPROGRESS:
                    # On one machine it is over by now; to ask once more is cheaper than to be told.
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
        raise self._last or OSError(f"no address for {self._host}")

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


async def connect(host: str, port: int) -> Wire:
    """Connect to a broker, trying all its addresses in turn.

    Raises:
        NoRoomError: there is no room for a connection here.
        OSError: none of them accepted, or the name does not resolve.
    """
    connecting = Connecting(host, await resolve(host, port))
    try:
        while (wire := connecting.go_on()) is None:
            await trio.lowlevel.wait_writable(connecting.fileno())
    except BaseException:
        connecting.close()
        raise
    return wire


class Inherited:
    """Bound TCP sockets that this process was given: by who started it, or by the one whose place it takes.

    Args:
        given: the sockets.
    """

    def __init__(self, given: Iterable[socket.socket] = ()) -> None:
        self._given = list(given)

    def take(self, family: int, address: Address) -> socket.socket | None:
        """Return the one that is bound to an address, once; None if there is none."""
        for sock in self._given:
            if sock.family == family and sock.getsockname()[:2] == address[:2]:
                self._given.remove(sock)
                sock.setblocking(False)
                return sock
        return None

    def close(self) -> list[str]:
        """Close those that nobody took, and return their addresses."""
        left = [format_address(sock.getsockname()) for sock in self._given]
        for sock in self._given:
            sock.close()
        self._given.clear()
        return left


class ListeningSocket(Watched):
    """One bound TCP socket, which listens from ``start`` on, until ``pause``. The address stays its own meanwhile.

    Args:
        reactor: tells it when clients wait.
        enter: called with each client that is accepted, its address, and what it has connected to.
        no_room: called with the error when the process or the machine has no room for one; for a moment nobody is
            accepted then.
        backlog: how many clients may wait.
        sock: bound.

    Attributes:
        is_given: somebody else has it, too, and keeps it when this process has ended; it may be listening already.
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
        """Listen.

        Raises:
            OSError: somebody else, who was allowed to bind the address, too, listens there now.
        """
        self._sock.listen(self._backlog)
        self._started, self._paused = True, False
        self.want(EPOLLIN)

    def hold(self) -> None:
        """Accept nobody any more; who connects waits in the backlog, for another process that has the socket."""
        self._started = self._paused = False
        self.unwatch()

    def pause(self) -> None:
        """Stop listening: who connects is refused, and who waits in the backlog is reset.

        So does Linux (tcp(7) does not say it; HAProxy pauses its listeners in this way, too).
        """
        if self._started or (self.is_given and self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
            self._started, self._paused = False, True
            self.unwatch()
            self._sock.shutdown(socket.SHUT_RD)

    def fileno(self) -> int:
        return self._sock.fileno()

    def readable(self) -> None:
        """Accept some of the clients that wait."""
        for _ in range(_ACCEPTS_A_TURN):
            accepted = self.accept()
            if accepted is None:
                return
            wire, peer = accepted
            self._enter(wire, peer, wire.local_address() if self._is_wildcard else self.address)
        # Connections that the compiled part serves wait for a turn of its task.
        self.reactor.end_round()

    def writable(self) -> None:
        """Never happens."""

    def failed(self, error: Exception) -> None:
        """Accept nobody for a moment: the socket stays ready while there is no room for who waits."""
        self.unwatch()
        self.reactor.after(_NO_ROOM_PAUSE_S, self._go_on)
        self._no_room(error)

    def _go_on(self) -> None:
        if self._started:
            self.want(EPOLLIN)

    def accept(self) -> tuple[Wire, Address] | None:
        """Return the next client that waits, if one does.

        Raises:
            OSError: the process or the machine has no room for it (EMFILE, ENFILE, ENOBUFS, ENOMEM).
        """
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
                    # Who waited at a given socket may have come before it had the options.
                    return Wire(sock, inherits=not self.is_given), plain_address(address)
                except OSError:
                    # Gone between accept and the first option: nobody to serve.
                    sock.close()
        return None

    def close(self) -> None:
        """Stop listening; connections that wait in the backlog are reset by the kernel, unless others have it, too."""
        self._started = False
        self.unwatch()
        if self.is_given and self._paused:
            # systemd gives up a socket that does not listen any more, and who connects now is to wait for whoever
            # has it next.
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
) -> list[ListeningSocket]:
    """Bind every address of ``host``, and do not listen yet; port 0 takes a free one for each. ``make`` takes the rest.

    An address of which there is an inherited socket has that one, which may be listening already. ``::`` serves IPv4,
    too, unless ``v6only``: something else has the port there.

    Raises:
        OSError: an address is taken, foreign to this machine, or not permitted.
    """
    found = await resolve(host, port, socket.AI_PASSIVE)
    bound: list[ListeningSocket] = []
    try:
        v6only = v6only or any(family == socket.AF_INET for family, *_ in found)
        for family, kind, protocol, address in found:
            both = address[0] == "::" and not v6only
            given = None if inherited is None else inherited.take(family, address)
            if given is not None:
                bound.append(make(given))
                bound[-1].is_given = True
                if both and given.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
                    # That cannot be changed any more.
                    found.append((socket.AF_INET, kind, protocol, ("0.0.0.0", port)))
                continue
            with ExitStack() as failing:
                sock = _bind(family, kind, protocol, address, failing, both=both)
                if port == 0:
                    # Of a port that it chose itself Linux lets go in a pause. One that two sockets have is nobody
                    # else's, and then the first of them is not needed any more.
                    chosen, sock = sock, _bind(family, kind, protocol, sock.getsockname(), failing, both=both)
                    chosen.close()
                failing.pop_all()
            bound.append(make(sock))
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


def _bind(family: int, kind: int, protocol: int, address: Any, failing: ExitStack, *, both: bool) -> socket.socket:
    sock = failing.enter_context(socket.socket(family, kind, protocol))
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
    sock.bind(address)
    return sock
