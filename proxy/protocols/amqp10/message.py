"""Reads the head of a message: its address, and the routing keys of its copies (``x-cc``)."""

from typing import Final

from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.wire import CutOff, Malformed
from proxy.protocols.base import Buffer

MAX_HEAD_BYTES: Final = 1 << 16
MAX_COPIES: Final = 256
COPIES: Final = b"x-cc"
_TO, _SUBJECT = 2, 3


def may_name_copies(payload: Buffer) -> bool:
    return COPIES in (payload if isinstance(payload, bytes) else bytes(payload[:MAX_HEAD_BYTES]))


class MessageHead:
    """Reads the sections that precede a message's body, frame by frame.

    Unknown, repeated or misplaced sections (3.2) are malformed, because a broker might interpret them differently.
    """

    def __init__(self) -> None:
        self.known = False
        self.to: bytes | None = None
        self.subject: bytes | None = None
        self.copies: tuple[bytes, ...] = ()
        self._latest = 0
        self._passed_bytes = 0
        self._rest = bytearray()
        self._wanted_bytes = 0

    def take(self, payload: Buffer, *, last: bool) -> bool:
        """Read the payload of the next frame. Return whether the head is complete.

        Raises:
            Malformed: The head is invalid, is longer than MAX_HEAD_BYTES, or lists more than MAX_COPIES routing keys.
        """
        known = self.known
        if known:
            return True
        kept = len(self._rest)
        data: Buffer | bytearray = payload
        if kept:
            self._rest += payload[: MAX_HEAD_BYTES + 1 - kept]
            data = self._rest
            last = last and len(data) == kept + len(payload)
        read = 0
        if last or len(data) >= self._wanted_bytes:
            self._wanted_bytes = 0
            read = self._sections(data, last=last)
            if self.known or last:
                self.known = True
                self._rest = bytearray()
                return True
        self._passed_bytes += read
        if self._passed_bytes + len(data) - read > MAX_HEAD_BYTES:
            raise Malformed(f"a message without a target address in its first {MAX_HEAD_BYTES} bytes")
        if not kept:
            self._rest = bytearray(data[read:])
        elif read:
            del self._rest[:read]
        return False

    def _sections(self, data: Buffer | bytearray, *, last: bool) -> int:
        at, stop = 0, len(data)
        try:
            while at < stop and not self.known:
                at = self._section(data, at, stop)
        except CutOff:
            if last:
                raise
        return at

    def _section(self, data: Buffer | bytearray, at: int, stop: int) -> int:
        if data[at]:
            raise Malformed(f"a value of type 0x{data[at]:02x} instead of a message section")
        code, begins = wire.descriptor(data, at + 1, stop)
        if code not in wire.SECTIONS or code <= self._latest:
            raise Malformed(
                f"a message section that is unknown or out of order: 0x{max(code, 0):02x} after 0x{self._latest:02x}"
            )
        if code > wire.PROPERTIES:
            self.known = True
            return at
        ends = wire.ends(data, begins, stop)
        if ends > stop:
            self._wanted_bytes = ends - at
            raise CutOff(f"a truncated message section of {ends - at} bytes")
        self._latest = code
        if code == wire.MESSAGE_ANNOTATIONS:
            self._read_annotations(bytes(data[begins:ends]))
        elif code == wire.PROPERTIES:
            properties = wire.described(bytes(data[at:ends]))
            if properties is not None:
                self.to, self.subject = properties.octets(_TO), properties.octets(_SUBJECT)
            self.known = True
        return ends

    def _read_annotations(self, annotations: bytes) -> None:
        if COPIES not in annotations:
            return
        copies: dict[bytes, None] = {}
        for key, value in wire.pairs(annotations):
            if wire.octets(key) == COPIES:
                copies |= dict.fromkeys(each for each in map(wire.octets, wire.values(value)) if each is not None)
        if len(copies) > MAX_COPIES:
            raise Malformed(f"a message with {len(copies)} addresses in x-cc; the maximum is {MAX_COPIES}")
        self.copies = tuple(copies)
