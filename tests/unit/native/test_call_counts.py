"""Counts the calls of conversations through the data path. Times differ from run to run, these counts do not.

A whole data path with the compiled extension serves real sockets on loopback, where bytes arrive before ``send``
returns. Only the clocks are stand-ins. A conversation is repeated until it costs the same twice. A resumed coroutine
counts as called. Instances and attributes of the compiled extension do not count, because the interpreter does not
report them. ``pytest -rP`` shows all figures.
"""

import gc
import logging
import select
import socket
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from math import inf
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
from amqp10_playbook import codec
from amqp10_playbook.codec import say
from amqp_playbook import frames as amqp
from playbook import frames as rocketmq
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.fleet.member import Member
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.pipeline import HandlerConfig
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.net import reactor, turn
from proxy.net.server import ListenerConfig
from proxy.net.sockets import Inherited
from proxy.protocols.amqp091 import PROTOCOL as AMQP091
from proxy.protocols.amqp10 import PROTOCOL as AMQP10
from proxy.protocols.rocketmq import PROTOCOL as ROCKETMQ

PYTHON, COMPILED, SYSTEM, C = KINDS = ("Python calls", "compiled calls", "system calls", "C calls")

# fmt: off
# As measured with CPython 3.11. A commit that raises a bound gives the reason. The last column says whether the
# compiled extension serves the connection at the end.
CONVERSATIONS = {
    #                                                                                         Python compiled system
    "RocketMQ: 1 frame, its answer":                (lambda rig: answered(rig, 1, "orders"),      82,    2,  12, True),
    "RocketMQ: 4 frames, their answers":            (lambda rig: answered(rig, 4, "orders"),      82,    2,  12, True),
    "RocketMQ: 32 frames, their answers":           (lambda rig: answered(rig, 32, "orders"),     82,    2,  12, True),
    "RocketMQ: 32 frames, permits of a fleet":      (lambda rig: answered(rig, 32, "orders"),     82,    2,  12, True),
    "RocketMQ: 250 frames of 1 000 topics":         (lambda rig: answered(rig, 250, "topic{}"),   82,    2,  12, True),
    "RocketMQ: 250 frames that are refused":        (lambda rig: refused(rig, 250, "refused"),    76,    5,   6, True),
    "RocketMQ: 4 frames that may be delayed":       (lambda rig: answered(rig, 4, "delayed"),    313,   13,  24, False),
    "RocketMQ: 4 frames, with subscription limits": (lambda rig: answered(rig, 4, "orders"),     316,   13,  12, False),
    "RocketMQ: accept, 1 frame, its answer, close": (lambda rig: accepted(rig, 1, "orders"),     381,    8,  52, False),
    "AMQP 0.9.1: 1 publish, its confirm":           (lambda rig: confirmed(rig, 1),               82,    2,  12, True),
    "AMQP 0.9.1: 32 publishes, their confirms":     (lambda rig: confirmed(rig, 32),              82,    2,  12, True),
    "AMQP 1.0: 1 transfer, its disposition":        (lambda rig: disposed(rig, 1, "orders"),      81,    2,  12, True),
    "AMQP 1.0: 32 transfers, their dispositions":   (lambda rig: disposed(rig, 32, "orders"),     81,    2,  12, True),
    "AMQP 1.0: 32 transfers that may be refused":   (lambda rig: disposed(rig, 32, "critical"),   85,    2,  12, True),
    "AMQP 1.0: 32 transfers and more credit":       (lambda rig: disposed(rig, 32, "orders", 170), 225,  6,  13, True),
}
# Rules of some conversations, by a word of their names.
MORE_RULES = {
    "delayed": Rule("topic", "delayed", 1e9, action="delay"), "subscription": Rule("subscription", "*", 1e9),
    "fleet": Rule("topic", "orders", 1e9, fleet=True),
}
# By method of a socket and of an epoll.
SYSTEM_CALLS = {
    "register": "epoll_ctl", "modify": "epoll_ctl", "unregister": "epoll_ctl", "poll": "epoll_wait",
    "_accept": "accept4", "connect_ex": "connect", "setblocking": "ioctl", "getsockopt": "getsockopt",
    "recv": "recvfrom", "recv_into": "recvfrom", "send": "sendto", "sendmsg": "sendmsg",
    "setsockopt": "setsockopt", "getsockname": "getsockname", "getpeername": "getpeername",
    "shutdown": "shutdown", "close": "close",
}
# fmt: on

