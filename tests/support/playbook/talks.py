"""Random schedules of some connections, with all sorts of events, for ``both_ways`` and any protocol."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, Literal, get_args

from both_ways import BROKER, CLIENT, Both, Way

from limiter.rules.errors import RuleError
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

_HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.1.2.3")
NAMES: Final = ("free", "few", "none", "slow", "seen", "fair", "bytes", "exempt", "warm", "orders")
# The rules of a schedule, and how much is sent at a time. Which of several requests for different things a limit admits
# depends on how streams are cut into chunks. So either a chunk has one request, or limits are of one name each and a
# name has one sender, or limits admit all or nothing, which also does not depend on when a chunk is read.
Flavour = Literal["one by one", "by name", "all or nothing"]
# By the flavour from which on they are left out. Some are impossible.
Rules = Mapping[Flavour, Sequence[Callable[[], Rule]]]


def rules_of(kind: str, more: Rules) -> Rules:
    """Return rules for the names of a kind, and others."""
    known: Rules = {
        "all or nothing": (
            lambda: Rule(kind, "none", 0),
            lambda: Rule(kind, "exempt", None, exempt=True),
            lambda: Rule(kind, "*", None),
            lambda: Rule(kind, "seen", 0, action="shadow"),
            lambda: Rule("client", "127.1.2.3", None, exempt=True),
            lambda: Rule("client", "127.0.0.2", 0),
            lambda: Rule(kind, "f*", 0, shared=True),
        ),
        "by name": (
            lambda: Rule(kind, "*", 1000),
            lambda: Rule(kind, "few", 2),
            lambda: Rule(kind, "few", 20),
            # The wait depends on the requests of one chunk, without those behind.
            lambda: Rule(kind, "slow", 4, action="delay", max_delay_s=600),
            lambda: Rule(kind, "slow", 4),
            lambda: Rule(kind, "seen", 1, action="shadow"),
            lambda: Rule(kind, "fair", 5, fair_by="client"),
            lambda: Rule(kind, "bytes", None, bytes_per_s=2_000),
            lambda: Rule(kind, "bytes", 3, bytes_per_s=300),
            lambda: Rule(kind, "warm", 10, warm_up_s=5),
        ),
        "one by one": (
            lambda: Rule(kind, "f*", 7, shared=True),
            lambda: Rule("listener", "main", None, adaptive=True, floor_per_s=1),
            lambda: Rule(kind, "*", 30, shared=True, action="shadow"),
            lambda: Rule(kind, "slow", 4, action="delay"),
            lambda: Rule("client", "127.0.0.0/8", 20),
            lambda: Rule("client", "127.0.0.2", 3, action="delay"),
            lambda: Rule("listener", "main", 50),
            lambda: Rule("listener", "*", None, adaptive=True, floor_per_s=1),
        ),
    }
    return {flavour: (*makes, *more.get(flavour, ())) for flavour, makes in known.items()}


def random_rules(random: Random, flavour: Flavour, makes: Rules) -> list[Rule]:
    rules: dict[object, Rule] = {}
    few = random.random()
    for each, some in makes.items():
        for make in some:
            if random.random() < few:
                with suppress(RuleError):
                    rule = make()
                    rules[rule.key] = rule
        if each == flavour:
            break
    if flavour == "by name" and any(rule.bytes_per_s for rule in rules.values()):
        # A request too large for one limit is refused alone, unless another stops an earlier one of its chunk.
        return [rule for rule in rules.values() if rule.kind != "client" or rule.exempt]
    return list(rules.values())


def settings(random: Random) -> dict[str, Any]:
    """Return the arguments of ``both_ways.run`` for any protocol."""
    return {
        "budget_ns": random.choice((None, None, 1)),
        "small": random.random() < 0.3,
        "with_tls": random.random() < 0.1,
        "proxied": random.random() < 0.1,
    }


class Talk:
    """The data of one connection's peers.

    ``KIND``: of the named resources. ``unsaid``: each peer's next data.
    """

    KIND = ""
    # Several connections share limits, and send at the same time.
    has_others = True

    def __init__(self, both: Both, random: Random, flavour: Flavour, link: int) -> None:
        self.both, self.random, self.flavour, self.link = both, random, flavour, link
        self.unsaid = {CLIENT: b"", BROKER: b""}

    async def begin(self) -> None:
        """Send the first data."""

    def compose(self, side: Any) -> None:
        """Let a peer compose more data."""
        raise NotImplementedError

    def beat(self) -> bytes:
        """Return data that a client may always send."""
        raise NotImplementedError

    def piece(self, side: Any) -> bytes:
        """Take a piece of a peer's data, of any length."""
        said, random = self.unsaid[side], self.random
        if random.random() < 0.5:
            size = len(said)
        else:
            size = random.choice((1, 4, 8, random.randint(0, 200), random.randint(0, len(said))))
        self.unsaid[side] = said[size:]
        return said[:size]

    async def say(self, side: Any, data: bytes) -> None:
        if data:
            await self.both.say(self.link, side, data)

    async def say_but_last(self, side: Any, data: bytes) -> bytes:
        """Send data that must come in separate chunks, except the last, and return that."""
        del side
        return data

    async def before_edit(self) -> None:
        """Send data that must be read under the active rules."""

    async def look(self) -> None:
        await self.both.look()

    async def disturb(self, side: Any) -> None:
        """Cause an event other than a peer's data."""
        both, random, link = self.both, self.random, self.link
        last = self.piece(side) if random.random() < 0.5 else b""
        kind = random.randrange(10)
        if both.is_held_up():
            if kind > 3:
                return
            both.by_chance = True
        match kind:
            case 0 | 1:
                await both.end(link, side, data=await self.say_but_last(side, last))
            case 2 | 3:
                await both.reset(link, side, data=await self.say_but_last(side, last))
            case 4:
                await both.do("alarm", lambda way: _alarm(way, "short of memory"))
                self.compose(CLIENT)
                await self.say(CLIENT, self.piece(CLIENT) or self.beat())
                await both.do("no alarm", lambda way: _alarm(way, ""))
            case 5:
                slow = Resource(self.KIND, "slow")
                await both.do("purge", lambda way: [each.purge(slow) for each in way.connections])
            case 6:
                await both.ask("reset", lambda path: path.reset(self.KIND, "few"))
            case 7:
                await both.ask("kill", lambda path: path.close_connection(link + 1, "why"))
            case 8 if not both.stalled:
                await both.jump(random.choice((61.0, 31.0)))
            case 9 if random.random() < 0.3 and not both.stalled:
                await self._drain()

    async def _drain(self) -> None:
        for way in self.both.ways:
            self.both.nursery.start_soon(way.path.drain, 2.0)
        await self.both.settle()
        self.compose(CLIENT)
        await self.say(CLIENT, self.piece(CLIENT) or self.beat()[:1])
        for _ in range(4):
            self.compose(BROKER)
            await self.say(BROKER, self.piece(BROKER))
            await self.both.jump(0.6)


