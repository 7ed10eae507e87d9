"""Random schedules of AMQP 0.9.1 connections, for ``both_ways``."""

import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from both_ways import BROKER, CLIENT
from playbook import talks
from playbook.talks import NAMES, Talk, play, rules_of

from limiter.rules.rule import Rule
from proxy.protocols.amqp091.session import AMQP091Options

from . import frames

_RULES: Final = rules_of(
    "queue",
    {
        "all or nothing": (
            lambda: Rule("exchange", "e", 0),
            lambda: Rule("routing_key", "e/few", 0),
            lambda: Rule("user", "other", 0),
            lambda: Rule("delivery", "none", 0),
            lambda: Rule("delivery", "*", None),
        ),
        "by name": (
            lambda: Rule("exchange", "e", 5),
            lambda: Rule("exchange", "f", 2, action="delay", max_delay_s=600),
            lambda: Rule("delivery", "slow", 3),
            lambda: Rule("delivery", "*", 1000),
        ),
        "one by one": (
            lambda: Rule("exchange", "f", 2, action="delay"),
            lambda: Rule("routing_key", "e/*", 3),
            lambda: Rule("routing_key", "f/bytes", None, bytes_per_s=300),
            lambda: Rule("exchange", "*", 6, shared=True),
            lambda: Rule("user", "guest", 7),
        ),
    },
)
_KINDS: Final = (1, 2, 3, 8)
_BEGIN_CONTENTS: Final = {struct.pack(">HH", 60, method) for method in (40, 50, 60, 71)}
# Methods behind which nothing waits.
_PASSES: Final = {struct.pack(">HH", 60, method) for method in (10, 20, 30, 40, 80, 90, 100, 110, 120)}
# A broker's answers to methods, on their channel.
_ANSWERS: Final[dict[tuple[int, int], Callable[[int], bytes]]] = {
    (10, 40): lambda _: frames.open_ok(),
    (20, 10): lambda channel: frames.method(channel, 20, 11, frames.long("")),
    (20, 20): lambda channel: frames.method(channel, 20, 21, b"\1"),
    (20, 40): frames.close_ok,
    (10, 50): frames.close_ok,
    (50, 10): lambda channel: frames.declare_ok(channel, "free"),
    (60, 10): lambda channel: frames.method(channel, 60, 11),
    (60, 20): lambda channel: frames.consume_ok(channel, "c"),
    (60, 30): lambda channel: frames.cancel_ok(channel, "c"),
    (60, 70): lambda channel: frames.method(channel, 60, 72, frames.short("")),
    (60, 110): lambda channel: frames.method(channel, 60, 111),
    (85, 10): lambda channel: frames.method(channel, 85, 11),
    (90, 10): lambda channel: frames.method(channel, 90, 11),
    (90, 20): lambda channel: frames.method(channel, 90, 21),
}


