"""What comes before the protocol: from accept until it is known who the client is.

A load balancer in front says so in a PROXY header. It is read only from peers that are trusted to tell the truth; the
bytes of everybody else are the protocol's. Nothing is read beyond the header: whoever is next finds what follows in
the socket.

Then TLS with the client begins, if it ends here. Where clients may also do without, the first byte tells them apart: no
protocol here begins as a handshake does. A handshake costs much more than turning somebody away, which is done before.

Each part is a generator, which yields the event that it waits for, and may put another wire over the one that it was
given. Whether a client that has arrived is served is ``server``'s.
"""

from collections.abc import Callable, Generator
from select import EPOLLIN
from typing import Final

from proxy.net import proxy_protocol
from proxy.net.proxy_protocol import Header, HeaderError
from proxy.net.reactor import Reactor, Watched
from proxy.net.sockets import Wire
from proxy.net.tls import ClientTls, TlsError
from proxy.protocols.base import Close

#: What a TLS record with a handshake begins with.
_HANDSHAKE: Final = b"\x16"

_Waits = Generator[int, None, None]
"""Steps of something that waits for its socket: each yields EPOLLIN or EPOLLOUT."""


class Arrival(Watched):
    """One client that arrives.

    Args:
        reactor: watches its socket.
        wire: its socket.
        peer: who is at the other end of the socket, for people.
        timeout_s: how long it may take.
        expects_header: the peer has to begin with a PROXY header.
        tls: what ends the client's TLS, if that is done here.
        on_identified: called with the PROXY header, if there is one, before anything else is done for the client; it
            raises Close for one that is not to be served.
        on_arrived: called with the client's wire when it has arrived.
        on_failed: called with what went wrong: Close, OSError if the socket failed, or a fault of ours.

    Attributes:
        wire: how the client is spoken to from now on; a part may put another one over it.
    """

    __slots__ = (
        *("_expects_header", "_on_arrived", "_on_failed", "_on_identified", "_peer", "_steps", "_timeout_s", "_timer"),
        *("_tls", "_waits_for", "wire"),
    )

    def __init__(
        self,
        reactor: Reactor,
        wire: Wire,
        peer: str,
        timeout_s: float,
        *,
        expects_header: bool,
        tls: ClientTls | None,
        on_identified: Callable[[Header | None], None],
        on_arrived: Callable[[Wire], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        super().__init__(reactor, wire.fileno())
        # A step of a handshake does, and open connections go before it.
        self.takes_long = tls is not None
        self.wire = wire
        self._peer = peer
        self._timeout_s = timeout_s
        self._expects_header = expects_header
        self._tls = tls
        self._on_identified = on_identified
        self._on_arrived = on_arrived
        self._on_failed = on_failed
        #: What the client is waited for, for people.
        self._waits_for = ""
        self._steps = self._arrive()
        self._timer = reactor.after(timeout_s, self._timed_out)

    def start(self) -> None:
        """Begin; it may be over when this returns."""
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            self.failed(error)

    def let_go(self) -> None:
        """Wait for nothing any more; the socket stays open."""
        self._timer.cancel()
        self.unwatch()
        self._steps.close()

    def readable(self) -> None:
        self._go_on()

    def writable(self) -> None:
        self._go_on()

    def failed(self, error: Exception) -> None:
        self._timer.cancel()
        self.unwatch()
        self._on_failed(error)

    def _go_on(self) -> None:
        event = next(self._steps, None)
        if event is not None:
            self.want_no_more(self.events & ~event)
            self.want(event)
            return
        self._timer.cancel()
        self.unwatch()
        self._on_arrived(self.wire)

    def _timed_out(self) -> None:
        self.failed(Close("handshake_timeout", f"no {self._waits_for} within {self._timeout_s:g} s"))

    def _arrive(self) -> _Waits:
        if self._expects_header:
            self._waits_for = "complete PROXY header"
            self._on_identified((yield from self._read_header()))
        else:
            self._on_identified(None)
        if self._tls is not None:
            yield from self._begin_tls(self._tls)

    def _begin_tls(self, tls: ClientTls) -> _Waits:
        self._waits_for = "complete TLS handshake"
        if not tls.required:
            self._waits_for = "first byte"
        while (first := self.wire.peek(1)) is None:
            yield EPOLLIN
        if not first:
            raise Close("client_closed", "closed before it sent anything")
        if first != _HANDSHAKE and not tls.required:
            return
        self._waits_for = "complete TLS handshake"
        self.wire = wire = tls.over(self.wire)
        try:
            while event := wire.handshake():
                yield event
        except TlsError as error:
            raise Close("tls", str(error.strerror)) from None

    def _read_header(self) -> Generator[int, None, Header]:
        seen = b""
        while True:
            peeked = self.wire.peek(proxy_protocol.MAX_HEADER_BYTES - len(seen))
            if peeked is None:
                yield EPOLLIN
                continue
            if not peeked:
                if seen:
                    raise Close("proxy_header_invalid", self._advise(f"it ends after {len(seen)} bytes"))
                # What a load balancer that only looks whether there is somebody does.
                raise Close("client_closed", "closed before it sent anything")
            try:
                header = proxy_protocol.parse(seen + peeked)
            except HeaderError as error:
                reason = "proxy_header_missing" if error.missing else "proxy_header_invalid"
                raise Close(reason, self._advise(str(error))) from None
            if header is not None:
                self.wire.skip(header.size_bytes - len(seen))
                return header
            # All of it belongs to the header. Left in the socket, that would count as readable for ever.
            self.wire.skip(len(peeked))
            seen += peeked

    def _advise(self, wrong: str) -> str:
        return (
            f"{self._peer} is in proxy_protocol_from and must begin each connection with a PROXY header: {wrong}. Turn"
            " it on there (HAProxy: send-proxy-v2), or take that address out of proxy_protocol_from"
        )
