"""Ends a connection when a peer leaves, a socket fails, or Sluice closes it.

After one peer ends its stream, the other may continue for a while if the protocol allows it. If a client leaves, Sluice
still forwards the messages that the client assumes were delivered. A reset from the client is treated like the end of
its stream. If the broker's socket fails, the client still gets the data that the broker sent before, because it may
explain the failure.

When Sluice closes a connection, both peers get queued data, the protocol's closing frames and the end of the stream.
Incoming data is read and dropped for a moment, because closing a socket with unread data sends a reset, which can
destroy answers that the client has not read yet.
"""

from select import EPOLLIN
from typing import TYPE_CHECKING, Final

from proxy.deciding.batch import Side
from proxy.net.peer import PeerError, PeerState
from proxy.net.reactor import Reactor, Timer

if TYPE_CHECKING:
    from proxy.net.connection import Connection

#: How long one peer may be silent after the other has ended its stream.
HALF_CLOSED_S: Final = 60.0
#: How long Sluice forwards messages that a departed client assumes were delivered. Otherwise, a very low limit could
#: keep the broker's connection open forever.
KEPT_S: Final = 600.0
#: A client counts as gone after this many half heartbeat intervals without data. RabbitMQ waits two to three intervals.
MAX_SILENT_CHECKS: Final = 6
CLOSE_TIMEOUT_S: Final = 1.0


