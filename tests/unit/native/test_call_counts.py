"""Counts the calls of conversations through the data path. Times differ from run to run, these counts do not.

Sockets, epolls and clocks are stand-ins, the rest is a whole data path with the compiled part. A conversation is
repeated until it costs the same twice. A resumed coroutine counts as called. Instances and attributes of the compiled
part do not count, because the interpreter does not report them. ``pytest -rP`` shows all figures.
"""

import gc
import logging
import os
import select
import socket
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
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

from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.pipeline import HandlerConfig
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.net import connection, reactor, sockets
from proxy.net.server import ListenerConfig
from proxy.net.sockets import Inherited
from proxy.protocols.amqp091 import PROTOCOL as AMQP091
from proxy.protocols.amqp10 import PROTOCOL as AMQP10
from proxy.protocols.rocketmq import PROTOCOL as ROCKETMQ

PYTHON, COMPILED, SYSTEM, C = KINDS = ("Python calls", "compiled calls", "system calls", "C calls")

# fmt: off
#: As measured with CPython 3.11. Whoever raises a bound says why in the same commit.
CONVERSATIONS = {
    #                                                                                         Python  compiled  system
    "RocketMQ: 1 frame, its answer":                (lambda rig: answered(rig, 1, "orders"),     200,        5,    17),
    "RocketMQ: 4 frames, their answers":            (lambda rig: answered(rig, 4, "orders"),     200,        5,    17),
    "RocketMQ: 32 frames, their answers":           (lambda rig: answered(rig, 32, "orders"),    200,        5,    17),
    "RocketMQ: 250 frames of 1 000 topics":         (lambda rig: answered(rig, 250, "topic{}"),  200,        5,    17),
    "RocketMQ: 250 frames that are refused":        (lambda rig: refused(rig, 250, "refused"),   218,       16,    10),
    "RocketMQ: accept, 1 frame, its answer, close": (lambda rig: accepted(rig, 1, "orders"),     634,        6,    66),
    "AMQP 0.9.1: 1 publish, its confirm":           (lambda rig: confirmed(rig, 1),              261,       11,    17),
    "AMQP 0.9.1: 32 publishes, their confirms":     (lambda rig: confirmed(rig, 32),             261,       11,    17),
    "AMQP 1.0: 1 transfer, its disposition":        (lambda rig: disposed(rig, 1, "orders"),     229,        3,    17),
    "AMQP 1.0: 32 transfers, their dispositions":   (lambda rig: disposed(rig, 32, "orders"),    229,        3,    17),
    "AMQP 1.0: 32 transfers that may be refused":   (lambda rig: disposed(rig, 32, "critical"), 2981,       70,    17),
}
#: By method of the stand-ins, and of trio's own epoll.
SYSTEM_CALLS = {
    "register": "epoll_ctl", "modify": "epoll_ctl", "unregister": "epoll_ctl", "poll": "epoll_wait",
    "__init__": "socket", "accept": "accept4", "connect_ex": "connect", "setblocking": "ioctl",
    "recv": "recvfrom", "recv_into": "recvfrom", "send": "sendto", "sendmsg": "sendmsg",
    "setsockopt": "setsockopt", "getsockname": "getsockname", "shutdown": "shutdown", "close": "close",
}
# fmt: on

PROTOCOLS = {"RocketMQ": ROCKETMQ, "AMQP 0.9.1": AMQP091, "AMQP 1.0": AMQP10}
#: Connections are on trial at first, and each topic is new once. A run is longer than the 10 ms between two timed
#: answers. All runs together are shorter than any timer of the data path.
WARM_RUNS, MAX_RUNS, RUN_S, STEP_S = 20, 30, 0.011, 0.001
#: Calls from these files do not count.
OWN = {__file__, MockClock.jump.__code__.co_filename}


class Epoll:
    def __init__(self, rig: "Rig") -> None:
        self.rig = rig
        self.wanted: set[int] = set()
        rig.epolls.append(self)

    def register(self, fd: int, events: int) -> None:
        assert events == select.EPOLLIN
        # The reactor's outermost one watches the others.
        if fd != self.rig.event:
            self.wanted.add(fd)
            self.rig.look()

    def unregister(self, fd: int) -> None:
        self.wanted.remove(fd)
        self.rig.look()

    def poll(self, _: float = 0, most: int | None = None) -> list[tuple[int, int]]:
        return [(fd, select.EPOLLIN) for fd in sorted(self.wanted) if self.rig.open[fd].inbox][:most]

    def fileno(self) -> int:
        return self.rig.event

    def close(self) -> None: ...


