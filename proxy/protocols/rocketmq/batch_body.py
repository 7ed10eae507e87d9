"""Batch bodies: several messages in the body of one send.

A batch body is ``i32 totalSize, i32 magic 0, i32 crc 0, i32 flag, i32 bodyLen, body, i16 propLen, properties``,
repeated. ``BatchCounter`` counts the messages of a body that arrives in pieces; the rest makes and reads whole
bodies for the embedded broker and the tests. Message properties, a string of ``name 0x01 value 0x02``, are
here as well.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from proxy.batch import Charge, Request
from proxy.protocols.rocketmq.errors import LocalProtocolError, RemoteProtocolError

_HEAD: Final = struct.Struct(">iiiii")  # totalSize, magic, crc, flag, bodyLen
_head_at = _HEAD.unpack_from
_HEAD_BYTES: Final = _HEAD.size
_I16: Final = struct.Struct(">h")
_i16_at = _I16.unpack_from
#: A message with neither body nor properties.
MIN_MESSAGE_BYTES: Final = _HEAD_BYTES + 2
#: The length of the properties is an i16.
MAX_PROPERTIES_BYTES: Final = 32_767


class BatchMessage(msgspec.Struct, frozen=True):
    """One message of a batch.

    Attributes:
        body: as the producer gave it; batches are not compressed.
        properties: its properties as they travel, see ``decode_properties``.
        flag: the application's own 32 bits.
    """

    body: bytes
    properties: str = ""
    flag: int = 0


class BatchCounter:
    """Counts the messages of one batch body, however it is cut into pieces.

    The broker takes the messages apart by the lengths of their body and properties and ignores totalSize (for
    topics of the batch-queue type it is the other way round), so counting by one of them could be fooled. A
    message whose lengths do not add up makes the body malformed: from its start on every 22 bytes count as a
    message, the smallest there is, which is never too few. A message that is longer than what follows of the
    body counts as one; the broker refuses such a body altogether.

    Args:
        doubtful_bytes: the body's length if nobody knows whether it is a batch, else 0. A doubtful body counts as
            one message if its first 20 bytes show that the broker could take it apart in neither way.

    Attributes:
        count: messages begun so far; one counts as soon as its first 20 bytes have come. It never falls.
        malformed: some lengths did not add up.
    """

    __slots__ = (
        "_body_bytes",
        "_doubtful_bytes",
        "_in_head",
        "_part",
        "_properties_bytes",
        "_skip",
        "_spare",
        "count",
        "malformed",
    )

    def __init__(self, *, doubtful_bytes: int = 0) -> None:
        self.count = 0
        self.malformed = False
        self._doubtful_bytes = doubtful_bytes
        #: Whether a message's first 20 bytes come next, or the length of its properties.
        self._in_head = True
        #: The beginning of whichever comes next, when a piece ended in it.
        self._part = b""
        #: Bytes of body or properties still to be skipped.
        self._skip = 0
        #: Of the message in hand: the length of its body, and what totalSize leaves for its properties.
        self._body_bytes = 0
        self._properties_bytes = 0
        #: Bytes of a malformed body not counted yet, fewer than a message's.
        self._spare = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next piece of the body; it may be empty."""
        size = len(data)
        at = self._count_whole(data)
        while not self.malformed:
            if self._skip:
                step = min(self._skip, size - at)
                self._skip -= step
                at += step
                if self._skip:
                    return
            wanted = (_HEAD_BYTES if self._in_head else 2) - len(self._part)
            if size - at < wanted:
                self._part += bytes(data[at:])
                return
            if self._part:
                part, self._part = self._part + bytes(data[at : at + wanted]), b""
                self._step(part, 0)
            else:
                self._step(data, at)
            at += wanted
        self._count_bytes(size - at)

    def _count_whole(self, data: bytes | memoryview) -> int:
        """Count the sound messages that ``data`` begins with and holds wholly; returns where they end.

        This is what nearly all batches consist of, at a third of the price.
        """
        at = 0
        if not self._in_head or self._skip or self._part or self.malformed:
            return at
        size = len(data)
        while size - at >= MIN_MESSAGE_BYTES:
            total_bytes, _, _, _, body_bytes = _head_at(data, at)
            properties_bytes = total_bytes - MIN_MESSAGE_BYTES - body_bytes
            if body_bytes < 0 or properties_bytes < 0 or total_bytes > size - at:
                break
            if _i16_at(data, at + _HEAD_BYTES + body_bytes)[0] != properties_bytes:
                break
            self.count += 1
            at += total_bytes
        return at

    def _step(self, data: bytes | memoryview, at: int) -> None:
        """Read whichever lengths come next; they are complete."""
        if self._in_head:
            total_bytes, _, _, _, body_bytes = _head_at(data, at)
            self.count += 1
            self._in_head = False
            self._skip = self._body_bytes = body_bytes
            self._properties_bytes = total_bytes - MIN_MESSAGE_BYTES - body_bytes
            if body_bytes < 0 or not 0 <= self._properties_bytes <= MAX_PROPERTIES_BYTES:
                room = self._doubtful_bytes
                fits = 0 <= body_bytes <= room - MIN_MESSAGE_BYTES or MIN_MESSAGE_BYTES <= total_bytes <= room
                if room and self.count == 1 and not fits:
                    self._skip = room  # no batch: all that follows belongs to this one message
                else:
                    self._give_up(_HEAD_BYTES)
        else:
            (properties_bytes,) = _i16_at(data, at)
            self._in_head = True
            self._skip = properties_bytes
            if properties_bytes != self._properties_bytes:
                self._give_up(MIN_MESSAGE_BYTES + self._body_bytes)

    def _give_up(self, message_bytes: int) -> None:
        """Go on by bytes; ``message_bytes`` of the message that was counted last have been passed."""
        self.malformed = True
        self.count -= 1
        self._count_bytes(message_bytes)
        if message_bytes < MIN_MESSAGE_BYTES:
            self.count += 1
            self._spare = 0

    def _count_bytes(self, passed_bytes: int) -> None:
        messages, self._spare = divmod(self._spare + passed_bytes, MIN_MESSAGE_BYTES)
        self.count += messages