class Shutdown:
    """Ends one connection.

    Attributes:
        close_reason: Why Sluice is closing the connection, as a metric label and a sentence. None while it is not.
        first: The side whose stream ended first. None if neither has ended.
    """

    __slots__ = (
        *("_broker_failed", "_client_failed", "_client_left_first", "_connection", "_half_closed_s", "_half_closes"),
        *("_reactor", "_received_bytes", "_silent_checks", "_timer", "close_reason", "first", "over"),
    )

    def __init__(self, connection: "Connection", reactor: Reactor, *, half_closes: bool) -> None:
        self.close_reason: tuple[str, str] | None = None
        self.over = False
        self.first: Side | None = None
        self._connection = connection
        self._reactor = reactor
        self._half_closes = half_closes
        self._half_closed_s = HALF_CLOSED_S
        self._timer: Timer | None = None
        self._broker_failed: PeerError | None = None
        self._client_failed: PeerError | None = None
        #: If True, a failure of the broker's socket is not reported as the broker's error.
        self._client_left_first = False
        #: Consecutive checks without new data, and the client's total bytes at the last check.
        self._silent_checks = self._received_bytes = 0

    def on_stream_end(self, side: Side) -> None:
        if self.close_reason is None:
            tickets = self._connection.tickets
            tickets.ends |= side is Side.CLIENT
            tickets.drop(side)
        if self.first is None:
            self.first = side
            self.extend_timeout()

    def extend_timeout(self) -> None:
        if self.first is not None and self.close_reason is None and self._broker_failed is None:
            self._abort_after(self._half_closed_s)

    def has_undelivered(self, side: Side) -> bool:
        can = side is Side.BROKER or self._broker_failed is None
        return can and self.close_reason is None and self._connection.session.has_undelivered(side)

    def keep_undelivered(self, side: Side = Side.CLIENT) -> None:
        """Keep delivering a departed client's messages or a departed broker's answers, but only for a limited time."""
        if side is Side.BROKER:
            self._connection.tickets.drop()
            self.first, self._half_closed_s = side, CLOSE_TIMEOUT_S
            self.extend_timeout()
            return
        if self._connection.session.closing is not Side.CLIENT:
            self._connection.tickets.drop(Side.CLIENT, refusable=True)
        self._half_closed_s = KEPT_S
        self._abort_after(KEPT_S)

    def on_end_forwarded(self) -> None:
        """Close if both streams have ended. Otherwise, wait for the other one, but only briefly if it may never end."""
        peers = self._connection.peers
        is_reset = self._client_failed is not None and peers[Side.CLIENT].state is PeerState.ENDED
        # A departed client's messages cannot be delivered without the broker.
        if all(peer.is_finished for peer in peers.values()):
            self.abort(*self._why())
        elif self._broker_failed is not None and self.close_reason is None:
            self.close_reason = self._why()
            self._connection.progressed()
        elif (is_reset or not self._half_closes) and self.close_reason is None:
            self._half_closed_s = CLOSE_TIMEOUT_S
            self._abort_after(CLOSE_TIMEOUT_S)

    def client_closed(self) -> None:
        if not self.over and self.close_reason is None:
            self.keep_undelivered()
            self._connection.peers[Side.CLIENT].end()

    def client_silent(self) -> None:
        if self.over or self.close_reason is not None:
            return
        client = self._connection.peers[Side.CLIENT]
        if not client.events & EPOLLIN and client.read_ahead() is None and not client.wire.ended:
            return
        unread_bytes = client.wire.unread_bytes()
        received_bytes = self._connection.bytes_read[Side.CLIENT] + unread_bytes
        self._silent_checks = self._silent_checks + 1 if received_bytes == self._received_bytes else 0
        self._received_bytes = received_bytes
        if self._silent_checks < MAX_SILENT_CHECKS:
            return
        if client.state is PeerState.READING and not client.unread_bytes:
            self.client_failed(PeerError(Side.CLIENT, TimeoutError("no heartbeats")))
            client.end_stream()
        else:
            self.client_left()

    def client_left(self) -> None:
        self._connection.session.client_left = True
        self._connection.progressed()

    def client_failed(self, error: PeerError) -> None:
        client = self._connection.peers[Side.CLIENT]
        client.stop_writing()
        if self._client_failed is None and self.close_reason is None:
            self._client_failed = error
            if client.state is PeerState.ENDED:
                self.on_end_forwarded()

    def broker_failed(self, error: PeerError) -> None:
        if self.close_reason is not None or self.over:
            return
        connection = self._connection
        broker = connection.peers[Side.BROKER]
        if self._broker_failed is None:
            self._client_left_first = self.first is Side.CLIENT
        all_read = self._broker_failed is not None or broker.state is PeerState.ENDED
        self._broker_failed = self._broker_failed or error
        if connection.session.closing is Side.CLIENT or all_read:
            self.abort(*self._why())
        else:
            connection.tickets.ends = True
            connection.tickets.drop()
            broker.stop_writing()
            self._abort_after(CLOSE_TIMEOUT_S)
            connection.progressed()

    @property
    def left_unread(self) -> int:
        """The number of unread bytes that are lost because the client has left."""
        client = self._connection.peers[Side.CLIENT]
        left = client.wire.ended or self._client_failed is not None
        return client.unread_bytes if left and client.state is not PeerState.ENDED else 0

    def close_gracefully(self, reason: str, detail: str) -> None:
        if self.close_reason is not None:
            return
        connection = self._connection
        connection.recall()
        self.close_reason = (reason, detail)
        self._abort_after(CLOSE_TIMEOUT_S)
        connection.tickets.ends = True
        connection.tickets.drop()
        connection.start_close(detail)
        for peer in connection.peers.values():
            connection.guard(peer.flush)
            connection.guard(peer.receive_closing)
        connection.progressed()

    def close_at_once(self, reason: str, detail: str) -> None:
        if self.close_reason is None and not self.over:
            self._connection.start_close(detail)
            self._connection.guard(self._connection.flush)
        self.abort(reason, detail)

    def abort(self, reason: str, detail: str) -> None:
        """Close immediately. If there is already a close reason, it is kept."""
        connection = self._connection
        connection.recall()
        if self.close_reason is None:
            self.close_reason = (reason, detail)
        if not self.over:
            self.over = True
            connection.cancel_tasks()
            connection.tickets.ends = True
            connection.tickets.drop()
            self._reactor.soon(connection.end)

    def check_drained(self) -> None:
        connection = self._connection
        client = connection.peers[Side.CLIENT]
        if self.close_reason is not None or connection.open_batches:
            return
        if connection.session.in_flight() == 0 and all(
            connection.session.between_frames(side) and not peer.busy for side, peer in connection.peers.items()
        ):
            self.close_gracefully("drained", "Sluice is shutting down, and no request was in flight")
        elif (
            self.first is None
            and not client.ended
            # A client that expects no answers would keep sending.
            and connection.close_client("Sluice is shutting down and accepts no more messages")
        ):
            client.end()

    def release(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        del self._connection

    def _abort_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.after(delay_s, self._on_timeout)

    def _on_timeout(self) -> None:
        reason, detail = self._why()
        if self._half_closes and self._broker_failed is None and self._client_failed is None:
            end = f"the {(self.first or Side.CLIENT).value} ended its stream"
            reason, detail = "half_closed", f"the connection was still open {self._half_closed_s:.0f} s after {end}"
        self.abort(reason, detail)

    def _why(self) -> tuple[str, str]:
        error = self._client_failed if self._broker_failed is None or self._client_left_first else self._broker_failed
        closing = self._connection.session.closing or (None if error is not None else self.first or Side.CLIENT)
        if closing is None:
            assert error is not None  # noqa: S101 - otherwise the closing peer is known
            return f"{error.side.value}_error", str(error)
        return f"{closing.value}_closed", f"the {closing.value} closed the connection first"