class Socket:
    """A socket that takes everything. Bytes, an end of stream and accepted sockets arrive in its inbox."""

    family = socket.AF_INET

    def __init__(self, rig: "Rig", *_: int) -> None:
        self.rig = rig
        self.fd = next(rig.numbers)
        rig.open[self.fd] = self
        self.inbox: deque[Any] = deque()
        self.sent = bytearray()

    def fileno(self) -> int:
        return self.fd

    def setblocking(self, _: object) -> None: ...
    def setsockopt(self, *_: int) -> None: ...
    def listen(self, _: int) -> None: ...
    def shutdown(self, _: int) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 10_000

    def connect_ex(self, _: object) -> int:
        self.rig.connected = self
        return 0

    def accept(self) -> tuple["Socket", tuple[str, int]]:
        return self._next(), ("127.0.0.1", 20_000)

    def recv_into(self, buffer: memoryview) -> int:
        data = self._next()
        size = min(len(data), len(buffer))
        buffer[:size] = data[:size]
        if size < len(data):
            self.inbox.appendleft(data[size:])
            self.rig.look()
        return size

    def recv(self, *_: int) -> bytes:  # a peek at a new client
        raise BlockingIOError

    def _next(self) -> Any:
        if not self.inbox:
            raise BlockingIOError
        item = self.inbox.popleft()
        self.rig.look()
        return item

    def send(self, data: memoryview) -> int:
        return self.sendmsg([data])

    def sendmsg(self, slices: Sequence[memoryview]) -> int:
        self.sent += b"".join(slices)
        return sum(map(len, slices))

    def close(self) -> None:
        del self.rig.open[self.fd]
        # A second time it is no system call.
        self.close = lambda: None