class BatchComing(msgspec.Struct, gc=False):
    """A batch whose body is still coming.

    Attributes:
        counter: is shown the body.
        request: what it is charged to.
    """

    counter: BatchCounter
    request: Request

    def late(self) -> Charge | None:
        """Return what the batch costs beyond what it was decided by, once its body has come."""
        request, count = self.request, self.counter.count
        if count <= request.messages:
            return None
        return Charge(request.resources, count - request.messages, producer_group=request.producer_group)


def count_messages(body: bytes | memoryview) -> int:
    """Return how many messages a complete batch body holds, as BatchCounter counts."""
    counter = BatchCounter()
    counter.feed(body)
    return counter.count


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """Return the batch body that holds these messages.

    Raises:
        LocalProtocolError: the properties of one are longer than 32 767 bytes.
    """
    parts: list[bytes] = []
    for message in messages:
        properties = message.properties.encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise LocalProtocolError("bad_batch", f"{len(properties)} bytes of properties do not fit a message")
        total_bytes = MIN_MESSAGE_BYTES + len(message.body) + len(properties)
        parts += (
            _HEAD.pack(total_bytes, 0, 0, message.flag, len(message.body)),
            message.body,
            _I16.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(body: bytes) -> Iterator[BatchMessage]:
    """Yield the messages of a batch body.

    Raises:
        RemoteProtocolError: when it comes to a message whose lengths do not add up or overrun the body.
    """
    at = 0
    while at < len(body):
        try:
            total_bytes, _, _, flag, body_bytes = _head_at(body, at)
            body_at = at + _HEAD_BYTES
            if body_bytes < 0:
                raise _bad_message(at)
            (properties_bytes,) = _i16_at(body, body_at + body_bytes)
        except struct.error:
            raise _bad_message(at) from None
        properties_at = body_at + body_bytes + 2
        end = properties_at + properties_bytes
        if properties_bytes < 0 or end != at + total_bytes or end > len(body):
            raise _bad_message(at)
        properties = body[properties_at:end].decode(errors="replace")
        yield BatchMessage(body[body_at : body_at + body_bytes], properties, flag)
        at = end


def _bad_message(at: int) -> RemoteProtocolError:
    return RemoteProtocolError("bad_batch", f"the lengths of the batch's message at offset {at} do not add up")


# --- Message properties ---------------------------------------------------------------------------

_NAME_END: Final = "\x01"
_VALUE_END: Final = "\x02"


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return properties as they travel.

    Raises:
        LocalProtocolError: a name or value holds one of the two separators.
    """
    for text in (*properties.keys(), *properties.values()):
        if _NAME_END in text or _VALUE_END in text:
            raise LocalProtocolError("bad_properties", f"{text!r} holds a separator of the properties string")
    return "".join(f"{name}{_NAME_END}{value}{_VALUE_END}" for name, value in properties.items())


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties in ``text``; like the broker, skip what has no name and value, and let the last win."""
    properties: dict[str, str] = {}
    for item in text.split(_VALUE_END):
        name, separator, value = item.partition(_NAME_END)
        if separator:
            properties[name] = value
    return properties
