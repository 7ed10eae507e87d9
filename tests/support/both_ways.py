"""Serves a schedule twice: with the compiled turn and without it. Whatever anybody can see must be the same.

Two data paths serve real sockets on loopback, on one manual clock. Each step of a schedule is done to both, then both
come to rest, then what their peers have received is compared; counts, log records and connections whenever ``look``
is called, and at the end. A schedule is a coroutine that is given ``Both`` and a ``Random``.
"""

import errno
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from random import Random
from typing import Any, Final

import msgspec
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.counting.rejections import TrafficSecond
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.batch import Side
from proxy.deciding.pipeline import HandlerConfig
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.flow.credit import StageState
from proxy.net import broker_watch, sockets, turn
from proxy.net.server import ListenerConfig
from proxy.protocols.base import Protocol
from proxy.stats.snapshot import ConnectionState

CLIENT, BROKER = Side.CLIENT, Side.BROKER
Schedule = Callable[["Both", Random], Awaitable[None]]
Same = Callable[[Side, bytes, bytes], bool]
"""Whether what a peer has received by the turn, and without it, are equally right."""

#: What differs from run to run, or by what serves a connection.
_NOT_COMPARED: Final = ("busy_ratio", "listeners", "stages", "bottlenecks", "lanes", "alarms", "round_trip")
#: What one write to the kernel takes of Sluice, where peers are slow.
_SMALL_BYTES: Final = 16 * 1024
_BAD: Final = {"bad_frame", "unparsable", "bad_answer"}
_ROUNDS: Final = 10_000
_STORY_BYTES: Final = 120
_GONE: Final = {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.EBADF}


class DifferenceError(AssertionError):
    """The two ways differ."""


@dataclass
class Link:
    """One connection of one way: the sockets of its peers, what these have received, and how it ended for them."""

    peers: dict[Side, socket.socket]
    received: dict[Side, bytearray] = field(default_factory=lambda: {side: bytearray() for side in Side})
    ended: dict[Side, str] = field(default_factory=dict)
    paused: set[Side] = field(default_factory=set)

    def read(self) -> int:
        """Read what is there, unless paused; return how much that was."""
        count = 0
        for side, peer in self.peers.items():
            if side in self.paused or side in self.ended:
                continue
            try:
                while chunk := peer.recv(1 << 20):
                    count += len(chunk)
                    self.received[side] += chunk
                self.ended[side] = "end"
            except BlockingIOError:
                pass
            except OSError as error:
                self.ended[side] = errno.errorcode[error.errno or 0]
            if count:
                # Acknowledged at once, so that a writer who waits for that does not wait for real time to pass.
                with suppress(OSError):
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return count


def _new_socket() -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Way:
    """One data path with its peers."""

    def __init__(
        self, protocol: Protocol, options: Any, config: dict[str, Any], clock: MockClock, closing: ExitStack
    ) -> None:
        self._closing = closing
        self._listening = closing.enter_context(_new_socket())
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        listener = ListenerConfig(
            *("main", protocol, options, ("127.0.0.1", 0), self._listening.getsockname()),
            **config.pop("listener", {}),
        )
        now_s = clock.current_time
        self.now_ns: Callable[[], int] = lambda: round(now_s() * 1e9)
        handlers = (HandlerConfig(RATE_LIMIT, RateLimitOptions()),)
        self.path = LocalDataPath(
            DataPathConfig((listener,), handlers, **config),
            self.now_ns,
            lambda: datetime.fromtimestamp(now_s(), UTC),
        )
        self.links: list[Link] = []

    @property
    def connections(self) -> list[Any]:
        """All that are open; from now on Python serves them."""
        return sorted(self.path.server.each_connection(), key=lambda connection: connection.info.id)

    def open(self, source: tuple[str, int]) -> tuple[str, int]:
        """Connect a client; return its address."""
        client = self._closing.enter_context(_new_socket())
        client.bind(source)
        client.connect_ex(self.path.server.bound("main"))
        self.links.append(Link({CLIENT: client}))
        address: tuple[str, int] = client.getsockname()
        return address

    def accept(self) -> None:
        """Take the broker's end of the last connection."""
        with suppress(BlockingIOError):
            while True:
                # The first one only asks whether the broker is there.
                broker = self._closing.enter_context(self._listening.accept()[0])
                broker.setblocking(False)
                broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.links:
                    self.links[-1].peers[BROKER] = broker

    def read(self) -> int:
        return sum(link.read() for link in self.links)