class AMQPTalk(Talk):
    """``channels``: the client's open ones, and whether they have confirms."""

    KIND = "queue"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.channels: dict[int, bool] = {}
        self._heard = bytearray()
        self._garbled = False
        # The broker's pending answers. By channel, the publishes that it must confirm, and the last one.
        self._due: list[bytes] = []
        self._unconfirmed: dict[int, list[int]] = {}
        self._published: dict[int, int] = {}
        #: Bytes left of a publish. None before its header.
        self._contents: dict[int, int | None] = {}
        self._delivered = 0
        # The beginning of a frame that the client has sent.
        self._begun = b""

    async def begin(self) -> None:
        random = self.random
        heartbeat_s = random.choice((0, 0, 10))
        first = frames.greeting(heartbeat_s=heartbeat_s, user=random.choice(("guest", "guest", "other")))
        welcome = frames.start() + frames.tune(2047, heartbeat_s=heartbeat_s)
        channels = b"".join(self._open(channel) for channel in random.sample(range(1, 6), random.randint(1, 3)))
        if random.random() < 0.2:
            self.unsaid = {CLIENT: first + channels, BROKER: welcome}
            return
        await self.say(CLIENT, first)
        await self.say(BROKER, welcome)
        await self._answer()
        await self.say(CLIENT, channels)
        await self._answer()

    async def _answer(self) -> None:
        self.receive()
        await self.say(BROKER, b"".join(self._due))
        self._due.clear()

    def piece(self, side: Any) -> bytes:
        said = super().piece(side)
        if side is CLIENT:
            stop = self._stop(said)
            said, self.unsaid[side] = said[:stop], said[stop:] + self.unsaid[side]
        return said

    def _stop(self, said: bytes) -> int:
        """Return how much of a piece may come in one chunk.

        Behind a waiting publish, a method stops the rest. In the same chunk, the rest is decided before that is known.
        """
        begun, said = len(self._begun), self._begun + said
        at = len(frames.HEADER) if said.startswith(frames.HEADER) else 0
        stop = len(said)
        while stop - at >= 8:
            kind, _, length = struct.unpack_from(">BHI", said, at)
            if at + length + 8 > stop:
                break
            at += length + 8
            waits = self.flavour == "by name" or not all(self.channels.values())
            if waits and kind == 1 and said[at - length - 1 : at - length + 3] not in _PASSES:
                stop = at
        self._begun = said[at:stop]
        return stop - begun

    async def before_edit(self) -> None:
        # The compiled extension reads a content's method once its header is there.
        for side in (CLIENT, BROKER):
            while self.unsaid[side]:
                await self.say(side, self.piece(side))

    async def look(self) -> None:
        # The compiled extension does not count a frame that it keeps until a header is there.
        await self.both.recall()
        await super().look()

    def beat(self) -> bytes:
        return frames.HEARTBEAT

    def _open(self, channel: int) -> bytes:
        self.channels[channel] = confirms = self.random.random() < 0.6
        return frames.channel_open(channel) + (frames.confirm_select(channel) if confirms else b"")

    def _channel(self) -> int:
        return self.random.choice([*self.channels, *self.channels, 1])

    def _plain(self) -> list[bytes]:
        random = self.random
        exchange, key, channel = random.choice(("", "", "", "e", "f")), random.choice(NAMES), self._channel()
        if self.flavour == "by name":
            # With several channels, each is decided separately.
            key = "orders" if exchange else key
            channel = sorted(self.channels)[sum((exchange or key).encode()) % len(self.channels)]
        size = random.choice((0, 5, 300, random.randint(0, 9_000)))
        return frames.publish(channel, exchange, key, bytes(size), body_bytes=random.choice((100, 4000)))

    def _settled(self) -> list[bytes]:
        random, channel, tag = self.random, self._channel(), self.random.randint(0, self._delivered + 1)
        multiple = random.random() < 0.3
        return [
            random.choice(
                (
                    frames.ack(channel, tag, multiple=multiple),
                    frames.ack(channel, tag, multiple=multiple),
                    frames.give_back(channel, tag, multiple=multiple),
                    frames.reject(channel, tag, requeue=multiple),
                    self.beat(),
                )
            )
        ]

    def _special(self) -> list[bytes]:
        """Return frames that the session reads."""
        random, channel = self.random, self._channel()
        kind = random.randrange(12)
        if kind == 0:
            self.channels.pop(channel, None)
            self.channels = self.channels or {7: False}
            return [frames.close(channel)]
        if kind == 1:
            return [self._open(random.randint(1, 7))]
        if kind == 2:
            headers = {random.choice(("x", "CC", "BCC")): [random.choice(NAMES)]}
            return frames.publish(channel, "", "free", b"body", headers=headers)
        if kind == 3:
            key = random.choice(NAMES)
            return [frames.durable(channel, key, bytes(random.choice((0, 5000))), mandatory=random.random() < 0.5)]
        others = (
            frames.declare(channel, "free"),
            random.choice((frames.consume, frames.subscribe))(channel, random.choice(NAMES), "c"),
            frames.cancel(channel, "c"),
            frames.get(channel, "free"),
            frames.recover(channel),
            frames.method(channel, 60, 10, bytes(7)),
            frames.confirm_select(channel),
            frames.method(channel, 90, 10 if random.random() < 0.3 else 20),
        )
        return [others[kind - 4]]

    def _garbage(self) -> bytes:
        return self.random.choice(
            (
                self.random.randbytes(self.random.randint(1, 40)),
                # The compiled extension reads a publish once its header is there.
                frames.frame(1, 1, b"\0\x3c\0\x28\0\0\xff") + frames.frame(2, 1, bytes(14)),
                frames.frame(2, 1, bytes(14)),
                frames.frame(3, 1, b"x"),
                frames.frame(8, 0, b"")[:-1] + b"\0",
                struct.pack(">BHI", 3, 1, 1 << 20),
                frames.frame(7, 1, b""),
                frames.close(0),
                frames.HEADER,
            )
        )

    def compose(self, side: Any) -> None:
        random = self.random
        if side is CLIENT:
            makes = [self._plain, self._plain, self._settled, self._plain if random.random() < 0.8 else self._special]
            if self.flavour == "one by one":
                self.unsaid[side] = self.unsaid[side] or b"".join(random.choice(makes)())
                return
            contents = [random.choice(makes)() for _ in range(random.choice((0, 1, 1, 2, 3, 8, 30)))]
        else:
            self.receive()
            count = random.choice((0, 1, len(self._due)))
            self.unsaid[side] += b"".join(self._due[:count])
            del self._due[:count]
            contents = [self._said_by_broker() for _ in range(random.choice((0, 1, 2, 2, 8)))]
        self.unsaid[side] += frames.mixed(random, contents)
        if random.random() < 0.005:
            self.unsaid[side] += self._garbage()

    def _said_by_broker(self) -> list[bytes]:
        random, kind = self.random, self.random.random()
        waiting = [channel for channel, numbers in self._unconfirmed.items() if numbers]
        if kind < 0.5 and waiting:
            return [self._confirm(random.choice(waiting))]
        channel, body = self._channel(), bytes(random.choice((0, 3, 2000, 9000)))
        if kind < 0.85:
            self._delivered += 1
            return frames.deliver(channel, self._delivered, body)
        if kind < 0.9:
            return frames.returned(channel, body)
        if kind < 0.98:
            return [self.beat()]
        if kind < 0.99:
            return [frames.close(channel, 404, "NOT_FOUND")]
        return [random.choice((frames.blocked("memory"), frames.unblocked(), frames.ack(1, random.randint(0, 30))))]

    def _confirm(self, channel: int) -> bytes:
        random, numbers = self.random, self._unconfirmed[channel]
        make = random.choice((frames.ack, frames.ack, frames.ack, frames.nack))
        if random.random() < 0.4:
            index = random.randrange(len(numbers))
            self._unconfirmed[channel] = numbers[index + 1 :]
            return make(channel, numbers[index], multiple=True)
        return make(channel, numbers.pop(random.choice((0, random.randrange(len(numbers))))))

    # --- The broker's side --------------------------------------------------------------------

    def receive(self) -> None:
        """Record the answers that the broker must send."""
        heard = self._heard
        heard += self.both.take(self.link, BROKER)
        if heard[:4] == b"AMQP":
            if len(heard) < len(frames.HEADER):
                return
            del heard[: len(frames.HEADER)]
        while not self._garbled and len(heard) >= 8:
            kind, channel, length = struct.unpack_from(">BHI", heard)
            self._garbled = kind not in _KINDS or length > frames.FRAME_MAX
            if self._garbled or len(heard) < length + 8:
                break
            self._on_frame(kind, channel, bytes(heard[7 : 7 + length]))
            del heard[: length + 8]

    def _on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == 1 and len(payload) >= 4:
            method = struct.unpack_from(">HH", payload)
            if method == (60, 40):
                self._contents[channel] = None
            elif method == (20, 10):
                self._published[channel] = 0
                self._unconfirmed.pop(channel, None)
            elif method == (85, 10):
                self._unconfirmed[channel] = []
            if method in _ANSWERS:
                self._due.append(_ANSWERS[method](channel))
        elif kind in {2, 3} and channel in self._contents:
            left = self._contents[channel]
            if kind == 2 and left is None:
                left = int.from_bytes(payload[4:12])
            elif kind == 3 and left is not None:
                left -= len(payload)
            self._contents[channel] = left
            if left == 0:
                del self._contents[channel]
                self._published[channel] = number = self._published.get(channel, 0) + 1
                if channel in self._unconfirmed:
                    self._unconfirmed[channel].append(number)


