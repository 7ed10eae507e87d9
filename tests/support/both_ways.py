"""Serves a schedule twice, with and without the compiled turn. All visible effects must be the same.

Two data paths serve real sockets on loopback, on one manual clock. Each step of a schedule is done in both, then both
come to rest, then the peers' data is compared. Counts, log records and connections are compared whenever ``look`` is
called, and at the end. A schedule is a coroutine that is given ``Both`` and a ``Random``.
"""

import errno
import os
import socket
import ssl
import struct
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableSequence, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from ipaddress import ip_network
from itertools import starmap
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import msgspec
import structlog
import trio
from certificates import HOST, Certificates
from loopback import Key, Sockets
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.adaptive.controller import Controller
from limiter.buckets import adaptive
from limiter.counting.rejections import TrafficSecond
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath import datapath
from proxy.datapath.alarm_watch import AlarmWatch
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.batch import Side
from proxy.deciding.pipeline import HandlerConfig
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.flow.credit import StageState
from proxy.net import broker_watch, reactor, sockets, tls, turn
from proxy.net.peer import CHECK_S, MAX_CHECKS
from proxy.net.server import ListenerConfig
from proxy.net.tls import ClientTls
from proxy.protocols.base import Protocol
from proxy.stats.snapshot import ConnectionState

CLIENT, BROKER = Side.CLIENT, Side.BROKER
Schedule = Callable[["Both", Random], Awaitable[None]]
Same = Callable[[Side, bytes, bytes], bool]
"""Whether a peer's data from both ways is equally right."""

# Unique to this process: others may still try to connect to an old port.
_OWN_HOST: Final = f"127.{os.getpid() >> 15 & 127 | 1}.{os.getpid() >> 8 & 127}.{os.getpid() & 255 | 1}"
# Figures that differ from run to run, or by the reader.
_NOT_COMPARED: Final = ("busy_ratio", "listeners", "stages", "bottlenecks", "lanes", "alarms", "round_trip")
# The size of one write to a slow peer.
_SMALL_BYTES: Final = 16 * 1024
_IN_FLIGHT: Final = {"in flight", "unanswered", "answers"}
_BAD: Final = {"bad_frame", "unparsable", "bad_answer"}
# Small enough that the allocator does not map new memory for each.
_READ_BYTES: Final = 64 * 1024
_TICK_S: Final = 1e-6
# Enough for retransmissions after some seconds.
_ROUNDS: Final = 100_000
_FOR_EVER_NS: Final = 1 << 50
_STORY_BYTES: Final = 120
_GONE: Final = {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.EBADF}


class DifferenceError(AssertionError):
    pass


class _Order(Random):
    """Trio's random order of runnable tasks, the same in both ways."""

    turned = False

    def shuffle(self, x: MutableSequence[Any]) -> None:
        if self.turned:
            x.reverse()


@dataclass
class Link:
    """One connection in one way: the peers' sockets, their data, and their ends."""

    peers: dict[Side, socket.socket]
    addresses: dict[Side, Key]
    received: dict[Side, bytearray] = field(default_factory=lambda: {side: bytearray() for side in Side})
    ended: dict[Side, str] = field(default_factory=dict)
    paused: set[Side] = field(default_factory=set)

    def read(self) -> int:
        """Read available data, unless paused. Return the number of bytes."""
        count = 0
        for side, peer in self.peers.items():
            if side in self.paused or side in self.ended:
                continue
            try:
                while chunk := peer.recv(_READ_BYTES):
                    count += len(chunk)
                    self.received[side] += chunk
                self.ended[side] = "end"
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except ssl.SSLError as error:
                self.ended[side] = error.reason
            except OSError as error:
                self.ended[side] = errno.errorcode[error.errno or 0]
            if count:
                # Acknowledge at once, so that a writer does not wait for the real time of a delayed ACK.
                with suppress(OSError):
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return count