class Rig:
    """The stand-ins of a data path, both ends of a connection through it, and its calls by kind and name."""

    def __init__(self, clock: MockClock) -> None:
        self.clock = clock
        # Readable while a stand-in is ready.
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self.is_ready = False
        self.numbers = count(1_000_000_000)
        self.open: dict[int, Socket] = {}
        self.epolls: list[Epoll] = []
        self.listening = self.connected = self.client = self.broker = Socket(self)
        self.counts, self.idle = Counter[tuple[str, str]](), Counter[tuple[str, str]]()

    def look(self) -> None:
        if self.is_ready is not any(epoll.poll() for epoll in self.epolls):
            self.is_ready = not self.is_ready
            os.eventfd_write(self.event, 1) if self.is_ready else os.eventfd_read(self.event)

    async def deliver(self, peer: Socket, *items: object) -> None:
        """Put something into an inbox, and wait until the data path is idle. The wait itself does not count."""
        self.clock.jump(STEP_S)
        peer.inbox.extend(items)
        self.look()
        sys.setprofile(self._count)
        await wait_all_tasks_blocked()
        sys.setprofile(None)
        self.counts.subtract(self.idle)

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
        code, caller = frame.f_code, frame.f_back
        if event == "call":
            if code.co_filename not in OWN:
                self.counts[PYTHON, f"{frame.f_globals['__name__']}.{code.co_qualname}"] += 1
            elif code.co_name in SYSTEM_CALLS and caller is not None and caller.f_code.co_filename not in OWN:
                self.counts[SYSTEM, SYSTEM_CALLS[code.co_name]] += 1
        elif event == "c_call" and code.co_filename not in OWN:
            self.counts[C, arg.__qualname__] += 1
            owner = next((each for each in type(arg.__self__).__mro__ if arg.__name__ in vars(each)), type(None))
            if "sluice_native" in f"{owner.__module__} {arg.__module__}":
                self.counts[COMPILED, f"{owner.__name__}.{arg.__name__}"] += 1
            elif owner is select.epoll:
                self.counts[SYSTEM, SYSTEM_CALLS[arg.__name__]] += 1

    async def connect(self) -> None:
        self.client = Socket(self)
        await self.deliver(self.listening, self.client)
        self.broker = self.connected

    async def says(self, peer: Socket, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes that the client and the broker receive then."""
        self.client.sent, self.broker.sent = bytearray(), bytearray()
        await self.deliver(peer, data)
        return bytes(self.client.sent), bytes(self.broker.sent)

    async def exchange(self, asked: bytes, answered: bytes) -> None:
        assert await self.says(self.client, asked) == (b"", asked)
        assert await self.says(self.broker, answered) == (answered, b"")

    def sends(self, frames: int, topic: str) -> tuple[bytes, bytes]:
        """Return frames of 0.5 KiB as Java clients write them, and their answers. A ``{}`` becomes 1000 numbers."""
        ids = {opaque: {"UNIQ_KEY": f"{opaque:032X}"} for opaque in islice(self.numbers, frames)}
        sent = [rocketmq.send(topic.format(each % 1000), each, body=bytes(240), properties=ids[each]) for each in ids]
        return b"".join(sent), b"".join(map(rocketmq.answer, ids))


async def answered(rig: Rig, frames: int, topic: str) -> AsyncGenerator[None, None]:
    while True:
        await rig.exchange(*rig.sends(frames, topic))
        yield


async def refused(rig: Rig, frames: int, topic: str) -> AsyncGenerator[None, None]:
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
        assert not {rig.client.fd, rig.broker.fd} & rig.open.keys()
        yield


async def confirmed(rig: Rig, publishes: int) -> AsyncGenerator[None, None]:
    await rig.says(rig.client, amqp.greeting())
    await rig.says(rig.broker, amqp.welcome())
    opened = amqp.method(1, 20, 11, bytes(4)) + amqp.method(1, 85, 11)
    await rig.exchange(amqp.channel_open(1) + amqp.confirm_select(1), opened)
    for first in count(1, publishes):
        confirms = b"".join(amqp.ack(1, tag) for tag in range(first, first + publishes))
        await rig.exchange(publishes * amqp.durable(1, "orders", bytes(128)), confirms)
        yield


async def disposed(rig: Rig, transfers: int, queue: str) -> AsyncGenerator[None, None]:
    window = {"next_outgoing_id": 0, "incoming_window": 1 << 30, "outgoing_window": 1 << 30}
    source, target = (codec.Described(codec.ULong(code), [f"/queues/{queue}"]) for code in (0x28, 0x29))
    link = {"handle": 0, "name": "sender", "source": source, "target": target}
    attached = say(0, "attach", role=False, initial_delivery_count=0, **link)
    await rig.says(rig.client, codec.HEADER + say(0, "open", container_id="c") + say(0, "begin", **window) + attached)
    await rig.says(rig.broker, codec.HEADER + say(0, "open", container_id="b", properties=codec.RABBITMQ))
    await rig.says(rig.broker, say(0, "begin", remote_channel=0, **window) + say(0, "attach", role=True, **link))
    given = say(0, "flow", next_incoming_id=0, **window, handle=0, delivery_count=0, link_credit=1 << 20)
    told, _ = await rig.says(rig.broker, given)
    state, message = codec.Described(codec.ULong(0x24), []), codec.message(bytes(128))
    sent = limit = 0
    while True:
        # A link has little credit at first, and more when it has used all of it.
        for flow in codec.read(told)[0]:
            limit = flow["delivery_count"] + flow["link_credit"]
        ids = range(sent, min(sent + transfers, limit))
        sent = ids.stop
        sends = [say(0, "transfer", message, handle=0, delivery_id=each, delivery_tag=b"%4d" % each) for each in ids]
        settles = [say(0, "disposition", role=True, first=each, settled=True, state=state) for each in ids]
        told, forwarded = await rig.says(rig.client, b"".join(sends))
        assert forwarded == b"".join(sends)
        assert await rig.says(rig.broker, b"".join(settles)) == (b"".join(settles), b"")
        yield


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock) -> Iterator[Rig]:
    rig = Rig(mock_clock)
    monkeypatch.setattr(sockets, "socket", SimpleNamespace(**vars(socket) | {"socket": partial(Socket, rig)}))
    monkeypatch.setattr(reactor, "select", SimpleNamespace(epoll=partial(Epoll, rig)))
    monkeypatch.setattr(reactor, "perf_counter_ns", lambda: 0)
    monkeypatch.setattr(connection, "perf_counter_ns", lambda: 0)
    # The order in which trio runs tasks is random, and pytest-trio has it drawn in another way.
    monkeypatch.setattr(trio._core._run, "_r", SimpleNamespace(random=lambda: 1.0))
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", False)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    gc.disable()
    yield rig
    sys.setprofile(None)
    gc.enable()
    os.close(rig.event)


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_conversation_costs_no_more_calls_than_before(
    name: str, rig: Rig, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    converse, *bounds = CONVERSATIONS[name]
    protocol = PROTOCOLS[name.split(":", maxsplit=1)[0]]
    kind = protocol.kinds[0]
    default = Rule(kind.name, "*", 1e9, action=kind.action, credit_waits=bool(kind.credit_waits))
    rules = RuleSet((default, Rule(kind.name, "refused", 0), Rule(kind.name, "critical", 1e9)))
    listener = ListenerConfig("main", protocol, protocol.options(), rig.listening.getsockname(), ("127.0.0.1", 1))
    config = DataPathConfig((listener,), (HandlerConfig(RATE_LIMIT, RateLimitOptions()),), rules)
    now_s = mock_clock.current_time
    path = LocalDataPath(config, lambda: round(now_s() * 1e9), lambda: datetime.fromtimestamp(now_s(), UTC))
    await nursery.start(partial(path.run, inherited=Inherited([rig.listening])))
    rig.idle = await rig.settled(lambda: rig.deliver(rig.client), 0)
    await rig.connect()
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
