"""The client's identity and the negotiated connection parameters."""

from typing import Final

from proxy.deciding.batch import Side
from proxy.protocols.amqp.client_info import Identity
from proxy.protocols.amqp.names import encoded
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.wire import Malformed, Reader, read_texts, reads_true

_MIN_CHANNELS: Final = 2


class ClientInfo(Identity):
    def __init__(self) -> None:
        super().__init__(b"")
        # These are 0 until negotiated.
        self.tuned_bytes = self.channel_max = self.heartbeat_s = 0
        self.own_channel = 0  # the channel reserved for replays, or 0 if there is none
        self.opened = False
        self.hears_blocked = False
        # CLIENT when the broker has sent close-ok. BROKER when it has sent close, because it may not wait for close-ok.
        self.closed_by: Side | None = None
        self._client_closes = self._withheld = False
        self._offered_channels = 0

    def take(self, method: int, arguments: Reader) -> bool:
        """Handle a method from the client. Return whether it is the first tune-ok."""
        if self.opened:
            self._take_close(Side.CLIENT, method)
        elif method == wire.CONNECTION_START_OK:
            if not self.tuned_bytes:
                self._start(arguments)
        elif method == wire.CONNECTION_TUNE_OK:
            if self.tuned_bytes:
                return False
            channels = arguments.short() or wire.MAX_CHANNEL
            self.channel_max = min(channels, self._offered_channels or wire.MAX_CHANNEL)
            max_bytes = arguments.long()
            if 0 < max_bytes <= wire.FRAME_BYTES:
                raise Malformed(
                    f"a connection.tune-ok with a frame-max of only {max_bytes} bytes; the minimum is"
                    f" {wire.FRAME_BYTES + 1}"
                )
            self.tuned_bytes = max_bytes or 1 << 32
            self.heartbeat_s = arguments.short()
            return True
        elif method == wire.CONNECTION_OPEN:
            self.vhost = self.vhost or arguments.short_string()
        else:
            self._take_close(Side.CLIENT, method)
        return False

    def withhold(self, offer: bytes) -> bytes:
        """Return the broker's tune with one channel fewer, to reserve that channel for Sluice."""
        offered = Reader(offer, 4, len(offer)).short() or wire.MAX_CHANNEL
        if offered < _MIN_CHANNELS or self.tuned_bytes:
            return offer
        self._withheld = True
        return offer[:4] + (offered - 1).to_bytes(2, "big") + offer[6:]

    def agree(self, agreement: bytes) -> bytes:
        """Return the client's tune-ok with the reserved channel added."""
        channels = Reader(agreement, 4, len(agreement)).short()
        if not self._withheld or not 0 < channels <= self._offered_channels:
            return agreement
        self.own_channel = channels + 1
        return agreement[:4] + self.own_channel.to_bytes(2, "big") + agreement[6:]

    def sender(self) -> tuple[str, str]:
        return encoded(self.vhost), encoded(self.user)

    def receive(self, method: int, arguments: Reader) -> None:
        if method == wire.CONNECTION_TUNE:
            self._offered_channels = arguments.short()
        elif method == wire.CONNECTION_OPEN_OK:
            self.opened = True
        else:
            self._take_close(Side.BROKER, method)

    def _take_close(self, side: Side, method: int) -> None:
        if method == wire.CONNECTION_CLOSE and side is Side.CLIENT:
            self._client_closes = True
        elif self.closed_by is None:
            if method == wire.CONNECTION_CLOSE:
                self.closed_by = Side.BROKER
            elif method == wire.CONNECTION_CLOSE_OK and side is Side.BROKER and self._client_closes:
                self.closed_by = Side.CLIENT

    def _start(self, arguments: Reader) -> None:
        begins = arguments.position
        said = read_texts(arguments, b"product", b"version", b"platform", b"connection_name")
        self.introduce(said.get(b"connection_name", b""), said)
        arguments.position = begins
        self.hears_blocked = reads_true(arguments, b"capabilities", b"connection.blocked")
        arguments.position = begins
        arguments.long_string()
        mechanism = arguments.short_string()
        if mechanism == b"PLAIN":
            _, _, signed = arguments.long_string().partition(b"\0")
            self.user = signed.partition(b"\0")[0][: wire.MAX_SHORT_BYTES]
        elif mechanism == b"AMQPLAIN":
            self.user = read_texts(arguments, b"LOGIN").get(b"LOGIN", b"")[: wire.MAX_SHORT_BYTES]
