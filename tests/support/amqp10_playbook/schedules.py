"""Random schedules of AMQP 1.0 connections, for ``both_ways``: conversations of ``trial``, and invalid bytes."""

import struct
from functools import partial
from random import Random
from typing import Any, Final

from both_ways import BROKER, CLIENT
from playbook import talks
from playbook.talks import NAMES, Talk, play, rules_of

from limiter.rules.rule import Rule
from proxy.protocols.amqp10.session import AMQP10Options

from . import codec
from .limited import Cutter
from .peers import RuleBrokenError
from .trial import Addresses, Direct, Trial

_RULES: Final = rules_of(
    "queue",
    {
        "all or nothing": (
            lambda: Rule("queue", "few", 0, action="delay"),
            lambda: Rule("delivery", "none", 0),
            lambda: Rule("user", "guest", None, exempt=True),
        ),
        "by name": (
            lambda: Rule("queue", "few", 20, action="delay"),
            lambda: Rule("queue", "orders", 1e6, action="delay"),
            lambda: Rule("queue", "bytes", None, bytes_per_s=2_000, action="delay"),
            lambda: Rule("delivery", "slow", 3, action="delay"),
            lambda: Rule("delivery", "orders", 1e6, action="delay"),
        ),
        "one by one": (
            lambda: Rule("queue", "*", 1e6),
            lambda: Rule("client", "*", 60),
            lambda: Rule("user", "guest", 7),
        ),
    },
)


class _Conversation(Trial):
    """Its bytes are carried by others."""

    def _move(self) -> bool:
        return False


class AMQP10Talk(Talk):
    """Two peers that check each other, until one of them breaks a rule."""

    KIND = "queue"
    # Which of several links gets a limit's credit is not determined.
    has_others = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        names = Addresses.of(*self.random.sample(NAMES, 4))
        self._trial = _Conversation(self.random.getrandbits(32), Direct(), addresses=names, closes=True)
        self._peers = {CLIENT: self._trial.client, BROKER: self._trial.broker}
        self._cutters = {side: Cutter(each=True) for side in self._peers}
        self._broken = False

    def beat(self) -> bytes:
        return codec.EMPTY

    async def begin(self) -> None:
        self._trial.client.start()
        self._talk()
        if self.random.random() < 0.2:
            return
        await self._say_all(3)
        for step in (self._begin_sessions, *[self._trial._attach] * 4, *[self._trial._grant] * 4):
            if not self._broken and self._trial.client.opened:
                step()
            await self._say_all(1)

    def _begin_sessions(self) -> None:
        for channel in range(self.random.randint(1, 2)):
            self._trial.client.begin(channel, self.random.choice((3, 20, 400)))

    async def _say_all(self, rounds: int) -> None:
        for side in (CLIENT, BROKER) * rounds:
            self._talk()
            data, self.unsaid[side] = self.unsaid[side], b""
            await self.say(side, data)

    def _talk(self, steps: int = 0) -> None:
        """Let the peers read, and do some steps."""
        try:
            for side, peer in self._peers.items():
                heard = self.both.take(self.link, side)
                if not self._broken:
                    peer.take(heard)
            for _ in range(steps):
                self._trial._step()
                self._trial._answer_drain()
        except (RuleBrokenError, ValueError, TypeError, IndexError, KeyError, struct.error):
            self._broken = True
        for side, peer in self._peers.items():
            self.unsaid[side] += bytes(peer.out)
            peer.out.clear()

    def compose(self, side: Any) -> None:
        random = self.random
        if self._broken:
            self._talk()
            self.unsaid[side] += random.choice((codec.EMPTY, self._garbage()))
        elif self._trial.client.opened:
            self._talk(1 if self.flavour == "one by one" else random.choice((1, 3, 10, 30)))
        else:
            self._talk()
        if random.random() < 0.005:
            self.unsaid[side] += self._garbage()

    def _garbage(self) -> bytes:
        random = self.random
        return random.choice(
            (
                random.randbytes(random.randint(1, 40)),
                codec.say(0, "transfer", b"x", handle=9, delivery_id=0, delivery_tag=b""),
                codec.say(0, "disposition", role=random.random() < 0.5, first=random.randrange(9), settled=True),
                codec.say(0, "flow", incoming_window=9, next_outgoing_id=0, outgoing_window=9),
                codec.say(9, "end"),
                codec.say(0, "close"),
                codec.HEADER,
                b"\0\0\0\x09\x02\0\0\0\0",
            )
        )

    async def say(self, side: Any, data: bytes) -> None:
        await super().say(side, await self.say_but_last(side, data))

    async def say_but_last(self, side: Any, data: bytes) -> bytes:
        *parts, last = self._cutters[side].cut(data)
        for part in parts:
            await super().say(side, part)
        return last


def _same(_: Any, got: bytes, wanted: bytes) -> bool:
    """Say whether complete frames are the same. Empty ones may move relative to Sluice's own."""
    one, other = map(_whole, (got, wanted))
    plain = (each.replace(codec.EMPTY, b"") for each in (one, other))
    return one.count(codec.EMPTY) == other.count(codec.EMPTY) and next(plain) == next(plain)


def _whole(data: bytes) -> bytes:
    at = 0
    while len(data) - at >= 8:
        size = 8 if data[at : at + 4] == b"AMQP" else max(8, int.from_bytes(data[at : at + 4]))
        if at + size > len(data):
            break
        at += size
    return data[:at]


talk = partial(play, makes=_RULES, make=AMQP10Talk)


def settings(random: Random) -> dict[str, Any]:
    """Return the arguments of ``both_ways.run`` for a schedule."""
    options = AMQP10Options(), AMQP10Options(scan=random.choice(("python", "auto")))
    return {"options": options, "same": _same, **talks.settings(random)}