PROTOCOLS = {"RocketMQ": ROCKETMQ, "AMQP 0.9.1": AMQP091, "AMQP 1.0": AMQP10}
# Connections are on trial at first, each topic is new once, and receive windows grow. A run is longer than the 10 ms
# between two timed answers. All runs together are shorter than any timer of the data path.
WARM_RUNS, MAX_RUNS, RUN_S, STEP_S = 20, 30, 0.011, 0.001
# Receive buffers that hold everything a data path writes.
ROOM_BYTES = 4 << 20
# Calls from these files do not count.
OWN = {__file__, MockClock.jump.__code__.co_filename}


def new_socket() -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    # Data is sent at once.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def listening() -> socket.socket:
    sock = new_socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM_BYTES)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


class Rig:
    """A data path, both ends of a connection through it, and its calls by kind and name."""

    clock: MockClock
    path: LocalDataPath

    def __init__(self, sockets: ExitStack) -> None:
        self.sockets = sockets
        self.front, self.back = (sockets.enter_context(listening()) for _ in range(2))
        self.client = self.broker = self.front
        self.numbers = count(1_000_000_000)
        self.counts, self.idle = Counter[tuple[str, str]](), Counter[tuple[str, str]]()

    async def start(self, name: str, nursery: trio.Nursery, clock: MockClock) -> None:
        self.clock = clock
        protocol = PROTOCOLS[name.split(":", maxsplit=1)[0]]
        kind, now_s = protocol.kinds[0], self.clock.current_time
        default = Rule(kind.name, "*", 1e9, action=kind.action, credit_waits=bool(kind.credit_waits))
        rules = [default, Rule(kind.name, "refused", 0), Rule(kind.name, "critical", 1e9)]
        rules += [rule for word, rule in MORE_RULES.items() if word in name]
        listener = ListenerConfig(
            "main", protocol, protocol.options(), self.front.getsockname(), self.back.getsockname()
        )
        handlers = (HandlerConfig(RATE_LIMIT, RateLimitOptions()),)
        config = DataPathConfig((listener,), handlers, RuleSet(tuple(rules)))
        self.path = LocalDataPath(config, lambda: round(now_s() * 1e9), lambda: datetime.fromtimestamp(now_s(), UTC))
        await nursery.start(partial(self.path.run, inherited=Inherited([self.front])))
        self.idle = await self.settled(self.wait, 0)

    async def wait(self) -> None:
        """Wait until the data path is idle. The wait itself does not count."""
        self.clock.jump(STEP_S)
        lending = self.path._lending
        assert lending is not None
        before = lending._turn.system_calls
        sys.setprofile(self._count)
        await wait_all_tasks_blocked()
        sys.setprofile(None)
        self.counts.subtract(self.idle)
        self.counts[SYSTEM, "of the turn"] += lending._turn.system_calls - before

    async def settled(self, run: Callable[[], Awaitable[None]], warm_runs: int) -> Counter[tuple[str, str]]:
        before = counts = Counter[tuple[str, str]]()
        for number in range(MAX_RUNS):
            self.clock.jump(RUN_S)
            self.counts = Counter()
            await run()
            before, counts = counts, Counter({what: calls for what, calls in self.counts.items() if calls})
            if number > warm_runs and counts == before:
                return counts
        pytest.fail(f"does not settle: at last {counts - before} more and {before - counts} fewer")

    def _count(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if code.co_filename in OWN:
            return
        if event == "call":
            self.counts[PYTHON, f"{frame.f_globals['__name__']}.{code.co_qualname}"] += 1
            self.counts[SYSTEM, "socket"] += code is socket.socket.__init__.__code__
        elif event == "c_call":
            self.counts[C, arg.__qualname__] += 1
            owner = next((each for each in type(arg.__self__).__mro__ if arg.__name__ in vars(each)), type(None))
            if "sluice_native" in f"{owner.__module__} {arg.__module__}":
                self.counts[COMPILED, f"{owner.__name__}.{arg.__name__}"] += 1
            elif isinstance(arg.__self__, select.epoll | socket.socket) and arg.__name__ in SYSTEM_CALLS:
                self.counts[SYSTEM, SYSTEM_CALLS[arg.__name__]] += 1

    async def connect(self) -> None:
        self.client = self.sockets.enter_context(new_socket())
        self.client.connect_ex(self.front.getsockname())
        await self.wait()
        with suppress(BlockingIOError):
            while True:
                # The first one only probes the broker.
                self.broker = self.sockets.enter_context(self.back.accept()[0])
        self.broker.setblocking(False)

    async def says(self, peer: socket.socket, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes that the client and the broker then receive."""
        if data:
            assert peer.send(data) == len(data)
        else:
            peer.shutdown(socket.SHUT_WR)
        await self.wait()
        return received(self.client), received(self.broker)

    async def exchange(self, asked: bytes, answered: bytes) -> None:
        assert await self.says(self.client, asked) == (b"", asked)
        assert await self.says(self.broker, answered) == (answered, b"")

    def sends(self, frames: int, topic: str) -> tuple[bytes, bytes]:
        """Return frames of 0.5 KiB in Java's encoding, and their answers. A ``{}`` becomes 1000 numbers."""
        ids = {opaque: {"UNIQ_KEY": f"{opaque:032X}"} for opaque in islice(self.numbers, frames)}
        sent = [rocketmq.send(topic.format(each % 1000), each, body=bytes(240), properties=ids[each]) for each in ids]
        return b"".join(sent), b"".join(map(rocketmq.answer, ids))


def received(peer: socket.socket) -> bytes:
    data = bytearray()
    with suppress(BlockingIOError):
        while chunk := peer.recv(1 << 20):
            data += chunk
    return bytes(data)


async def answered(rig: Rig, frames: int, topic: str) -> AsyncGenerator[None, None]:
    await rig.connect()
    while True:
        await rig.exchange(*rig.sends(frames, topic))
        yield


async def refused(rig: Rig, frames: int, topic: str) -> AsyncGenerator[None, None]:
    await rig.connect()
    while True:
        answers, forwarded = await rig.says(rig.client, rig.sends(frames, topic)[0])
        assert (len(list(rocketmq.split(answers))), forwarded) == (frames, b"")
        yield


async def accepted(rig: Rig, frames: int, topic: str) -> AsyncGenerator[None, None]:
    while True:
        await rig.connect()
        await rig.exchange(*rig.sends(frames, topic))
        for peer in (rig.client, rig.broker):
            await rig.says(peer, b"")
        assert not rig.path.server.connections
        yield


async def confirmed(rig: Rig, publishes: int) -> AsyncGenerator[None, None]:
    await rig.connect()
    await rig.says(rig.client, amqp.greeting())
    await rig.says(rig.broker, amqp.welcome())
    opened = amqp.method(1, 20, 11, bytes(4)) + amqp.method(1, 85, 11)
    await rig.exchange(amqp.channel_open(1) + amqp.confirm_select(1), opened)
    for first in count(1, publishes):
        confirms = b"".join(amqp.ack(1, tag) for tag in range(first, first + publishes))
        await rig.exchange(publishes * amqp.durable(1, "orders", bytes(128)), confirms)
        yield


async def disposed(rig: Rig, transfers: int, queue: str, credit: int = 0) -> AsyncGenerator[None, None]:
    window = {"next_outgoing_id": 0, "incoming_window": 1 << 30, "outgoing_window": 1 << 30}
    source, target = (codec.Described(codec.ULong(code), [f"/queues/{queue}"]) for code in (0x28, 0x29))
    link = {"handle": 0, "name": "sender", "source": source, "target": target}
    attached = say(0, "attach", role=False, initial_delivery_count=0, **link)
    await rig.connect()
    await rig.says(rig.client, codec.HEADER + say(0, "open", container_id="c") + say(0, "begin", **window) + attached)
    await rig.says(rig.broker, codec.HEADER + say(0, "open", container_id="b", properties=codec.RABBITMQ))
    await rig.says(rig.broker, say(0, "begin", remote_channel=0, **window) + say(0, "attach", role=True, **link))

    def given() -> bytes:
        numbers = {"delivery_count": sent, "link_credit": credit or 1 << 20}
        return say(0, "flow", next_incoming_id=sent, **window, handle=0, **numbers)

    sent = limit = 0
    told, _ = await rig.says(rig.broker, given())
    state, message = codec.Described(codec.ULong(0x24), []), codec.message(bytes(128))
    while True:
        # A link has little credit at first, and more when it has used all of it.
        for flow in [each for each in codec.read(told)[0] if each.name == "flow"]:
            limit = flow["delivery_count"] + flow["link_credit"]
        ids = range(sent, min(sent + transfers, limit))
        sent = ids.stop
        sends = [say(0, "transfer", message, handle=0, delivery_id=each, delivery_tag=b"%4d" % each) for each in ids]
        settles = b"".join(say(0, "disposition", role=True, first=each, settled=True, state=state) for each in ids)
        told, forwarded = await rig.says(rig.client, b"".join(sends))
        assert forwarded == b"".join(sends)
        heard, _ = await rig.says(rig.broker, settles + (given() if credit else b""))
        assert heard.startswith(settles)
        assert (heard == settles) is not bool(credit)
        told += heard
        if sent > 4 * credit * (credit > 0):
            yield


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(turn, "ROUND_NS", 1 << 60)
    monkeypatch.setattr(reactor, "perf_counter_ns", lambda: 0)
    # The order in which trio runs tasks is random, and pytest-trio seeds it differently.
    monkeypatch.setattr(trio._core._run, "_r", SimpleNamespace(random=lambda: 1.0))
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", False)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    gc.disable()
    with ExitStack() as sockets:
        yield Rig(sockets)
    sys.setprofile(None)
    gc.enable()


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_conversation_costs_no_more_calls_than_before(
    name: str, rig: Rig, mock_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    converse, *bounds, is_lent = CONVERSATIONS[name]
    if "fleet" in name:
        # As if Redis had granted them.
        monkeypatch.setattr(Member, "_is_local", False)
        monkeypatch.setattr(Member, "advance", lambda *_: 10**12)
    await rig.start(name, nursery, mock_clock)
    async with aclosing(converse(rig)) as conversation:
        counts = await rig.settled(partial(anext, conversation), WARM_RUNS)
    report, over = [name], False
    for kind_of_call, bound in zip(KINDS, (*bounds, inf), strict=True):
        calls = Counter({what: times for (each, what), times in counts.items() if each == kind_of_call})
        over = over or calls.total() > bound
        report.append(f"{calls.total()} {kind_of_call}, the bound is {bound}. Called most:")
        report += [f"{times:6} {what}" for what, times in calls.most_common(10)]
    print("\n".join(report))
    assert not over, "\n".join((*report, "Whoever raises a bound says why in the same commit."))
    assert rig.path._lending is not None
    assert bool(rig.path._lending.lent) is is_lent
