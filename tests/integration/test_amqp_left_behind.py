"""Clients leave in every way while messages are held. They must leave the same behind as directly."""

import itertools
import os
import random
import socket
import struct
import subprocess
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
import trio
from harness.amqp import HEARTBEAT, PROTOCOL_HEADER, Event, EventReader, method, publish, split_frames
from harness.paths import program
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

# Data that is read later than this stays in the sockets, as in a flood.
_LISTENER = """
[[listeners]]
listen = "{listen}"
broker = "{broker}"
protocol = "amqp091"
options = {{ scan = "{scan}", max_waiting_bytes = 65536 }}
"""
_LIMIT = """
[[limits]]
kind = "{kind}"
name = "*-{name}*"
rate = 2
burst_s = 0.5
{more}
"""
_HELD = 'action = "delay"\nmax_delay_s = 120\n'
_LIMITS = (
    ("queue", "slow", _HELD),
    ("queue", "spooled", _HELD + "spool = true\n"),
    ("queue", "refused", ""),
    ("exchange", "events", _HELD),
    ("delivery", "taken", ""),
)
_TARGETS = ("free", "slow", "spooled", "refused", "events")
_FILLED = 12
_TIMEOUT_S = 120.0
# Consumers of a gone client must be gone within this time, on a busy machine.
_GONE_S = 6.0
_AT_ONCE = 60
_WAYS = ("close", "channels", "end", "reset", "unread", "kill", "half", "silence")
# TESTED_AMQP_SEEDS=0-999 runs a thousand scripts.
_FIRST, _, _LAST = os.environ.get("TESTED_AMQP_SEEDS", "0-299").partition("-")


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    scans = ("auto", "python")
    routes = [Route(f"127.0.0.1:{free_port()}", rabbitmq.address) for _ in scans]
    listeners = [_LISTENER.format(**route._asdict(), scan=scan) for route, scan in zip(routes, scans, strict=True)]
    limits = [_LIMIT.format(kind=kind, name=name, more=more) for kind, name, more in _LIMITS]
    return start_sluice(routes=tuple(routes), config="".join((*listeners, *limits)))


@dataclass
class _Message:
    """One message of a run. Its body begins with its number."""

    queue: str
    stays: bool | None
    sent: bool = False


class _GoneError(Exception):
    """The peer has closed the channel or the connection."""


