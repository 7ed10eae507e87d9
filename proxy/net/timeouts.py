"""Looks after how long a client keeps its connection waiting. A look costs nothing for each frame."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.deciding.batch import Side
from proxy.net.reactor import Timer
from proxy.net.services import Services
from proxy.protocols.base import Close

if TYPE_CHECKING:
    from proxy.net.connection import Connection

#: A frame that comes as fast as this may take as long as it needs. A modem of 9600 bit/s is faster.
MIN_FRAME_BYTES_PER_S: Final = 1024
#: How often in its idle timeout a connection is looked at.
_IDLE_LOOKS: Final = 4


class Timeouts(NamedTuple):
    """How long a client may keep a connection waiting, as ``ListenerConfig`` says."""

    handshake_s: float = 10.0
    frame_s: float = 60.0
    idle_s: float | None = None


class Looks:
    """The looks at one connection."""

    __slots__ = ("_connection", "_frame_seen", "_frames", "_idleness", "_services", "_timeouts")

    def __init__(self, connection: "Connection", timeouts: Timeouts, services: Services) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._services = services
        #: When to look at its frames, or before that for its first bytes, and when at its idleness.
        self._frames: Timer | None = None
        self._idleness: Timer | None = None
        #: Where in the client's stream the frame ends that was in hand at the last look; and how much was read by then.
        self._frame_seen: tuple[int, int] | None = None

    def start(self, handshake: Timer | None, *, may_be_idle: bool) -> None:
        """Look from now on.

        Args:
            handshake: the timer of a connection that has waited for its client before.
            may_be_idle: the compiled part has served it, so it may be idle already.
        """
        if handshake is None:
            handshake = self._look_in(self._timeouts.handshake_s, self._at_handshake)
        else:
            handshake.call = partial(self._connection.guard, self._at_handshake)
        self._frames = handshake
        if self._timeouts.idle_s is not None:
            delay_s = self._timeouts.idle_s / (_IDLE_LOOKS if may_be_idle else 1)
            self._idleness = self._look_in(delay_s, self._at_idleness)

    def stop(self) -> None:
        """Look no more, and let go of the connection."""
        for timer in (self._frames, self._idleness):
            if timer is not None:
                timer.cancel()
        self._frames = self._idleness = None
        del self._connection

    def _look_in(self, delay_s: float, look: Callable[[], None]) -> Timer:
        return self._services.reactor.after(delay_s, partial(self._connection.guard, look))

    def _at_handshake(self) -> None:
        """End the connection if its client has said nothing yet; then look after its frames."""
        if not self._connection.bytes_read[Side.CLIENT] and self._connection.waits_for_client():
            detail = f"nothing came within {self._timeouts.handshake_s:g} s of the connection"
            raise Close("handshake_timeout", detail)
        self._frames = self._look_in(self._timeouts.frame_s, self._at_frame)

    def _at_frame(self) -> None:
        """End the connection if the frame in hand is still that of the last look and hardly any of it has come since.

        A frame is known by where it ends.
        """
        connection, period_s = self._connection, self._timeouts.frame_s
        read_bytes = connection.bytes_read[Side.CLIENT]
        seen, self._frame_seen = self._frame_seen, None
        missing_bytes = connection.session.missing_bytes(Side.CLIENT)
        if self._connection.waits_for_client() and connection.session.within_frame(Side.CLIENT):
            self._frame_seen = read_bytes + missing_bytes, read_bytes
            if seen is not None and seen[0] == self._frame_seen[0]:
                came_bytes = read_bytes - seen[1]
                if came_bytes < period_s * MIN_FRAME_BYTES_PER_S:
                    detail = f"of an unfinished frame {came_bytes} bytes came in {period_s:g} s"
                    raise Close("frame_timeout", f"{detail}; {missing_bytes} are missing")
        self._frames = self._look_in(period_s, self._at_frame)

    def _at_idleness(self) -> None:
        """End the connection if neither peer has said anything for long, and nothing is on its way."""
        connection, idle_s = self._connection, self._timeouts.idle_s
        assert idle_s is not None  # noqa: S101 - it is not looked at otherwise
        silent_s = (self._services.now_ns() - (connection.read_ns or connection.opened_ns)) / 1e9
        # What is held of a client may take longer, and what it left behind has a bound of its own.
        may_end = connection.ending.first is None and not connection.session.in_flight()
        if silent_s >= idle_s and may_end and connection.waits_for_client():
            raise Close("idle_timeout", f"nothing came from either side for {idle_s:g} s")
        self._idleness = self._look_in(idle_s / _IDLE_LOOKS, self._at_idleness)
