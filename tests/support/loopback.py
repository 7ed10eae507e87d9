"""Says whether all data between sockets of this process has arrived, because a busy kernel takes time."""

import fcntl
import socket
import struct
import termios
import weakref
from typing import Any, Final, NamedTuple

from proxy.net import sockets

# States of TCP (net/tcp_states.h): not open yet, own end sent, other's end received, closed.
_OPENING: Final = {2, 3}
_ENDED: Final = {4, 5, 9, 11}
_HAS_END: Final = {8, 9, 11}
_CLOSED: Final = 7
_INFO_BYTES: Final = 216

Key = tuple[Any, Any]
"""The addresses of both ends."""


class _Info(NamedTuple):
    """Parts of ``struct tcp_info`` (linux/tcp.h)."""

    state: int
    sent: int
    received: int
    not_sent: int


def _info(sock: socket.socket) -> _Info:
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    state = raw[0]
    (received,) = struct.unpack_from("Q", raw, 128)
    (not_sent,) = struct.unpack_from("I", raw, 144)
    sent, sent_again = struct.unpack_from("QQ", raw, 200)
    # The end of a stream counts as an acknowledged byte, but not as a sent one. It comes last.
    return _Info(state, sent - sent_again + (state in _ENDED and not not_sent), received, not_sent)


def _unread_bytes(sock: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), "little")


class Sockets:
    """Sluice's sockets, by the addresses of the other end and of theirs."""

    def __init__(self) -> None:
        self._new: list[weakref.ref[socket.socket]] = []
        self._known: dict[Key, weakref.ref[socket.socket]] = {}
        self._init = sockets.Wire.__init__

    def make(self, wire: sockets.Wire, sock: socket.socket, **options: Any) -> None:
        """Make a wire, instead of ``Wire.__init__``."""
        self._init(wire, sock, **options)
        self._new.append(weakref.ref(sock))

    def _known_by_address(self) -> dict[Key, weakref.ref[socket.socket]]:
        opening = []
        for ref in self._new:
            sock = ref()
            if sock is not None and sock.fileno() != -1:
                try:
                    self._known[sock.getpeername(), sock.getsockname()] = ref
                except OSError:
                    if _info(sock).state in _OPENING:
                        opening.append(ref)
        self._new = opening
        return self._known

    @property
    def are_opening(self) -> bool:
        self._known_by_address()
        return bool(self._new)

    def have_arrived(self, key: Key, peer: socket.socket) -> bool:
        """Say whether data between a peer and Sluice has arrived, as far as there is room for it."""
        known = self._known_by_address()
        sock = known[key]() if key in known else None
        here = None if sock is None or sock.fileno() == -1 else _info(sock)
        if peer.fileno() == -1:
            return here is None or here.state == _CLOSED
        at_peer = _info(peer)
        if at_peer.state == _CLOSED:
            return True
        if sock is None or here is None:
            # Sluice has closed it, or has not accepted it.
            return at_peer.state in _HAS_END or _unread_bytes(peer) > 0
        ways = (at_peer, here, sock), (here, at_peer, peer)
        return here.state == _CLOSED or all(
            receiver.received >= sender.sent and (not sender.not_sent or _unread_bytes(of_receiver) > 0)
            for sender, receiver, of_receiver in ways
        )