class Both:
    """The two ways, and what was done to them.

    Attributes:
        story: the steps so far, for people.
        lent: how many connections the turn served after a step, summed up over all steps.
        knows_in_flight: each way knows which requests have no answer yet.
    """

    def __init__(
        self, ways: Sequence[Way], clock: MockClock, logged: list[Any], nursery: trio.Nursery, same: Same
    ) -> None:
        self.ways = ways
        self._same = same
        self.nursery = nursery
        self.story: list[str] = []
        self.lent = 0
        self.knows_in_flight = True
        self._clock = clock
        self._logged = logged
        self._version = 1
        self._taken: dict[tuple[int, Side], int] = {}

    # --- Steps ------------------------------------------------------------------------------------

    async def open(self, host: str = "127.0.0.1") -> int:
        """Connect a client from an address of this machine; return its number."""
        self.story.append(f"open {host}")
        address = (host, 0)
        for way in self.ways:
            address = way.open(address)
        await self.settle()
        for way in self.ways:
            way.accept()
        return len(self.ways[0].links) - 1

    async def say(self, link: int, side: Side, data: bytes) -> None:
        """Have a peer send something, as far as its kernel takes it."""
        self.story.append(f"say {link} {side.value} {_short(data)}")
        for way in self.ways:
            peer = way.links[link].peers.get(side)
            if peer is not None:
                self._send(peer, data)
        await self.settle()

    async def say_together(self, *said: tuple[int, Side, bytes]) -> None:
        """Have several peers send something before anything of it is read."""
        self.story += (f"say together {link} {side.value} {_short(data)}" for link, side, data in said)
        for way in self.ways:
            for link, side, data in said:
                if side in way.links[link].peers:
                    self._send(way.links[link].peers[side], data)
        await self.settle()

    @staticmethod
    def _send(peer: socket.socket, data: bytes) -> None:
        try:
            sent = peer.send(data)
        except OSError as error:
            if error.errno not in _GONE and not isinstance(error, BlockingIOError):
                raise
            return
        assert sent == len(data), f"the kernel took {sent} of {len(data)} bytes"

    def _last_words(self, link: int, side: Side, data: bytes) -> Iterator[tuple[Way, socket.socket]]:
        """Have a peer say something, if there is something, and yield it in each way that still has it."""
        for way in self.ways:
            peer = way.links[link].peers.get(side)
            if peer is not None:
                if data:
                    self._send(peer, data)
                yield way, peer

    async def end(self, link: int, side: Side, *, data: bytes = b"") -> None:
        """Have a peer end its stream, perhaps with some last bytes."""
        self.story.append(f"end {link} {side.value} {_short(data)}")
        for _, peer in self._last_words(link, side, data):
            with suppress(OSError):
                peer.shutdown(socket.SHUT_WR)
        await self.settle()

    async def reset(self, link: int, side: Side, *, data: bytes = b"") -> None:
        """Have a peer reset its connection, perhaps after some last bytes."""
        self.story.append(f"reset {link} {side.value} {_short(data)}")
        for way, peer in self._last_words(link, side, data):
            with suppress(OSError):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            way.links[link].ended[side] = "reset"
        await self.settle()

    async def pause(self, link: int, side: Side) -> None:
        """Have a peer read nothing."""
        self.story.append(f"pause {link} {side.value}")
        for way in self.ways:
            way.links[link].paused.add(side)

    async def resume(self, link: int, side: Side) -> None:
        """Have a peer read again."""
        self.story.append(f"resume {link} {side.value}")
        for way in self.ways:
            way.links[link].paused.discard(side)
        await self.settle()

    async def jump(self, by_s: float) -> None:
        """Let time pass."""
        self.story.append(f"jump {by_s}")
        self._clock.jump(by_s)
        await self.settle()

    async def apply(self, rules: Sequence[Rule]) -> None:
        """Put other rules in force."""
        self.story.append(f"apply {rules!r}")
        self._version += 1
        for way in self.ways:
            await way.path.apply(RuleSet(tuple(rules), version=self._version))
        await self.settle()

    async def recall(self) -> None:
        """Have Python serve all connections for the moment."""
        await self.do("recall", _recall)

    async def do(self, name: str, act: Callable[[Way], object]) -> None:
        """Do something else to each."""
        self.story.append(name)
        for way in self.ways:
            act(way)
        await self.settle()

    async def ask(self, name: str, act: Callable[[LocalDataPath], Awaitable[object]]) -> None:
        """Ask each for something, and compare the answers."""
        self.story.append(name)
        answers = [repr(await act(way.path)) for way in self.ways]
        if answers[0] != answers[1]:
            self.fail(f"{name}: {answers[0]}\nand {answers[1]}")
        await self.settle()

    # --- Comparing --------------------------------------------------------------------------------

    def take(self, link: int, side: Side) -> bytes:
        """Return what a peer has received since the last call."""
        received = self.ways[0].links[link].received[side]
        start = self._taken.get((link, side), 0)
        self._taken[link, side] = len(received)
        return bytes(received[start:])

    def is_open(self, link: int, side: Side) -> bool:
        """Say whether a peer has a connection that has not ended for it."""
        of = self.ways[0].links[link]
        return side in of.peers and side not in of.ended

    @property
    def stalled(self) -> bool:
        """Whether a peer does not read."""
        return any(link.paused for link in self.ways[0].links)

    async def settle(self) -> None:
        """Let both come to rest, and compare what their peers have received."""
        for _ in range(_ROUNDS):
            await wait_all_tasks_blocked()
            if sum([way.read() for way in self.ways]) < _SMALL_BYTES // 4:
                break
        else:
            self.fail("does not come to rest")
        lending = self.ways[0].path._lending
        self.lent += 0 if lending is None else len(lending.lent)
        if not self.stalled:
            self._compare_links()

    def _compare_links(self) -> None:
        for number, (one, other) in enumerate(zip(*(way.links for way in self.ways), strict=True)):
            for side in Side:
                got, wanted = (bytes(each.received[side]) for each in (one, other))
                if got != wanted and not self._same(side, got, wanted):
                    self.fail(f"connection {number}: the {side.value} has received {_differing(got, wanted)}")
            if one.ended != other.ended:
                self.fail(f"connection {number} has ended {one.ended}, and {other.ended}")

    async def look(self) -> None:
        """Compare all that an operator can see."""
        self.story.append("look")
        if not self.stalled:
            self._compare_links()
        seen = [await self._seen(way) for way in self.ways]
        for what, one in seen[0].items():
            if one != seen[1][what] and (what != "in flight" or self.knows_in_flight):
                self.fail(f"{what}: {_differing(repr(one), repr(seen[1][what]))}")
        odd = [each for each, count in Counter(map(_plain_entry, filter(_is_told, self._logged))).items() if count % 2]
        if odd:
            self.fail(f"only one logs {odd}")

    @staticmethod
    async def _seen(way: Way) -> dict[str, Any]:
        path = way.path
        snapshot = await path.snapshot()
        seen = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__ if name not in _NOT_COMPARED}
        partings = [connection.ending.parting for connection in way.connections]
        if _BAD & {*(parting[0] for parting in partings if parting), *(reason for _, reason in snapshot.closed_total)}:
            # Of a chunk in which a stream goes wrong only the turn counts how long the decisions before that took.
            del seen["processing"]
        return seen | {
            "connections": sorted((_plain_connection(each) for each in await path.connections()), key=attrgetter("id")),
            "traffic": [_plain_second(each) for each in await path.take_traffic(unfinished=True)],
            "in flight": [connection.session.in_flight() for connection in way.connections],
            "read ahead": path._services.ahead.taken_bytes,
        }

    def fail(self, why: str) -> None:
        raise DifferenceError("\n".join(("", *self.story[-60:], why)))