def _new_socket() -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@cache
def _tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a listener and its clients."""
    with tempfile.TemporaryDirectory() as folder:
        made = Certificates(Path(folder))
        made.issue("server", HOST)
        return made.server(), made.client()


class Way:
    def __init__(
        self, protocol: Protocol, options: Any, config: dict[str, Any], clock: MockClock, closing: ExitStack
    ) -> None:
        self._closing = closing
        self._listening = closing.enter_context(_new_socket())
        self._listening.bind((_OWN_HOST, 0))
        self._listening.listen()
        listener = ListenerConfig(
            *("main", protocol, options, (_OWN_HOST, 0), self._listening.getsockname()),
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
        self.answers: Counter[str] = Counter()

    @property
    def is_lent(self) -> bool:
        return self.path._lending is not None and bool(self.path._lending.lent)

    @property
    def connections(self) -> list[Any]:
        """All open connections. From now on Python serves them."""
        return sorted(self.path.server.each_connection(), key=lambda connection: connection.info.id)

    def open(self, source: tuple[str, int], header: bytes = b"", tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Connect a client, with a PROXY header and TLS if configured. Return its address."""
        client = self._closing.enter_context(_new_socket())
        client.bind(source)
        client.connect_ex(self.path.server.bound("main"))
        address: tuple[str, int] = client.getsockname()
        with suppress(OSError):
            client.send(header)
        if tls is not None:
            wrapped = tls.wrap_socket(client, do_handshake_on_connect=False, server_hostname=HOST)
            client = self._closing.enter_context(wrapped)
        self.links.append(Link({CLIENT: client}, {CLIENT: (address, self.path.server.bound("main"))}))
        return address

    def accept(self) -> None:
        """Accept the broker's end of the last connection."""
        with suppress(BlockingIOError):
            while True:
                # The first one only probes the broker.
                broker = self._closing.enter_context(self._listening.accept()[0])
                broker.setblocking(False)
                broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.links:
                    self.links[-1].peers[BROKER] = broker
                    self.links[-1].addresses[BROKER] = broker.getsockname(), broker.getpeername()

    def read(self) -> int:
        return sum(link.read() for link in self.links)