def _same(side: Any, got: bytes, wanted: bytes) -> bool:
    (one, beats), (other, wanted_beats) = (_whole(side, each) for each in (got, wanted))
    # A peer to which nothing was written, because a publish waits for its header, is sent a heartbeat.
    return beats >= wanted_beats and one == other


def _whole(side: Any, data: bytes) -> tuple[dict[Any, tuple[bytes, Counter[bytes]]], int]:
    """Return ``by_channel`` of the complete frames, and the number of heartbeats.

    The compiled extension waits for headers.

    Waiting publishes of one channel, exchange and routing key keep their order. docs/rabbitmq.md guarantees no more.
    """
    data = data.removeprefix(frames.HEADER)
    whole, begun, left = dict[Any, bytes](), dict[int, bytes](), dict[int, int]()
    at = beats = 0
    while len(data) - at >= 8:
        kind, channel, length = struct.unpack_from(">BHI", data, at)
        frame = data[at : at + length + 8]
        at += length + 8
        if at > len(data):
            break
        beats += kind == 8
        key: Any = channel
        if kind == 1 and frame[7:11] in _BEGIN_CONTENTS:
            begun[channel] = frame
            continue
        if kind == 2:
            left[channel] = int.from_bytes(frame[11:19])
        elif kind == 3:
            left[channel] = left.get(channel, length) - length
        if kind in {2, 3}:
            begun[channel] = begun.get(channel, b"") + frame
            if left[channel] > 0:
                continue
            frame = begun.pop(channel)
            if side is BROKER:
                # The method without its bits.
                key = frame[: 6 + int.from_bytes(frame[3:7])]
        if kind != 8:
            whole[key] = whole.get(key, b"") + frame
    return {key: frames.by_channel(of_key)[of_key[2]] for key, of_key in whole.items()}, beats


talk = partial(play, makes=_RULES, make=AMQPTalk)


def settings(random: Random) -> dict[str, Any]:
    """Return the arguments of ``both_ways.run`` for a schedule."""
    return {
        "options": (AMQP091Options(), AMQP091Options(scan=random.choice(("python", "auto")))),
        "same": _same,
        # The age of an incomplete frame is only known to within this time.
        "listener": {"frame_timeout_s": 1e6},
        **talks.settings(random),
    }