class _Client:
    """A connection that reads only while it waits for something."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.socket = sock
        self.hears: Callable[[Event], None] = lambda _: None
        self._reader = EventReader()
        self._events: list[Event] = []
        self._writing = trio.StrictFIFOLock()

    @classmethod
    @asynccontextmanager
    async def connected(cls, address: str, heartbeat_s: int = 0) -> AsyncIterator[Self]:
        host, _, port = address.rpartition(":")
        sock = trio.socket.socket()
        with sock:
            await sock.connect((host, int(port)))
            client = cls(sock)
            await client.send(PROTOCOL_HEADER)
            await client.expect(0, "connection.start")
            how = {"mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"}
            able = {"capabilities": {"basic.nack": True, "consumer_cancel_notify": True}}
            await client.send(method(0, "connection.start-ok", client_properties=able, **how))
            await client.expect(0, "connection.tune")
            tune = method(0, "connection.tune-ok", channel_max=2047, frame_max=131_072, heartbeat=heartbeat_s)
            await client.send(tune, method(0, "connection.open", virtual_host="/"))
            await client.expect(0, "connection.open-ok")
            yield client

    async def send(self, *frames: bytes) -> None:
        data = memoryview(b"".join(frames))
        async with self._writing:
            while data:
                data = data[await self.socket.send(data) :]

    async def read(self) -> None:
        data = await self.socket.recv(262_144)
        if not data:
            raise _GoneError("end of the stream")
        for event in self._reader.events(data):
            self.hears(event)
            if event.name not in {"basic.deliver", "basic.ack", "basic.nack"}:
                self._events.append(event)

    async def read_all(self) -> None:
        with trio.move_on_after(0.05):
            while True:
                await self.read()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        with trio.move_on_after(_TIMEOUT_S):
            while not condition():
                await self.read()
            return
        raise AssertionError(f"not {what} after {_TIMEOUT_S:g} s")

    async def expect(self, channel: int, *names: str) -> Event:
        found: list[Event] = []

        def came() -> bool:
            found.extend(
                each for each in self._events if each.channel in {0, channel} and _matters(each, channel, names)
            )
            return bool(found)

        await self.until(came, f"answered with {names} on channel {channel}")
        self._events.remove(found[0])
        if found[0].name not in names:
            raise _GoneError(f"{found[0].name} {found[0]['reply_code']} {found[0]['reply_text']}")
        return found[0]

    async def call(self, channel: int, name: str, **arguments: Any) -> Event:
        await self.send(method(channel, name, **arguments))
        return await self.expect(channel, f"{name}-ok", *(["basic.get-empty"] if name == "basic.get" else []))

    async def beat(self, every_s: float) -> None:
        while True:
            await trio.sleep(every_s)
            with suppress(OSError, trio.ClosedResourceError):
                await self.send(HEARTBEAT)


def _matters(event: Event, channel: int, names: tuple[str, ...]) -> bool:
    return (event.channel == channel and event.name in names) or event.name in {"channel.close", "connection.close"}


@dataclass
class _Channel:
    """Unfinished work of one channel."""

    number: int
    confirms: bool
    tx: bool
    published: int = 0
    pending: dict[int, _Message] = field(default_factory=dict)
    taken: dict[int, _Message] = field(default_factory=dict)
    without_acks: set[str] = field(default_factory=set)
    uncommitted: list[tuple[_Message, bool]] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)


class _Run:
    """One script at one address."""

    def __init__(self, seed: int, name: str, address: str, broker: str) -> None:
        self.seed = seed
        self.name = f"{seed}-{name}"
        self.limited = address != broker
        self.faults: list[str] = []
        self._address, self._broker = address, broker
        self._dice = random.Random(seed)
        self._messages: list[_Message] = []
        self._channels: dict[int, _Channel] = {}
        # The peer may not have read these, as a reset may lose them.
        self._unsure: list[_Message] = []
        self._consumed: list[str] = []
        self._temporary: list[str] = []
        # Maximum deliveries, by queue.
        self._most: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._way = self._dice.choice(_WAYS)
        self._log: list[str] = [self._way]

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self._log)}"

    # --- The script -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the script, and check that nothing of the client is left behind."""
        dice = self._dice
        async with _Client.connected(self._broker) as self._past:
            await self._past.call(1, "channel.open")
            for target in _TARGETS:
                await self._past.call(1, "queue.declare", queue=self._of(target), durable=True)
            await self._past.call(1, "exchange.declare", exchange=self._of("events"), type="fanout")
            await self._past.call(1, "queue.bind", queue=self._of("events"), exchange=self._of("events"))
            heartbeat_s = 2 if self._way == "silence" else dice.choice((0, 2, 4))
            roles = dice.choices(
                (self._publishes, self._consumes, self._gets, self._owns), (5, 4, 1, 2), k=dice.randint(1, 4)
            )
            async with (
                _Client.connected(self._address, heartbeat_s) as self._client,
                trio.open_nursery() as nursery,
            ):
                self._client.hears = self._hears
                if heartbeat_s:
                    nursery.start_soon(self._client.beat, heartbeat_s / 2)
                async with AsyncExitStack() as stack:
                    acts = [await stack.enter_async_context(aclosing(role())) for role in roles]
                    while acts:
                        act = dice.choice(acts)
                        if await anext(act, None) is None:
                            acts.remove(act)
                if dice.random() < 0.6:
                    await self._sync()
                if self._way in {"half", "silence"}:
                    nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await self._leave()
                    nursery.cancel_scope.cancel()
                    await self._check_gone()

    async def _sync(self) -> None:
        self._log.append("sync")
        await self._open()
        self._unsure.clear()

    async def _open(self, mode: str = "") -> _Channel:
        channel = _Channel(len(self._channels) + 1, confirms=mode == "confirm", tx=mode == "tx")
        self._channels[channel.number] = channel
        await self._client.call(channel.number, "channel.open")
        if mode:
            self._log.append(f"{mode} on {channel.number}")
            await self._client.call(channel.number, f"{mode}.select")
        return channel

    def _of(self, queue: str) -> str:
        return f"{self.name}-{queue}"

    def _make(self, queue: str, *, stays: bool | None = True) -> tuple[_Message, bytes]:
        message = _Message(queue, stays)
        self._messages.append(message)
        return message, b"%d " % (len(self._messages) - 1)

    def _becomes(self, channel: _Channel, message: _Message, *, stays: bool) -> None:
        if channel.tx:
            channel.uncommitted.append((message, stays))
        else:
            message.stays = stays
            self._unsure.append(message)

    async def _publish(
        self, channel: _Channel, targets: Sequence[str], most: int = 15, size: int | None = None
    ) -> None:
        frames = []
        for _ in range(self._dice.randint(1, most)):
            target = self._dice.choice(targets)
            message, body = self._make(self._of(target), stays=False if channel.tx else None)
            if channel.confirms:
                channel.published += 1
                channel.pending[channel.published] = message
            else:
                self._becomes(channel, message, stays=True)
            body += bytes(self._dice.choice((0, 300, 2000)) if size is None else size)
            exchange = self._of(target) if target == "events" else ""
            frames.append(publish(channel.number, self._of(target), body, exchange=exchange))
        self._log.append(f"{len(frames)} to {'/'.join(targets)} on {channel.number}")
        await self._client.send(*frames)

    async def _publishes(self) -> AsyncIterator[bool]:
        dice = self._dice
        channel = await self._open(dice.choice(("", "", "confirm", "tx")))
        targets, answers = dice.sample(_TARGETS, dice.randint(1, 3)), 0
        # More than Sluice reads.
        how = {"most": 40, "size": 8000} if dice.random() < 0.2 else {}
        for _ in range(dice.randint(1, 3)):
            await self._publish(channel, targets, **how)
            yield True
            if channel.tx:
                if await self._end_transaction(channel) == "commit unheard":
                    return  # the broker accepts no more on that channel until it has answered
            elif channel.confirms:
                answers = min(answers + dice.randint(0, 4), channel.published)
                self._log.append(f"until {answers} are answered")
                await self._client.until(
                    lambda answers=answers: channel.published - len(channel.pending) >= answers, "confirmed"
                )
            yield True

    async def _end_transaction(self, channel: _Channel) -> str:
        how = self._dice.choice(("commit", "commit", "commit unheard", "rollback", "none"))
        self._log.append(f"{how} on {channel.number}")
        if how == "none":
            return how
        name = f"tx.{how.split()[0]}"
        changes, channel.uncommitted = channel.uncommitted, []
        if name == "tx.commit":
            for message, stays in changes:
                message.stays = stays
                self._unsure.append(message)
        if how == "commit unheard":
            await self._client.send(method(channel.number, name))
            return how
        await self._client.call(channel.number, name)
        for message, _ in changes:
            with suppress(ValueError):
                self._unsure.remove(message)
        return how

    async def _filled(self, kind: str) -> str:
        """Fill a queue, directly at the broker, and return its name."""
        queue = self._of(f"{kind}{next(self._numbers)}")
        await self._past.call(1, "queue.declare", queue=queue, durable=True)
        # Sluice does not have all of the large ones.
        filling = bytes(self._dice.choice((0, 0, 8000)))
        await self._past.send(*(publish(1, queue, self._make(queue)[1] + filling) for _ in range(_FILLED)))
        await self._past.call(1, "queue.declare", queue=queue, passive=True)
        self._consumed.append(queue)
        return queue

    async def _consumes(self) -> AsyncIterator[bool]:
        dice = self._dice
        channel, prefetch, comes = await self._open(dice.choice(("", "", "", "tx"))), dice.choice((0, 1, 3, 5)), 0
        publishes = dice.random() < 0.4
        await self._client.call(channel.number, "basic.qos", prefetch_count=prefetch)
        for each in range(dice.randint(1, 2)):
            queue = await self._filled(dice.choice(("taken", "taken", "open")))
            without_acks, exclusive, tag = dice.random() < 0.35, dice.random() < 0.3, f"c{each}"
            channel.queues.append(queue)
            if without_acks:
                channel.without_acks.add(tag)
                self._may_go(queue)
            else:
                comes += prefetch or _FILLED
                self._most[queue] = prefetch or _FILLED
            self._log.append(f"consume {queue} on {channel.number}, prefetch {prefetch}, no_ack {without_acks}")
            how = {"queue": queue, "consumer_tag": tag, "no_ack": without_acks, "exclusive": exclusive}
            if publishes and dice.random() < 0.3:
                self._log.append("unheard, behind:")
                await self._publish(channel, ("slow", "free"))
                await self._client.send(method(channel.number, "basic.consume", **how))
                return
            await self._client.call(channel.number, "basic.consume", **how)
            yield True
        left = dice.randint(0, min(6, comes))
        self._log.append(f"until {left} are there")
        await self._client.until(lambda wanted=left: len(channel.taken) >= wanted, "delivered")
        for _ in range(dice.randint(0, 3)):
            yield True
            if publishes:
                await self._publish(channel, ("slow", "free"))
            if left:
                left -= await self._settle(channel, left)
        if channel.tx and dice.random() < 0.7:
            await self._end_transaction(channel)
        elif dice.random() < 0.15:
            self._log.append("cancel c0")
            await self._client.call(channel.number, "basic.cancel", consumer_tag="c0")

    def _may_go(self, queue: str) -> None:
        for message in self._messages:
            if message.queue == queue and message.stays:
                message.stays = None

    async def _settle(self, channel: _Channel, left: int) -> int:
        """Settle some known deliveries, and return their maximum number."""
        dice = self._dice
        act = dice.choice(("ack", "ack", "ack multiple", "ack all", "reject", "drop", "requeue multiple", "recover"))
        place = dice.randrange(left)
        self._log.append(f"{act} {place} on {channel.number}")
        tags = list(channel.taken)[: place + 1] if "multiple" in act else list(channel.taken)[place : place + 1]
        if act in {"recover", "ack all"}:
            tags = list(channel.taken)
        for queue in channel.queues:
            if queue in self._most:
                self._most[queue] += len(tags)
        messages = [channel.taken.pop(tag) for tag in tags]
        if act == "recover":
            await self._client.call(channel.number, "basic.recover", requeue=True)
            return left
        requeues = act in {"reject", "requeue multiple"}
        if not requeues:
            for message in messages:
                self._becomes(channel, message, stays=False)
        if act.startswith("ack"):
            tag = 0 if act == "ack all" else tags[-1]
            await self._client.send(method(channel.number, "basic.ack", delivery_tag=tag, multiple=act != "ack"))
        elif act == "requeue multiple":
            await self._client.send(
                method(channel.number, "basic.nack", delivery_tag=tags[-1], multiple=True, requeue=True)
            )
        else:
            await self._client.send(method(channel.number, "basic.reject", delivery_tag=tags[-1], requeue=requeues))
        if act == "ack all":
            await self._after_ack_of_all(channel)
            return left
        return place + 1 if "multiple" in act else 1

    async def _after_ack_of_all(self, channel: _Channel) -> None:
        """It covers the deliveries sent to the client, read or not. Directly, all that the broker has sent."""
        await self._sync()
        for message in channel.taken.values():
            message.stays = None
        if not self.limited:
            for queue in channel.queues:
                self._may_go(queue)

    async def _gets(self) -> AsyncIterator[bool]:
        dice, channel = self._dice, await self._open()
        if dice.random() < 0.2:
            await self._publish(channel, ("slow",), 3)
        queue, without_acks = await self._filled(dice.choice(("taken", "open"))), dice.random() < 0.4
        count = dice.randint(1, 5)
        self._log.append(f"{count} gets of {queue} on {channel.number}, no_ack {without_acks}")
        for _ in range(count):
            got = await self._client.call(channel.number, "basic.get", queue=queue, no_ack=without_acks)
            self._took(channel, got, without_acks=without_acks)
            yield True
        if not without_acks and dice.random() < 0.6:
            await self._settle(channel, count)
        elif dice.random() < 0.5:
            # The answer is not awaited.
            self._log.append("one more")
            await self._client.send(method(channel.number, "basic.get", queue=queue, no_ack=without_acks))
            if without_acks:
                self._may_go(queue)

    async def _owns(self) -> AsyncIterator[bool]:
        """Create a queue that ends with the client."""
        dice, channel = self._dice, await self._open()
        queue = self._of(f"{dice.choice(('slow', 'taken', 'own'))}{next(self._numbers)}")
        exclusive = dice.random() < 0.6
        self._log.append(f"own {queue}, exclusive {exclusive}, on {channel.number}")
        await self._client.call(
            channel.number, "queue.declare", queue=queue, exclusive=exclusive, auto_delete=not exclusive
        )
        self._temporary.append(queue)
        await self._client.call(
            channel.number, "basic.consume", queue=queue, consumer_tag="o", no_ack=dice.random() < 0.5
        )
        channel.without_acks.add("o")
        yield True
        for _ in range(dice.randint(0, 2)):
            await self._client.send(
                *(publish(channel.number, queue, self._make(queue, stays=None)[1]) for _ in range(dice.randint(1, 10)))
            )
            yield True

    # --- Events of the client ---------------------------------------------------------------------

    def _hears(self, event: Event) -> None:
        channel = self._channels.get(event.channel)
        if channel is None:
            return
        if event.name == "basic.deliver":
            self._took(channel, event, without_acks=event["consumer_tag"] in channel.without_acks)
        elif event.name in {"basic.ack", "basic.nack"}:
            tag = event["delivery_tag"]
            for number in [each for each in channel.pending if each == tag or (event["multiple"] and each < tag)]:
                channel.pending.pop(number).stays = event.name == "basic.ack"

    def _took(self, channel: _Channel, event: Event, *, without_acks: bool) -> None:
        message = self._messages[int(event.body.split(b" ", 1)[0])]
        message.sent = True
        if without_acks:
            message.stays = False
        else:
            channel.taken[event["delivery_tag"]] = message

    # --- The end -----------------------------------------------------------------------------------

    async def _leave(self) -> None:
        client, way = self._client, self._way
        if way == "close":
            await client.call(0, "connection.close", reply_code=200)
        elif way == "channels":
            for number in self._channels:
                await client.call(number, "channel.close", reply_code=200)
        elif way == "half":
            client.socket.shutdown(socket.SHUT_WR)
        elif way == "unread":
            # The answer has arrived, unread.
            await client.send(method(len(self._channels) + 1, "channel.open"))
            await trio.lowlevel.wait_readable(client.socket)
        elif way == "silence":
            # The peer ends it, sooner or later.
            await trio.sleep(5)
        else:
            if self._dice.random() < 0.2:
                await self._begin_to_publish()
            await client.read_all()
        if way == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way == "kill":
            await self._kill()
        if way not in {"silence", "half"}:
            client.socket.close()
        for channel in self._channels.values():
            for message in channel.pending.values():
                message.stays = None if self.limited else True
                self._unsure.append(message)
        # RabbitMQ itself drops publishes that its channel has not handled when it sees the end of the stream.
        if way in {"reset", "unread"} or (way in {"end", "kill", "half"} and not self.limited):
            for message in self._unsure:
                message.stays = None

    async def _begin_to_publish(self) -> None:
        """Publish half a message, which must not be delivered."""
        channel, in_a_frame = await self._open(), self._dice.random() < 0.3
        self._log.append(f"half a message, half a frame {in_a_frame}")
        _, body = self._make(self._of("free"), stays=False)
        frames = split_frames(publish(channel.number, self._of("free"), body + bytes(300)))
        await self._client.send(*frames[:-1], frames[-1][: 100 * in_a_frame])
        if in_a_frame and self.limited:
            # Nothing can follow that frame to the broker.
            for target in _TARGETS:
                self._may_go(self._of(target))

    async def _kill(self) -> None:
        """Pass the socket to another process, and kill it."""
        command = [program("sleep"), "600"]
        owner = subprocess.Popen(command, pass_fds=(self._client.socket.fileno(),))  # noqa: ASYNC220 - takes no time
        self._client.socket.close()
        owner.kill()
        owner.wait()

    async def _check_gone(self) -> None:
        """Check that the client's consumers are gone, and that its queues can be used."""
        for queue in self._consumed:
            await self._wait(lambda queue=queue: self._has_consumer(queue), f"{queue} has a consumer still")
            frames = [publish(1, queue, self._make(queue)[1]) for _ in range(2)]
            await self._past.send(*frames)
            await self._past.call(1, "queue.declare", queue=queue, passive=True)
        for queue in self._temporary:
            await self._wait(lambda queue=queue: self._exists(queue), f"{queue} is there still")

    async def _wait(self, stands: Callable[[], Any], what: str) -> None:
        began = trio.current_time()
        while told := await stands():
            if trio.current_time() > began + _GONE_S:
                self.faults.append(f"{what} after {_GONE_S:g} s: {told}")
                return
            await trio.sleep(0.2)

    async def _has_consumer(self, queue: str) -> int:
        return int((await self._past.call(1, "queue.declare", queue=queue, passive=True))["consumer_count"])

    async def _exists(self, queue: str) -> str:
        await self._past.call(2, "channel.open")
        try:
            await self._past.call(2, "queue.declare", queue=queue, passive=True)
        except _GoneError as error:
            await self._past.send(method(2, "channel.close-ok"))
            return "" if " 404 " in str(error) else str(error)
        await self._past.call(2, "channel.close")
        return "it exists"

    async def check(self) -> None:
        """Compare the stored messages with the expected ones."""
        stored: dict[str, Counter[int]] = defaultdict(Counter)
        flagged: dict[str, set[int]] = defaultdict(set)
        async with _Client.connected(self._broker) as client:
            await client.call(1, "channel.open")
            for queue in (*map(self._of, _TARGETS), *self._consumed):
                while (got := await client.call(1, "basic.get", queue=queue, no_ack=True)).name != "basic.get-empty":
                    number = int(got.body.split(b" ", 1)[0])
                    stored[queue][number] += 1
                    if got["redelivered"]:
                        flagged[queue].add(number)
        wrong: dict[str, list[int]] = defaultdict(list)
        for number, message in enumerate(self._messages):
            if message.queue in self._temporary:
                continue
            times = stored[message.queue].pop(number, 0)
            if times > 1 or (message.stays is not None and times != message.stays):
                wrong[f"stored {times} times in {message.queue}"].append(number)
            elif times and message.sent and number not in flagged[message.queue]:
                wrong[f"delivered, and not marked as redelivered in {message.queue}"].append(number)
        self.faults += [f"{what}: {numbers}" for what, numbers in wrong.items()]
        for queue, most in self._most.items():
            if len(flagged[queue]) > most:
                self.faults.append(
                    f"{len(flagged[queue])} messages of {queue} are marked as redelivered, {most} at most"
                )
        if left := {queue: dict(of) for queue, of in stored.items() if of}:
            self.faults.append(f"nobody published {left}")