class Both:
    """The two ways, and the steps so far.

    ``story``: the steps, for people. ``lent``: the number of connections served by the turn after a step, summed up.
    ``knows_in_flight``: each way knows the requests without an answer. ``tls``: of clients. ``proxied``: clients begin
    with a PROXY header. ``by_chance``: the counts are not determined. ``sockets``: Sluice's.
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
        self.tls: ssl.SSLContext | None = None
        self.proxied = False
        self.by_chance = False
        self.sockets = Sockets()
        self._clock = clock
        self._logged = logged
        self._version = 1
        self._taken: dict[tuple[int, Side], int] = {}
        # Peers whose end of stream ends the connection: their remaining data is not determined.
        self._leaving: set[tuple[int, Side]] = set()
        # Connections reset by a peer: the kernel may drop some of its last data.
        self._reset: set[int] = set()

    # --- Steps ------------------------------------------------------------------------------------

    async def open(self, host: str = "127.0.0.1") -> int:
        """Connect a client from an address of this machine. Return its number."""
        self.story.append(f"open {host}")
        address = (HOST if self.proxied else host, 0)
        header = f"PROXY TCP4 {host} {HOST} 40000 1\r\n".encode() if self.proxied else b""
        for way in self.ways:
            address = way.open(address, header, self.tls)
        # A handshake takes three turns.
        for _ in range(1 if self.tls is None else 3):
            await self.settle()
        for way in self.ways:
            way.accept()
        return len(self.ways[0].links) - 1

    async def say(self, link: int, side: Side, data: bytes) -> None:
        """Let a peer send data, as much as its kernel accepts."""
        self.story.append(f"say {link} {side.value} {_short(data)}")
        for way in self.ways:
            peer = way.links[link].peers.get(side)
            if peer is not None:
                self._send(peer, data)
        await self.settle()

    async def say_together(self, *said: tuple[int, Side, bytes]) -> None:
        """Let several peers send data before any of it is read."""
        self.story += (f"say together {link} {side.value} {_short(data)}" for link, side, data in said)
        for way in self.ways:
            for link, side, data in said:
                if side in way.links[link].peers:
                    self._send(way.links[link].peers[side], data)
        await self.settle()

    @staticmethod
    def _send(peer: socket.socket, data: bytes) -> None:
        left = data
        try:
            while left:
                left = left[peer.send(left) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            assert left == data, f"the kernel left {len(left)} of {len(data)} bytes"
        except OSError as error:
            if error.errno not in _GONE and not isinstance(error, ssl.SSLError):
                raise

    def _last_words(self, link: int, side: Side, data: bytes) -> Iterator[tuple[Way, socket.socket]]:
        """Let a peer send last data, if any, and yield it in each way where it is connected."""
        if not self.ways[0].path.server.listeners[0].protocol.half_closes:
            self._leaving.add((link, side))
        for way in self.ways:
            peer = way.links[link].peers.get(side)
            if peer is not None:
                if data:
                    self._send(peer, data)
                yield way, peer

    async def end(self, link: int, side: Side, *, data: bytes = b"") -> None:
        """Let a peer end its stream, perhaps after last data."""
        self.story.append(f"end {link} {side.value} {_short(data)}")
        for way, peer in self._last_words(link, side, data):
            # OpenSSL drops unread data as it ends the stream.
            if isinstance(peer, ssl.SSLSocket) and side not in way.links[link].paused:
                with suppress(OSError, ValueError):
                    peer.unwrap()
            with suppress(OSError):
                socket.socket.shutdown(peer, socket.SHUT_WR)
        await self.settle()

    async def reset(self, link: int, side: Side, *, data: bytes = b"") -> None:
        """Let a peer reset its connection, perhaps after last data."""
        self.story.append(f"reset {link} {side.value} {_short(data)}")
        if data:
            self._reset.add(link)
        for way, peer in self._last_words(link, side, data):
            with suppress(OSError):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            way.links[link].ended[side] = "reset"
        await self.settle()

    async def pause(self, link: int, side: Side) -> None:
        self.story.append(f"pause {link} {side.value}")
        for way in self.ways:
            way.links[link].paused.add(side)

    async def resume(self, link: int, side: Side) -> None:
        self.story.append(f"resume {link} {side.value}")
        for way in self.ways:
            way.links[link].paused.discard(side)
        # Before time passes, which would count as waiting in the way whose kernel has accepted less.
        await self.settle(compare=False)
        if not self.stalled:
            # The maximum delay of a write to an unread client.
            await self.jump(CHECK_S * (MAX_CHECKS + 1))

    async def jump(self, by_s: float) -> None:
        """Let time pass, with all due work in order."""
        self.story.append(f"jump {by_s}")
        while by_s > 0:
            step_s = min(by_s, max(trio.lowlevel.current_statistics().seconds_to_next_deadline, _TICK_S))
            by_s -= step_s
            self._clock.jump(step_s)
            await self.settle(compare=by_s <= 0)

    async def apply(self, rules: Sequence[Rule]) -> None:
        self.story.append(f"apply {rules!r}")
        self._version += 1
        for way in self.ways:
            await way.path.apply(RuleSet(tuple(rules), version=self._version))
        await self.settle()

    async def recall(self) -> None:
        """Let Python serve all connections for the moment."""
        await self.do("recall", _recall)

    async def do(self, name: str, act: Callable[[Way], object]) -> None:
        """Do something else in both ways."""
        self.story.append(name)
        for way in self.ways:
            act(way)
        await self.settle()

    async def ask(self, name: str, act: Callable[[LocalDataPath], Awaitable[object]]) -> None:
        """Ask both ways, and compare the answers."""
        self.story.append(name)
        answers = [repr(await act(way.path)) for way in self.ways]
        if answers[0] != answers[1]:
            self.fail(f"{name}: {answers[0]}\nand {answers[1]}")
        await self.settle()

    # --- Comparing --------------------------------------------------------------------------------

    def take(self, link: int, side: Side) -> bytes:
        """Return a peer's data since the last call."""
        received = self.ways[0].links[link].received[side]
        start = self._taken.get((link, side), 0)
        self._taken[link, side] = len(received)
        return bytes(received[start:])

    def is_open(self, link: int, side: Side) -> bool:
        """Say whether a peer has a connection that has not ended for it."""
        of = self.ways[0].links[link]
        return side in of.peers and side not in of.ended

    @property
    def _protocol(self) -> str:
        return self.ways[0].path.server.listeners[0].protocol.name

    @property
    def stalled(self) -> bool:
        return any(link.paused for link in self.ways[0].links)

    def _has_arrived(self) -> bool:
        """Say whether nothing is in flight between Sluice and the peers."""
        links = [link for way in self.ways for link in way.links]
        pairs = ((link.addresses[side], peer) for link in links for side, peer in link.peers.items())
        return not self.sockets.are_opening and all(starmap(self.sockets.have_arrived, pairs))

    def is_held_up(self) -> bool:
        """Say whether data waits for a peer that does not read: the part accepted by the kernel is not determined.

        Nor is the amount that Sluice has read, counted and decided behind it.
        """
        connections = (each for way in self.ways for each in way.connections) if self.stalled else ()
        return any(peer.busy for each in connections for peer in each.peers.values())

    async def settle(self, *, compare: bool = True) -> None:
        """Let both come to rest, and compare the peers' data."""
        order = trio._core._run._r
        order.turned = order.random() < 0.5
        was_quiet = False
        for _ in range(_ROUNDS):
            # A busy kernel takes real time, while the clock does not move.
            has_arrived = self._has_arrived()
            await wait_all_tasks_blocked()
            is_quiet = sum([way.read() for way in self.ways]) < _SMALL_BYTES // 4 and has_arrived
            if is_quiet and was_quiet:
                break
            was_quiet = is_quiet
        else:
            self.fail("does not come to rest")
        lending = self.ways[0].path._lending
        self.lent += 0 if lending is None else len(lending.lent)
        if compare and not self.stalled:
            self._compare_links()

    def _compare_links(self) -> None:
        why = self._differing_links()
        if why:
            self.fail(why)

    def _differing_links(self) -> str:
        for number, (one, other) in enumerate(zip(*(way.links for way in self.ways), strict=True)):
            for side in Side:
                got, wanted = one.received[side], other.received[side]
                length = min(len(got), len(wanted))
                if (number, side) in self._leaving and got[:length] == wanted[:length]:
                    continue
                if number in self._reset and got != wanted and _begin_alike(self._protocol, bytes(got), bytes(wanted)):
                    self.by_chance = True
                    continue
                if got != wanted and not self._same(side, bytes(got), bytes(wanted)):
                    return f"connection {number}: the {side.value} has received {_differing(got, wanted)}"
            if one.ended != other.ended:
                return f"connection {number} has ended {one.ended}, and {other.ended}"
        return ""

    async def look(self) -> None:
        """Compare everything visible to an operator."""
        self.story.append("look")
        if not self.stalled:
            self._compare_links()
        if self.by_chance or self.is_held_up():
            return
        seen = [await self._seen(way) for way in self.ways]
        if any(way.is_lent for way in self.ways):
            for each in seen:
                del each["answers"]
        for what, one in seen[0].items():
            if one != seen[1][what] and (what not in _IN_FLIGHT or self.knows_in_flight):
                self.fail(f"{what}: {_differing(repr(one), repr(seen[1][what]))}")
        odd = [each for each, count in Counter(map(_plain_entry, filter(_is_told, self._logged))).items() if count % 2]
        if odd:
            self.fail(f"only one logs {odd}")

    @staticmethod
    async def _seen(way: Way) -> dict[str, Any]:
        path = way.path
        protocol = path.server.listeners[0].protocol.name
        snapshot = await path.snapshot()
        seen = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__ if name not in _NOT_COMPARED}
        close_reasons = [connection.shutdown.close_reason for connection in way.connections]
        ended = {
            *(close_reason[0] for close_reason in close_reasons if close_reason),
            *(reason for _, reason in snapshot.closed_total),
        }
        is_bad = bool(_BAD & ended)
        signals = path.server.take_seen()
        way.answers.update({scope: each.answers for scope, each in signals.items()})
        if protocol == "amqp10" or is_bad:
            # If a chunk's stream becomes invalid, only the turn counts the duration of earlier decisions, and credit
            # may be requested a moment later.
            del seen["processing"]
        return seen | {
            # With AMQP 0.9.1 the compiled extension counts a publish once its header is there.
            "frames_total": {} if protocol == "amqp091" else seen["frames_total"],
            "connections": [
                _plain_connection(protocol, each, is_bad)
                for each in sorted(await path.connections(), key=attrgetter("id"))
            ],
            "traffic": [_plain_second(each) for each in await path.take_traffic(unfinished=True)],
            "in flight": [connection.session.in_flight() for connection in way.connections],
            "unanswered": {scope: each.unanswered for scope, each in signals.items()},
            # The answers to a batch are only counted completely once the connection has returned.
            "answers": dict(way.answers),
            # Of a refused batch, the compiled extension knows the first message only.
            "signals": {scope: (each.busy > 0, each.blocked) for scope, each in signals.items()},
            "read ahead": path._services.ahead.taken_bytes,
        }

    def fail(self, why: str) -> None:
        raise DifferenceError("\n".join(("", *self.story[-60:], why)))


