"""Handles a new client before its protocol starts: first the PROXY header, then the TLS handshake.

Only trusted peers may send a PROXY header. Bytes after it stay in the socket. If TLS is optional, the client's first
byte shows whether the client uses it. Clients are rejected before the TLS handshake, because it is expensive.
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

_HANDSHAKE: Final = b"\x16"

#: Yields the epoll events to wait for.
_Waits = Generator[int, None, None]


class Arrival(Watched):
    """A new client whose PROXY header and TLS handshake are not complete yet.

    Args:
        on_identified: Called before the TLS handshake with the PROXY header, if any. Raises Close to reject the client.
        on_failed: Called with Close if the client was rejected, OSError if its socket failed, or an unexpected error.
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
        # TLS handshakes must not delay open connections.
        self.takes_long = tls is not None
        self.wire = wire
        self._peer = peer
        self._timeout_s = timeout_s
        self._expects_header = expects_header
        self._tls = tls
        self._on_identified = on_identified
        self._on_arrived = on_arrived
        self._on_failed = on_failed
        self._waits_for = ""
        self._steps = self._arrive()
        self._timer = reactor.after(timeout_s, self._timed_out)

    def start(self) -> None:
        """Start reading. May invoke callbacks before returning."""
        try:
            self._resume()
        except Exception as error:  # noqa: BLE001 - the reactor does the same
            self.failed(error)

    def release(self) -> None:
        self._timer.cancel()
        self.unwatch()
        self._steps.close()

    def readable(self) -> None:
        self._resume()

    def writable(self) -> None:
        self._resume()

    def failed(self, error: Exception) -> None:
        self._timer.cancel()
        self.unwatch()
        self._on_failed(error)

    def _resume(self) -> None:
        event = next(self._steps, None)
        if event is not None:
            self.remove_interest(self.events & ~event)
            self.add_interest(event)
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
            self._waits_for = "data from the client"
        while (first := self.wire.peek(1)) is None:
            yield EPOLLIN
        if not first:
            raise Close("client_closed", "the client closed the connection before sending any data")
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
                    raise Close(
                        "proxy_header_invalid", self._advise(f"the connection was closed after {len(seen)} bytes")
                    )
                # A load balancer's TCP health check looks like this.
                raise Close("client_closed", "the client closed the connection before sending any data")
            try:
                header = proxy_protocol.parse(seen + peeked)
            except HeaderError as error:
                reason = "proxy_header_missing" if error.missing else "proxy_header_invalid"
                raise Close(reason, self._advise(str(error))) from None
            if header is not None:
                self.wire.skip(header.size_bytes - len(seen))
                return header
            # Consume the incomplete header. Otherwise, the socket would stay readable.
            self.wire.skip(len(peeked))
            seen += peeked

    def _advise(self, wrong: str) -> str:
        return (
            f"{self._peer} is in proxy_protocol_from but sent no valid PROXY header: {wrong}."
            " Enable the PROXY protocol on the load balancer (HAProxy: send-proxy-v2), or remove the address from"
            " proxy_protocol_from"
        )