async def _faulty(seeds: Iterable[int], rabbitmq: RabbitMQ, sluice: Sluice, *, again: str = "") -> list[int]:
    """Run scripts, print failures, and return their seeds."""
    compiled, python = (route.listen for route in sluice.routes)
    places = {"direct": rabbitmq.address, "compiled": compiled, "python": python}
    runs = [_Run(seed, name + again, address, rabbitmq.address) for seed in seeds for name, address in places.items()]
    at_once = trio.CapacityLimiter(_AT_ONCE)

    async def guarded(run: _Run, what: Callable[[], Any]) -> None:
        async with at_once:
            try:
                with trio.fail_after(4 * _TIMEOUT_S):
                    await what()
            except Exception as error:  # noqa: BLE001 - of this seed; the others go on
                run.faults.append(f"{what.__name__}: {error!r}"[:400])

    def settled() -> None:
        sluice.wait_for_metrics(
            lambda metrics: (
                metrics.total("sluice_connections") == metrics.total("sluice_held_requests") == 0
                and metrics.total("sluice_spool_messages") == 0
            )
        )

    async with trio.open_nursery() as nursery:
        for run in runs:
            nursery.start_soon(guarded, run, run.run)
    await trio.to_thread.run_sync(settled)
    async with trio.open_nursery() as nursery:
        for run in runs:
            nursery.start_soon(guarded, run, run.check)
    for run in runs:
        if run.faults:
            print(run, *run.faults, sep="\n    ")
    return sorted({run.seed for run in runs if run.faults})


async def test_a_client_leaves_the_same_behind_as_directly(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    assert await _faulty(range(3), rabbitmq, sluice) == []


@pytest.mark.long
async def test_a_client_leaves_the_same_behind_as_directly_for_many_seeds(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    faulty = await _faulty(range(int(_FIRST), int(_LAST or _FIRST) + 1), rabbitmq, sluice)
    # RabbitMQ drops the last publishes of a connection now and then if it ends at once, with any client.
    assert await _faulty(faulty, rabbitmq, sluice, again="-again") == []