def _begin_alike(protocol: str, *streams: bytes) -> bool:
    """Say whether one stream begins with all frames of the other, except its last if that is incomplete."""
    shorter, longer = sorted((_whole_frames(protocol, stream) for stream in streams), key=len)
    return longer.startswith(shorter)


def _whole_frames(protocol: str, stream: bytes) -> bytes:
    end = 0
    while end < len(stream):
        if stream.startswith(b"AMQP", end):
            size = 8
        elif protocol == "amqp091":
            size = 8 + int.from_bytes(stream[end + 3 : end + 7])
        else:
            size = int.from_bytes(stream[end : end + 4]) + (4 if protocol == "rocketmq" else 0)
        if end + size > len(stream):
            break
        end += max(size, 1)
    return stream[:end]


def _recall(way: Way) -> None:
    for connection in way.connections:
        connection.guard(lambda: None)


def _differing(one: Any, other: Any) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    at = next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
    begin = max(0, at - 100)
    return f"{len(one)} and {len(other)}, from {at} on {one[begin : at + 300]!r}\nand {other[begin : at + 300]!r}"


def _short(data: bytes) -> str:
    return repr(data) if len(data) < _STORY_BYTES else f"{len(data)} bytes, {data[:_STORY_BYTES]!r}…"


def _plain_connection(protocol: str, state: ConnectionState, is_bad: bool) -> ConnectionState:  # noqa: FBT001 - private
    """Remove the order of its resources, and the reason for waiting for a slow peer.

    With AMQP 0.9.1 the readers remember different names, and a publish's method without a header counts at once, or
    never if the stream becomes invalid.
    """
    shown = () if protocol == "amqp091" else tuple(sorted(state.resources))
    more = 0 if protocol == "amqp091" else state.more_resources
    if protocol == "amqp091" and is_bad:
        state = msgspec.structs.replace(state, requests_total=0)
    stage = StageState(state.stage.kind, state.stage.name, "running")
    return msgspec.structs.replace(state, resources=shown, more_resources=more, stage=stage, channels=(), in_flight=0)


