"""What scans and confirms must come to, as plainly as it can be said: every frame is looked at with everything else."""

import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from playbook import amqp_frames as frames

#: Frames that a scan looks at while a header is missing.
MAX_AHEAD: Final = 64
MAX_PROPERTIES: Final = 4096

PUBLISH: Final = (60, 40)


@dataclass
class Sent:
    """One publish that was taken."""

    channel: int
    resources: tuple[tuple[str, str], ...]
    number: int
    body: int
    size: int
    spans: list[tuple[int, int]]


@dataclass
class SlowChannel:
    """One channel: the method that waits for its header, and how much body is to come of which publish."""

    plain: bool = False
    confirms: bool = False
    published: int = 0
    method: tuple[tuple[tuple[str, str], ...], tuple[int, int]] | None = None
    rest: int = 0
    of: int | None = None
    #: The client's numbers by the broker's, of those that went on; and those that nothing was heard of.
    forwarded: list[int] = field(default_factory=list)
    unconfirmed: list[int] = field(default_factory=list)


@dataclass
class Taken:
    """What a scan took, and whose frame ends beyond the chunk."""

    stop: int
    frames: int = 0
    sent: list[Sent] = field(default_factory=list)
    cut: tuple[int, int | None] | None = None


class NotPlainError(Exception):
    """A scan leaves this frame."""


def _check(plain: bool) -> None:  # noqa: FBT001 - what is to hold
    if not plain:
        raise NotPlainError


def _short(data: bytes) -> tuple[bytes, bytes]:
    _check(len(data) > data[0] if data else False)
    return data[1 : 1 + data[0]], data[1 + data[0] :]


def _spelled(part: bytes) -> str:
    _check(all(32 <= byte < 127 for byte in part))
    return part.decode().replace("%", "%25").replace("/", "%2F")


class SlowChannels:
    """As ``sluice_native.Channels``, one frame at a time."""

    def __init__(self, before_names: str = "", frame_max: int = 131_072) -> None:
        self.before_names = before_names
        self.frame_max = frame_max
        self.routing_keys = False
        self.all: dict[int, SlowChannel] = {}

    def mark(self, channel: int) -> None:
        self.all.setdefault(channel, SlowChannel()).plain = True

    def unmark(self, channel: int) -> int:
        known = self.all.get(channel, SlowChannel())
        known.plain, rest, known.rest = False, known.rest, 0
        return rest

    def select(self, channel: int) -> None:
        self.all.setdefault(channel, SlowChannel()).confirms = True

    def forget(self, channel: int) -> None:
        self.all.pop(channel, None)

    def publish(self, channel: int) -> int:
        known = self.all.get(channel, SlowChannel())
        known.published += known.confirms
        return known.published

    def forward(self, channel: int, number: int) -> None:
        known = self.all.get(channel, SlowChannel())
        if known.confirms:
            known.forwarded.append(number)
            known.unconfirmed.append(len(known.forwarded))

    def answered(self, channel: int, number: int, *, multiple: bool) -> list[int] | None:
        known = self.all.get(channel, SlowChannel())
        sent = known.forwarded
        alike = next((at for at, each in enumerate(sent) if each != at + 1), len(sent))
        if multiple:
            settled = [each for each in known.unconfirmed if not number or each <= number]
        else:
            settled = [each for each in known.unconfirmed if each == number]
        known.unconfirmed = [each for each in known.unconfirmed if each not in settled]
        if 1 <= number <= alike and (multiple or settled):
            return None
        return [sent[each - 1] for each in settled]

    def unconfirmed(self, channel: int) -> int:
        return len(self.all.get(channel, SlowChannel()).unconfirmed)

    def scan(self, chunk: bytes, position: int, *, routing_keys: bool) -> Taken:
        """Take what a scan takes, all that came before it being undone with copies."""
        self.routing_keys = routing_keys
        best, taken = (deepcopy(self.all), Taken(position)), Taken(position)
        while taken.frames - best[1].frames <= MAX_AHEAD:
            at = taken.stop
            if len(chunk) - at < frames.AROUND_BYTES:
                break
            kind, channel, size = struct.unpack_from(">BHI", chunk, at)
            stop = at + frames.AROUND_BYTES + size
            try:
                _check(size + frames.AROUND_BYTES <= self.frame_max)
                _check(stop > len(chunk) or chunk[stop - 1 : stop] == frames.END)
                _check(stop <= len(chunk) or kind == frames.BODY)
                steps: dict[int, Callable[..., None]] = {
                    frames.METHOD: self._method,
                    frames.HEADER: self._header,
                    frames.BODY: self._body,
                }
                _check(kind in steps and channel in self.all)
                payload = chunk[at + 7 : at + 7 + size]
                steps[kind](taken, self.all[channel], (channel, at, stop), payload)
            except NotPlainError:
                break
            taken.stop, taken.frames = stop, taken.frames + 1
            if stop > len(chunk):
                taken.cut = channel, self.all[channel].of
            if not any(each.method for each in self.all.values()):
                best = deepcopy(self.all), deepcopy(taken)
        self.all, taken = best
        for each in self.all.values():
            each.of = None
        return taken

    def _method(self, taken: Taken, known: SlowChannel, where: Any, payload: bytes) -> None:
        _, at, stop = where
        _check(known.plain and not known.method and not known.rest)
        _check(len(payload) >= 6 and struct.unpack_from(">HH", payload) == PUBLISH)
        exchange, rest = _short(payload[6:])
        routing_key, rest = _short(rest)
        _check(rest in {b"\0", b"\1"})
        if not exchange:
            name = self.before_names + _spelled(routing_key)
            _check(bool(routing_key))
            resources: tuple[tuple[str, str], ...] = (("queue", name),)
        else:
            name = self.before_names + _spelled(exchange)
            resources = (("exchange", name),)
            if self.routing_keys:
                resources += (("routing_key", f"{name}/{_spelled(routing_key)}"),)
        known.method = resources, (at, stop)

    def _header(self, taken: Taken, known: SlowChannel, where: Any, payload: bytes) -> None:
        channel, at, stop = where
        _check(known.method is not None and len(payload) >= 14)
        assert known.method is not None
        class_id, weight, body, flags = struct.unpack_from(">HHQH", payload)
        properties = payload[14:]
        _check((class_id, weight, flags & 1) == (60, 0, 0) and len(properties) <= MAX_PROPERTIES)
        _check(body <= 1 << 40)
        _check(not flags & 1 << 13 or not (b"\x02CC" in properties or b"\x03BCC" in properties))
        resources, (first, end) = known.method
        known.method = None
        known.published += known.confirms
        known.rest, known.of = body, len(taken.sent)
        size = end - first + stop - at + body + -(-body // (self.frame_max - 8)) * 8
        taken.sent.append(Sent(channel, resources, known.published, body, size, [(first, end)]))
        _extend(taken.sent[-1], at, stop)

    def _body(self, taken: Taken, known: SlowChannel, where: Any, _: bytes) -> None:
        _, at, stop = where
        size = stop - at - frames.AROUND_BYTES
        _check(known.plain and known.rest > 0 and size <= known.rest)
        if known.of is not None:
            _extend(taken.sent[known.of], at, stop)
        known.rest -= size


def _extend(sent: Sent, start: int, stop: int) -> None:
    if sent.spans[-1][1] == start:
        sent.spans[-1] = (sent.spans[-1][0], stop)
    else:
        sent.spans.append((start, stop))