def _alarm(way: Way, reason: str) -> None:
    way.path.server.alarm = reason
    for _ in way.path._stop_publishers(reason):
        pass


async def play(both: Both, random: Random, makes: Rules, make: Callable[[Both, Random, Flavour, int], Talk]) -> None:
    """Play some connections with all sorts of events."""
    flavour = random.choice(get_args(Flavour))
    talks: list[Talk] = []

    async def begin() -> None:
        talks.append(make(both, random, flavour, await both.open(random.choice(_HOSTS))))
        await talks[-1].begin()

    await both.apply(random_rules(random, flavour, makes))
    await begin()
    may_begin = talks[0].has_others or flavour == "all or nothing"
    for _ in range(random.choice((0, 0, 0, 1, 2)) if may_begin else 0):
        await begin()
    for _ in range(random.randint(5, 40)):
        each = random.choice(talks)
        side = random.choice((CLIENT, CLIENT, BROKER))
        kind = random.random()
        if kind < 0.75:
            each.compose(side)
            await each.say(side, each.piece(side))
        elif kind < 0.8 and len(talks) > 1 and flavour == "all or nothing":
            said = []
            for one in random.sample(talks, 2):
                one.compose(CLIENT)
                said.append((one.link, CLIENT, one.piece(CLIENT)))
            await both.say_together(*(one for one in said if one[2]))
        elif kind < 0.87:
            if not both.stalled:
                await both.jump(random.choice((0.001, 0.01, 0.011, 0.3, 1.0, 5.0)))
        elif kind < 0.88:
            await each.look()
        elif kind < 0.89 and not both.stalled:
            await both.recall()
        elif kind < 0.91 and not both.is_held_up():
            for one in talks:
                await one.before_edit()
            await both.apply(random_rules(random, flavour, makes))
        elif kind < 0.93:
            if may_begin:
                await begin()
        elif kind < 0.95 and flavour == "all or nothing" and each.has_others:
            await (both.resume if side in both.ways[0].links[each.link].paused else both.pause)(each.link, side)
        else:
            await each.disturb(side)
    for each in talks:
        for side in (CLIENT, BROKER):
            while each.unsaid[side] and both.is_open(each.link, side):
                await each.say(side, each.piece(side))