def _plain_second(second: TrafficSecond) -> list[str]:
    """Remove the order, and which of equal messages was repeated."""
    resources = (
        msgspec.structs.replace(each, clients=tuple(sorted(each.clients)), repeated=each.repeated.requests)
        for each in second.resources
    )
    return sorted(map(repr, (second.at_s, second.other, *resources, *second.rejections)))


def _is_told(entry: dict[str, Any]) -> bool:
    """Remove log records of one client in a second.

    A lent client's last activity may be known one beat later.
    """
    return entry["event"] != "limit exceeded; requests refused" and entry.get("detail") != "client: no heartbeats"


def _plain_entry(entry: dict[str, Any]) -> str:
    error = entry.get("exc_info")
    return repr(
        sorted(
            (key, repr(error) if key == "exc_info" else str(value))
            for key, value in entry.items()
            if key not in {"address", "peer"}
        )
    )


async def _nothing(_: Any) -> None:
    pass


def _limit_of_few(controller: Controller, *_: Any) -> float:
    controller.limit_per_s = 1.0
    return controller.limit_per_s


@contextmanager
def _settings(random: Random, known: Sockets, *, small: bool, budget_ns: int | None) -> Iterator[list[Any]]:
    set_options, scheduling = sockets._set_options, trio._core._run

    def set_small(sock: socket.socket) -> None:
        set_options(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BYTES)

    def make(wire: sockets.Wire, sock: socket.socket, **options: Any) -> None:
        known.make(wire, sock, **options)

    changes = (
        (sockets, "_set_options", set_small if small else set_options),
        (sockets.Wire, "__init__", make),
        (broker_watch, "SETTLE_S", 0.0),
        # Without effects of real durations, and of randomness other than the seed's.
        (turn, "ROUND_NS", _FOR_EVER_NS if budget_ns is None else budget_ns),
        (reactor, "ROUND_NS", _FOR_EVER_NS),
        (tls, "ROUND_NS", _FOR_EVER_NS),
        (datapath, "_LOAD_S", _FOR_EVER_NS),
        (AlarmWatch, "run", _nothing),
        # It depends on times that differ.
        (Controller, "step", _limit_of_few),
        (adaptive, "_MIN_BURST", 1),
        (scheduling, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (scheduling, "_r", _Order(random.getrandbits(32))),
    )
    with ExitStack() as restoring:
        for change in changes:
            restoring.enter_context(patch.object(*change))
        with structlog.testing.capture_logs() as logged:
            yield logged


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
    with_tls: bool = False,
    proxied: bool = False,
    **config: Any,
) -> Both:
    """Play one schedule.

    ``same``: says whether different data is equally right. ``small``: kernels accept little at once. ``budget_ns``:
    duration of a turn's service. ``config``: of both data paths, with arguments of their listeners in ``listener``.

    Raises: DifferenceError: the two ways differ. The error has the last steps.
    """
    random = seed if isinstance(seed, Random) else Random(seed)
    clock = MockClock()
    given = options or (protocol.options(), protocol.options())
    listener = config.setdefault("listener", {})
    if with_tls:
        listener["client_tls"] = ClientTls(_tls()[0], required=True)
    if proxied:
        listener["proxy_protocol_from"] = (ip_network("127.0.0.0/8"),)

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
                both.proxied = proxied
                both.sockets = known
                both.tls = _tls()[1] if with_tls else None
                await play(both, random)
                for link in both.ways[0].links:
                    for side in list(link.paused):
                        await both.resume(both.ways[0].links.index(link), side)
                await both.recall()
                await both.look()
                nursery.cancel_scope.cancel()
        return both

    known = Sockets()
    with _settings(random, known, small=small, budget_ns=budget_ns) as logged:
        return trio.run(partial(main, logged), clock=clock)
