"""What a scan of AMQP 1.0 must come to, as plainly as it can be said: each frame is decoded to its last value."""

import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from playbook.amqp10_values import DISPOSITION, TRANSFER, Described, Reader, Typed, UnreadableError

HALF = 1 << 31
NUMBERS = 1 << 32
_PLAIN_TRANSFER = (
    "uint",
    "uint",
    "binary",
    "uint",
    "boolean",
    "boolean",
    "ubyte",
    None,
    "boolean",
    "boolean",
    "boolean",
)
_PLAIN_DISPOSITION = ("boolean", "uint", "uint", "boolean", "described", "boolean")


class NotPlainError(Exception):
    """A scan leaves this frame."""


class Terms(NamedTuple):
    """As ``Links.mark`` is told them."""

    most_bytes: int | None = None
    copies: bool = False


@dataclass
class Taken:
    """As ``Links.scan`` returns it, but for ids of deliveries that are not settled, which are here one by one."""

    stop: int
    frames: int = 0
    deliveries: dict[tuple[int, int], int] = field(default_factory=dict)
    size_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
    begun: dict[int, tuple[int, int, list[int]]] = field(default_factory=dict)
    disposed: dict[tuple[int, bool, bool], list[tuple[int, int]]] = field(default_factory=dict)


class SlowLinks:
    """As ``sluice_native.Links``."""

    def __init__(self, copies_key: bytes) -> None:
        self.copies_key = copies_key
        self.most_frame_bytes = NUMBERS
        self.sessions: dict[int, bool] = {}
        self.links: dict[tuple[int, int], Terms] = {}

    def begin(self, channel: int) -> None:
        self.sessions[channel] = True

    def leave(self, channel: int) -> None:
        self.sessions.pop(channel, None)

    def end(self, channel: int) -> None:
        self.sessions.pop(channel, None)
        self.links = {key: terms for key, terms in self.links.items() if key[0] != channel}

    def mark(self, channel: int, handle: int, most_bytes: int | None = None, copies: bool = False) -> None:  # noqa: FBT001, FBT002 - as there
        self.links[channel, handle] = Terms(most_bytes, copies)

    def unmark(self, channel: int, handle: int) -> None:
        self.links.pop((channel, handle), None)

    def scan(self, chunk: bytes, position: int) -> Taken:
        """Take frame by frame."""
        taken = Taken(position)
        while True:
            at = taken.stop
            if len(chunk) - at < 8:
                return taken
            size, doff, kind, channel = struct.unpack_from(">IBBH", chunk, at)
            if size > len(chunk) - at or size < 8 or (doff, kind) != (2, 0) or size > self.most_frame_bytes:
                return taken
            try:
                if size > 8:
                    self._take(taken, channel, chunk[at + 8 : at + size])
            except (NotPlainError, UnreadableError):
                return taken
            taken.stop, taken.frames = at + size, taken.frames + 1

    def _take(self, taken: Taken, channel: int, body: bytes) -> None:
        # What a state says is not looked at.
        reader = Reader(body, 1)
        _check(body[:2] == b"\0\x53")
        performative = reader.value()
        payload = body[reader.at :]
        _check(isinstance(performative.value, list) and channel in self.sessions)
        if performative.descriptor == ("ulong", TRANSFER):
            fields = _fields(performative.value, _PLAIN_TRANSFER)
            handle, delivery_id, _, _, settled, more, _, _, resume, aborted, _ = fields
            _check(handle is not None and delivery_id is not None and not more and not resume and not aborted)
            _check((channel, handle) in self.links)
            terms = self.links[channel, handle]
            _check(terms.most_bytes is None or len(body) + 8 <= terms.most_bytes)
            _check(not terms.copies or not _may_annotate(payload, self.copies_key))
            first, last, unsettled = taken.begun.get(channel, (delivery_id, delivery_id - 1, []))
            _check(delivery_id == (last + 1) % NUMBERS)
            taken.begun[channel] = first, delivery_id, unsettled
            key = channel, handle
            taken.deliveries[key] = taken.deliveries.get(key, 0) + 1
            taken.size_bytes[key] = taken.size_bytes.get(key, 0) + len(body) + 8
            if not settled:
                unsettled.append(delivery_id)
        elif performative.descriptor == ("ulong", DISPOSITION):
            _check(not payload)
            receiver, first, last, settled, _, _ = _fields(performative.value, _PLAIN_DISPOSITION)
            _check(receiver is not None and first is not None)
            last = first if last is None else last
            _check((last - first) % NUMBERS < HALF)
            taken.disposed.setdefault((channel, receiver, bool(settled)), []).append((first, last))
        else:
            raise NotPlainError


def _check(plain: bool) -> None:  # noqa: FBT001 - what is to hold
    if not plain:
        raise NotPlainError


def _fields(values: list[Any], types: tuple[str | None, ...]) -> list[Any]:
    _check(len(values) <= len(types))
    fields = []
    for value, type_ in zip(values + [None] * (len(types) - len(values)), types, strict=True):
        if isinstance(value, Described):
            _check(type_ == "described" and value.small and isinstance(value.value, list))
        else:
            _check(value is None or (isinstance(value, Typed) and value.type == type_))
        fields.append(value.value if isinstance(value, Typed) else value)
    return fields


_SIZE_OF_SIZE = {0x45: 0, 0xA0: 1, 0xA1: 1, 0xC0: 1, 0xC1: 1, 0xB0: 4, 0xB1: 4, 0xD0: 4, 0xD1: 4}


def _may_annotate(payload: bytes, key: bytes) -> bool:
    while payload:
        if payload[:2] != b"\0\x53" or len(payload) < 4 or payload[3] not in _SIZE_OF_SIZE:
            return True
        begins = 4 + _SIZE_OF_SIZE[payload[3]]
        ends = begins + int.from_bytes(payload[4:begins])
        if max(begins, ends) > len(payload) or (payload[2] == 0x72 and key in payload[begins:ends]):
            return True
        payload = payload[ends:]
    return False
