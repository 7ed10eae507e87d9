"""Time limits for silent or slow clients."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.deciding.batch import Side
from proxy.net.reactor import Timer
from proxy.net.services import Services
from proxy.protocols.base import Close

if TYPE_CHECKING:
    from proxy.net.connection import Connection

#: Frames that arrive faster than this have no time limit.
MIN_FRAME_BYTES_PER_S: Final = 1024
_IDLE_CHECKS: Final = 4


class Timeouts(NamedTuple):
    handshake_s: float = 10.0
    frame_s: float = 60.0
    idle_s: float | None = None


class TimeoutChecks:
    __slots__ = ("_connection", "_frame_seen", "_frames", "_idleness", "_services", "_timeouts")

    def __init__(self, connection: "Connection", timeouts: Timeouts, services: Services) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._services = services
        self._frames: Timer | None = None
        self._idleness: Timer | None = None
        #: At the last check: where the current frame ends in the client's stream, and how many bytes had been read.
        self._frame_seen: tuple[int, int] | None = None

    def start(self, handshake: Timer | None, *, may_be_idle: bool) -> None:
        if handshake is None:
            handshake = self._check_after(self._timeouts.handshake_s, self._at_handshake)
        else:
            handshake.call = partial(self._connection.guard, self._at_handshake)
        self._frames = handshake
        if self._timeouts.idle_s is not None:
            delay_s = self._timeouts.idle_s / (_IDLE_CHECKS if may_be_idle else 1)
            self._idleness = self._check_after(delay_s, self._at_idleness)

    def stop(self) -> None:
        for timer in (self._frames, self._idleness):
            if timer is not None:
                timer.cancel()
        self._frames = self._idleness = None
        del self._connection

    def _check_after(self, delay_s: float, check: Callable[[], None]) -> Timer:
        return self._services.reactor.after(delay_s, partial(self._connection.guard, check))

    def _at_handshake(self) -> None:
        if not self._connection.bytes_read[Side.CLIENT] and self._connection.waits_for_client():
            detail = f"the client sent no data within {self._timeouts.handshake_s:g} s"
            raise Close("handshake_timeout", detail)
        self._frames = self._check_after(self._timeouts.frame_s, self._at_frame)

    def _at_frame(self) -> None:
        connection, period_s = self._connection, self._timeouts.frame_s
        read_bytes = connection.bytes_read[Side.CLIENT]
        seen, self._frame_seen = self._frame_seen, None
        missing_bytes = connection.session.missing_bytes(Side.CLIENT)
        if self._connection.waits_for_client() and connection.session.within_frame(Side.CLIENT):
            self._frame_seen = read_bytes + missing_bytes, read_bytes
            if seen is not None and seen[0] == self._frame_seen[0]:
                received_bytes = read_bytes - seen[1]
                if received_bytes < period_s * MIN_FRAME_BYTES_PER_S:
                    detail = f"only {received_bytes} bytes of an unfinished frame arrived in {period_s:g} s"
                    raise Close("frame_timeout", f"{detail}; {missing_bytes} bytes are still missing")
        self._frames = self._check_after(period_s, self._at_frame)

    def _at_idleness(self) -> None:
        connection, idle_s = self._connection, self._timeouts.idle_s
        assert idle_s is not None  # noqa: S101 - otherwise there is no timer
        silent_s = (self._services.now_ns() - (connection.read_ns or connection.opened_ns)) / 1e9
        # Held requests may take longer, and messages from departed clients have a timeout of their own.
        may_end = connection.shutdown.first is None and not connection.session.in_flight()
        if silent_s >= idle_s and may_end and connection.waits_for_client():
            raise Close("idle_timeout", f"neither peer sent any data for {idle_s:g} s")
        self._idleness = self._check_after(idle_s / _IDLE_CHECKS, self._at_idleness)