def _recall(way: Way) -> None:
    for connection in way.connections:
        connection.guard(lambda: None)


def _differing(one: Any, other: Any) -> str:
    """Show where two texts or bytes begin to differ."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
    begin = max(0, at - 100)
    return f"{len(one)} and {len(other)}, from {at} on {one[begin : at + 300]!r}\nand {other[begin : at + 300]!r}"


def _short(data: bytes) -> str:
    return repr(data) if len(data) < _STORY_BYTES else f"{len(data)} bytes, {data[:_STORY_BYTES]!r}…"


def _plain_connection(state: ConnectionState) -> ConnectionState:
    """Leave out in which order its resources were met, and how it has waited for a slow peer."""
    stage = StageState(state.stage.kind, state.stage.name, "running")
    return msgspec.structs.replace(
        state, resources=tuple(sorted(state.resources)), stage=stage, channels=(), in_flight=0
    )


def _plain_second(second: TrafficSecond) -> list[str]:
    """Leave out in which order things were met, and so which of equal messages was repeated."""
    resources = (
        msgspec.structs.replace(each, clients=tuple(sorted(each.clients)), repeated=each.repeated.requests)
        for each in second.resources
    )
    return sorted(map(repr, (second.at_s, second.other, *resources, *second.rejections)))


def _is_told(entry: dict[str, Any]) -> bool:
    """Leave out what is logged of a few clients in each second."""
    return entry["event"] != "over the limit"


def _plain_entry(entry: dict[str, Any]) -> str:
    error = entry.get("exc_info")
    return repr(
        sorted(
            (key, repr(error) if key == "exc_info" else str(value))
            for key, value in entry.items()
            if key not in {"address", "peer"}
        )
    )


@contextmanager
def _settings(*, small: bool, budget_ns: int | None) -> Iterator[list[Any]]:
    set_options, settle_s, round_ns = sockets._set_options, broker_watch.SETTLE_S, turn.ROUND_NS

    def set_small(sock: socket.socket) -> None:
        set_options(sock)
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BYTES)

    try:
        sockets._set_options, broker_watch.SETTLE_S = set_small, 0.0  # type: ignore[misc] - for the time of a schedule
        if budget_ns is not None:
            turn.ROUND_NS = budget_ns  # type: ignore[misc] - likewise
        with structlog.testing.capture_logs() as logged:
            yield logged
    finally:
        sockets._set_options, broker_watch.SETTLE_S, turn.ROUND_NS = set_options, settle_s, round_ns  # type: ignore[misc]


def run(
    play: Schedule,
    seed: int | Random,
    protocol: Protocol,
    *,
    rules: Sequence[Rule] = (),
    options: Sequence[Any] = (),
    same: Same = lambda _, got, wanted: got == wanted,
    small: bool = False,
    budget_ns: int | None = None,
    **config: Any,
) -> Both:
    """Play one schedule.

    Args:
        play: the schedule.
        seed: of its random choices.
        protocol: spoken by all.
        rules: in force at first.
        options: of the listener with the turn, and of the one without.
        same: says whether bytes that differ are equally right.
        small: kernels take little at once.
        budget_ns: for how long the turn serves at a time.
        config: of both data paths; ``listener`` has arguments of their listeners.

    Raises:
        DifferenceError: the two ways differ; the error has the last steps.
    """
    random = seed if isinstance(seed, Random) else Random(seed)
    clock = MockClock()
    given = options or (protocol.options(), protocol.options())

    async def main(logged: list[Any]) -> Both:
        with ExitStack() as closing:
            async with trio.open_nursery() as nursery:
                ways = [
                    Way(protocol, each, {"rule_set": RuleSet(tuple(rules)), **config}, clock, closing) for each in given
                ]
                ways[1].path._services.lending = None
                for way in ways:
                    await nursery.start(way.path.run)
                    await wait_all_tasks_blocked()
                    way.accept()
                both = Both(ways, clock, logged, nursery, same)
                await play(both, random)
                for link in both.ways[0].links:
                    for side in list(link.paused):
                        await both.resume(both.ways[0].links.index(link), side)
                await both.recall()
                await both.look()
                nursery.cancel_scope.cancel()
        return both

    with _settings(small=small, budget_ns=budget_ns) as logged:
        return trio.run(partial(main, logged), clock=clock)
