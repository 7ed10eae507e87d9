"""Messages that an earlier process left in the spool are sent by the next connection of the same user, vhost and
listener.
"""

from collections.abc import Callable, Sequence
from random import Random

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver, hold
from hypothesis import given
from hypothesis import strategies as st
from spool_disk import NONCE, FakeDisk

from limiter.rules.resource import Resource
from proxy.deciding.batch import Request, Verdict
from proxy.protocols.amqp091.after_consume import Hub
from proxy.protocols.amqp091.replay import _MAX_AT_ONCE, _MAX_IN_TURN
from proxy.protocols.base import Close
from proxy.spool.segments import RECORD_BYTES, Extent, Found, FoundQueue, RunOnDisk, header_at
from proxy.spool.spool import Hooks, QueueName, Spool, SpoolSettings
from proxy.spool.store import Write

NS = 1_000_000_000
# The maximum offered by ``frames.tune``, which becomes the number of Sluice's own channel.
OFFERED = 100
SENDER = ("%2F", "guest")


class Disk(FakeDisk):
    """A disk whose content survives a process."""

    def __init__(self) -> None:
        super().__init__()
        self.singles: set[Extent] = set()

    def finish_write(self, error: OSError | None = None) -> None:
        job = self.writes[0]
        super().finish_write(error)
        if isinstance(job, Write) and job.extent is not None and job.is_single:
            self.singles.add(job.extent)


class Left:
    """A spool on a disk in memory, with messages of an earlier process."""

    def __init__(self, memory_bytes: int = 1 << 20) -> None:
        self.disk = Disk()
        self.settings = SpoolSettings(memory_bytes=memory_bytes)
        self.spool = self._open(0)

    def _open(self, now_ns: int) -> Spool:
        return Spool(self.settings, Hooks(print, print, print), self.disk, now_ns=now_ns)

    def put(
        self,
        name: str,
        publishes: Sequence[bytes],
        *,
        sender: tuple[str, str] = SENDER,
        listener: str = "main",
        expires_ns: int = 0,
    ) -> None:
        queue = self.spool.queue(QueueName(listener, "queue", name, sender).encoded(), lambda _: None)
        for publish in publishes:
            queue.append((publish,), 0, NS, expires_ns=expires_ns, is_refusable=False, is_recoverable=True)

    def crash(self) -> Spool:
        """Start a new process on the written data. Return its spool."""
        for queue in list(self.spool._queues.values()):
            queue.write_all()
        self.disk.finish_all()
        return self.crash_as_it_is()

    def crash_as_it_is(self) -> Spool:
        self.disk.writes.clear()
        self.disk.reads.clear()
        found: dict[int, FoundQueue] = {}
        runs = [(header_at(data, NONCE), extent) for extent, data in self.disk.runs.items()]
        for header, extent in sorted(runs, key=lambda each: each[0].number):
            run = RunOnDisk(extent, *self._left(extent, header.entries, header.body_bytes))
            found.setdefault(header.queue, FoundQueue(header.name, 0)).runs.append(run)
        self.spool = self._open(10 * NS)
        self.spool._adopt(Found(found, sum(run.entries for each in found.values() for run in each.runs)))
        return self.spool

    def _left(self, extent: Extent, entries: int, body_bytes: int) -> tuple[int, int, int, bool]:
        return entries, entries, body_bytes - entries * RECORD_BYTES, extent in self.disk.singles

    def entries(self) -> int:
        return sum(queue.count for queue in self.spool._queues.values())


@pytest.fixture
def left() -> Left:
    return Left()


def publish(number: int, key: str = "orders", channel: int = 7, exchange: str = "", **more: object) -> bytes:
    return b"".join(frames.publish(channel, exchange, key, b"%d" % number, **more))


class Broker:
    """Answers on Sluice's own channel, and records publishes there.

    ``closes`` decides for each message whether the channel is closed. ``opened`` counts opens.
    """

    def __init__(self, driver: Driver, spool: Spool, disk: FakeDisk | None = None) -> None:
        self.driver, self.spool, self.disk = driver, spool, disk
        self.number = OFFERED
        self.published: list[frames.Message] = []
        self.closes: Callable[[frames.Message], bool] = lambda _: False
        self.is_open = False
        self.opened = 0
        # Kinds and lengths.
        self.frames: list[tuple[int, int]] = []

    def connect(self, *, vhost: str = "/", user: str = "guest", frame_max: int = frames.FRAME_MAX) -> "Broker":
        driver = self.driver
        driver.give(CLIENT, frames.HEADER)
        driver.give(BROKER, frames.start())
        driver.give(CLIENT, frames.start_ok(user))
        driver.give(BROKER, frames.tune(OFFERED, frame_max))
        (offered,) = (m.arguments[:2] for m in driver.to_client() if m.method == (10, 30))
        agreed = frames.tune_ok(int.from_bytes(offered), frame_max)
        driver.give(CLIENT, agreed + frames.connection_open(vhost))
        driver.forget().give(BROKER, frames.open_ok())
        return self

    def step(self) -> bool:
        """Answer new frames. Return whether there were any."""
        data = bytes(self.driver.written[BROKER])
        self.driver.written[BROKER].clear()
        answers = b""
        self.frames += [(frame.kind, len(frame.payload)) for frame in frames.read(data)]
        for message in frames.messages(data):
            if message.channel != self.number:
                continue
            if message.method == (20, 10):
                assert not self.is_open
                self.is_open, self.opened = True, self.opened + 1
                answers += frames.method(self.number, 20, 11, frames.long(""))
            elif message.method == (20, 40):
                assert self.is_open
                self.is_open = False
                answers += frames.close_ok(self.number)
            elif not self.is_open:
                # After its close of the channel it only waits for this.
                assert message.method in {(20, 41), (60, 40)}
            elif self.closes(message):
                self.is_open = False
                answers += frames.close(self.number, 404, "NOT_FOUND - no exchange")
            else:
                assert message.method == (60, 40)
                self.published.append(message)
        self.driver.give(BROKER, answers)
        return bool(data)

    def run(self) -> "Broker":
        idle = 0
        while idle < 3:
            idle += 1
            if self.disk is not None and not self.disk.is_idle:
                self.disk.finish_all()
                idle = 0
            if self.driver.woken:
                self.driver.tick()
                idle = 0
            if self.step():
                idle = 0
        return self

    def bodies(self) -> list[int]:
        return [int(message.body) for message in self.published]


def connected(left: Left, *, driver: Driver | None = None, **greeting: object) -> Broker:
    driver = driver or Driver(spool=left.spool)
    return Broker(driver, left.spool, left.disk).connect(**greeting)  # type: ignore[arg-type]  # as connect's


def test_leftovers_are_replayed_in_order_on_an_own_channel_and_marked(left: Left) -> None:
    left.put("orders", [publish(number) for number in range(300)])
    left.crash()
    broker = connected(left).run()
    assert broker.bodies() == list(range(300))
    assert (broker.opened, broker.is_open) == (1, False)
    for message in broker.published:
        assert message.arguments == b"\0\0" + frames.short("") + frames.short("orders") + b"\0"
        assert message.header is not None
        assert message.header[12:14] == (1 << 13).to_bytes(2)
        assert message.header[14:] == frames.table({"x-sluice-replayed": b"t\1"})
    assert left.entries() == 0
    assert not left.disk.runs
    assert broker.driver.written[CLIENT] == frames.open_ok()
    (told,) = broker.driver.replayed
    assert told[1:] == (300, 0, 0, 0, "")
    assert (told.name.name, told.name.sender) == ("orders", SENDER)
    assert not broker.driver.watches_writes
    # Only the queues of others are left.
    assert not left.spool.has_recovered(lambda _: True)


def test_requests_are_as_those_of_the_client_would_be_but_cannot_be_refused_and_waited(left: Left) -> None:
    left.put("orders", [publish(1, headers={"CC": ["b"]})])
    left.put("events", [publish(2, "k", exchange="events")])
    left.crash()
    driver = Driver(spool=left.spool, limits=("routing_key",))
    connected(left, driver=driver).run()
    requests = {tuple(map(str, request.resources)): request for request in driver.requests}
    assert set(requests) == {("queue:orders", "queue:b"), ("exchange:events", "routing_key:events/k")}
    for request in requests.values():
        assert (request.refusal, request.messages, request.since_ns) == ("impossible", 1, NS)
    assert len({request.order_key for request in driver.requests}) == 2
    assert driver.batches[0].connection.scopes


@pytest.mark.parametrize(
    ("sender", "listener", "sent"),
    [
        (SENDER, "main", [1]),
        (("%2F", "admin"), "main", []),
        (("tenant", "guest"), "main", []),
        (SENDER, "other", []),
    ],
)
def test_only_the_same_user_and_vhost_behind_the_same_listener_sends_it(
    left: Left, sender: tuple[str, str], listener: str, sent: list[int]
) -> None:
    left.put("orders", [publish(1)], sender=sender, listener=listener)
    left.crash()
    broker = connected(left).run()
    assert broker.bodies() == sent
    assert left.spool.has_recovered(lambda _: True) is not bool(sent)


def test_without_anything_left_all_channels_are_offered(left: Left) -> None:
    for spool in (None, left.spool):
        driver = Driver(spool=spool)
        driver.give(CLIENT, frames.HEADER)
        driver.give(BROKER, frames.start() + frames.tune(2047))
        driver.give(CLIENT, frames.start_ok() + frames.tune_ok(2047) + frames.connection_open())
        driver.give(BROKER, frames.open_ok())
        assert driver.written[CLIENT] == frames.start() + frames.tune(2047) + frames.open_ok()
        assert bytes(driver.written[BROKER]).endswith(frames.tune_ok(2047) + frames.connection_open())


@pytest.mark.parametrize(
    ("offers", "hears", "agrees", "broker_hears"),
    [(2047, 2046, 2046, 2047), (0, 65534, 65534, 65535), (0, 65534, 10, 11), (2, 1, 1, 2)],
)
def test_the_number_is_one_that_the_client_was_not_offered(
    left: Left, offers: int, hears: int, agrees: int, broker_hears: int
) -> None:
    left.put("orders", [publish(1)])
    left.crash()
    driver = Driver(spool=left.spool)
    driver.give(CLIENT, frames.HEADER)
    driver.give(BROKER, frames.start() + frames.tune(offers))
    assert driver.written[CLIENT] == frames.start() + frames.tune(hears)
    driver.forget().give(CLIENT, frames.start_ok() + frames.tune_ok(agrees) + frames.connection_open())
    assert driver.written[BROKER] == frames.start_ok() + frames.tune_ok(broker_hears) + frames.connection_open()
    driver.give(BROKER, frames.open_ok())
    broker = Broker(driver, left.spool, left.disk)
    broker.number = broker_hears
    assert broker.run().bodies() == [1]


@pytest.mark.parametrize(("offers", "agrees"), [(1, 1), (2047, 0), (2047, 2047), (0, 0)])
def test_where_no_number_is_certain_nothing_is_replayed(left: Left, offers: int, agrees: int) -> None:
    left.put("orders", [publish(1)])
    left.crash()
    driver = Driver(spool=left.spool)
    driver.give(CLIENT, frames.HEADER)
    driver.give(BROKER, frames.start() + frames.tune(offers))
    driver.give(CLIENT, frames.start_ok() + frames.tune_ok(agrees) + frames.connection_open())
    assert bytes(driver.written[BROKER]).endswith(frames.tune_ok(agrees) + frames.connection_open())
    driver.forget().give(BROKER, frames.open_ok())
    driver.tick()
    assert not driver.written[BROKER]
    assert left.spool.has_recovered(lambda _: True)


def test_a_client_that_uses_the_number_anyway_breaks_the_protocol(left: Left) -> None:
    left.put("orders", [publish(1)])
    left.crash()
    broker = connected(left)
    with pytest.raises(Close, match=f"channel {OFFERED}"):
        broker.driver.give(CLIENT, frames.channel_open(OFFERED))
    broker.driver.session.start_close("", 0)
    broker.driver.session.close()
    assert left.spool.has_recovered(lambda _: True)


@given(st.integers(0, 2**32), st.sampled_from((20, 200, 5000)))
def test_a_client_sees_and_loses_nothing_wherever_its_bytes_are_cut(seed: int, longest: int) -> None:
    left, random = Left(), Random(seed)
    left.put("orders", [publish(number) for number in range(12)])
    left.put("other", [publish(number, "other") for number in range(100, 112)])
    left.crash()
    driver = Driver(lambda request: hold(request) if random.random() < 0.2 else None, spool=left.spool)
    connected(left, driver=driver)
    sent = b"".join(publish(1000 + number, "own", 1, body_bytes=3) for number in range(10))
    driver.give(CLIENT, frames.channel_open(1))
    to_broker, heard = b"", 0
    while sent or driver.woken or driver.held or driver.written[BROKER]:
        at = random.randint(0, longest)
        driver.give(CLIENT, sent[:at])
        sent = sent[at:]
        if driver.held and (random.random() < 0.5 or not sent):
            driver.resolve()
        if driver.woken:
            driver.tick()
        left.disk.finish_all()
        to_broker += driver.written[BROKER]
        driver.written[BROKER].clear()
        # The broker answers complete methods, and in pieces.
        answers = b""
        ends = heard
        while ends + 7 <= len(to_broker):
            stop = ends + int.from_bytes(to_broker[ends + 3 : ends + 7]) + 8
            if stop > len(to_broker):
                break
            (frame,) = frames.read(to_broker[ends:stop])
            ends = stop
            if frame.channel == OFFERED and frame.kind == 1 and frame.method != (60, 40):
                class_id, method_id = frame.method
                answers += frames.method(OFFERED, class_id, method_id + 1, b"\0\0\0\0" if method_id == 10 else b"")
        heard = ends
        driver.give(BROKER, answers + b"".join(frames.deliver(1, 1, b"x" * 50)), random, longest)
    arrived = list(frames.messages(to_broker))
    own = [int(m.body) for m in arrived if m.channel == 1 and m.body]
    replayed = [int(m.body) for m in arrived if m.channel == OFFERED and m.body]
    assert sorted(own) == list(range(1000, 1010))
    assert [each for each in replayed if each < 100] == list(range(12))
    assert [each for each in replayed if each >= 100] == list(range(100, 112))
    assert {m.channel for m in driver.to_client()} == {0, 1}
    assert all(m.method == (60, 60) for m in driver.to_client() if m.channel == 1)
    assert left.entries() == 0


def test_no_more_is_sent_than_the_brokers_socket_takes(left: Left) -> None:
    left.put("orders", [publish(number, headers={"x": "y" * 2000}) for number in range(500)])
    left.crash()
    broker = connected(left)
    broker.driver.writes = False
    broker.run()
    assert 100 < len(broker.published) < 140
    assert broker.driver.watches_writes
    broker.driver.writes = True
    broker.driver.session.written(BROKER, 0)
    assert broker.run().bodies() == list(range(500))


def test_held_requests_wait_and_others_continue(left: Left) -> None:
    left.put("orders", [publish(1), publish(2)])
    left.put("other", [publish(3, "other"), publish(4, "other")])
    left.crash()
    driver = Driver(lambda request: hold(request) if "orders" in str(request.resources) else None, spool=left.spool)
    broker = connected(left, driver=driver).run()
    assert broker.bodies() == [3, 4]
    driver.resolve()
    broker.run()
    assert broker.bodies() == [3, 4, 1]
    assert left.entries() == 1
    driver.resolve()
    broker.run()
    assert broker.bodies() == [3, 4, 1, 2]
    assert not broker.is_open
    assert not driver.session.in_flight()


def test_many_queues_take_turns(left: Left) -> None:
    for name in range(2 * _MAX_AT_ONCE):
        left.put(str(name), [publish(number, str(name)) for number in range(_MAX_IN_TURN + 10)])
    left.crash()
    broker = connected(left).run()
    keys = [message.arguments[4:-1].decode() for message in broker.published]
    # Queues take turns, and messages of a queue are in order.
    assert len(set(keys[: 3 * _MAX_IN_TURN])) == 3
    for name in range(2 * _MAX_AT_ONCE):
        of_name = [int(m.body) for m in broker.published if m.arguments[4:-1].decode() == str(name)]
        assert of_name == list(range(_MAX_IN_TURN + 10))
    assert len(broker.driver.replayed) == 2 * _MAX_AT_ONCE


def test_bodies_are_cut_as_this_connection_wants_them(left: Left) -> None:
    body = b"1" * 20_000
    whole = b"".join(frames.publish(7, "", "orders", body, body_bytes=10_000))
    left.put("orders", [whole])
    left.crash()
    broker = connected(left).run()
    (message,) = broker.published
    assert message.body == body
    assert [length for kind, length in broker.frames if kind == 3] == [frames.FRAME_MAX - 8] * 4 + [20_000 - 4 * 4088]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        publish(1)[:-1],
        publish(1) + b"x",
        publish(1) + publish(2),
        frames.declare(7),
        b"".join(frames.publish(7, "", "orders", b"x" * 10)[:2]),
        frames.deliver(7, 1, b"x")[0] + frames.publish(7, "", "orders", b"x")[1] + frames.frame(3, 7, b"x"),
        publish(1).replace(frames.frame(2, 7, b"\0\x3c" + bytes(12))[7:11], b"\0\x3d\0\0"),
        frames.publish(7, "", "orders")[0] + frames.frame(2, 7, b"\0\x3c" + bytes(10) + b"\0\1"),
        frames.publish(7, "", "orders")[0] + frames.frame(2, 7, b"\0\x3c" + bytes(10) + b"\x20\0\xff\xff\xff\xff"),
    ],
)
def test_invalid_entries_are_dropped_and_counted(left: Left, data: bytes) -> None:
    left.put("orders", [data, publish(5)])
    left.crash()
    broker = connected(left).run()
    assert broker.bodies() == [5]
    (told,) = broker.driver.replayed
    assert told[1:] == (1, 0, 1, 0, "")


def test_expired_entries_are_dropped_and_counted(left: Left) -> None:
    left.put("orders", [publish(number) for number in range(3000)], expires_ns=5 * NS)
    left.put("other", [publish(1, "other")], expires_ns=50 * NS)
    left.crash()
    driver = Driver(spool=left.spool)
    driver.now_ns = 10 * NS
    broker = connected(left, driver=driver).run()
    assert broker.bodies() == [1]
    assert {told.name.name: told[1:] for told in driver.replayed} == {
        "orders": (0, 3000, 0, 0, ""),
        "other": (1, 0, 0, 0, ""),
    }


def test_a_queue_for_which_the_broker_closes_the_channel_is_dropped_and_others_continue(left: Left) -> None:
    left.put("gone", [publish(number, "k", exchange="gone") for number in range(1000)])
    left.put("orders", [publish(number) for number in range(1000)])
    left.crash()
    broker = connected(left)
    broker.closes = lambda message: b"gone" in message.arguments
    broker.run()
    assert broker.bodies() == list(range(1000))
    told = {each.name.name: each for each in broker.driver.replayed}
    assert told["orders"][1:] == (1000, 0, 0, 0, "")
    assert told["gone"].sent + told["gone"].dropped == 1000
    assert told["gone"].reason == "the broker closed the channel: 404 NOT_FOUND - no exchange"
    assert (left.entries(), broker.opened) == (0, 2)
    assert not broker.is_open
    assert {message.channel for message in broker.driver.to_client()} == {0}


def test_a_connection_that_ends_gives_back_unused_permits(left: Left) -> None:
    left.put("orders", [publish(number) for number in range(3)])
    left.crash()
    held: list[Request] = []

    def second(request: Request) -> Verdict | None:
        held.append(request)
        return hold(request) if len(held) == 2 else None

    first = connected(left, driver=Driver(second, spool=left.spool)).run()
    assert first.bodies() == [0]
    assert not left.spool.has_recovered(lambda _: True)
    first.driver.session.close()
    assert len(first.driver.given_up) == 1
    (told,) = first.driver.replayed
    assert told[1:] == (1, 0, 0, 2, "")
    assert connected(left).run().bodies() == [1, 2]


@pytest.mark.parametrize("end", ["close", "gone", "ended", "farewell", "broker", "header"])
def test_nothing_is_sent_when_the_connection_is_ending(left: Left, end: str) -> None:
    left.put("orders", [publish(number) for number in range(3)])
    left.crash()
    driver = Driver(hold, spool=left.spool)
    broker = connected(left, driver=driver).run()
    held = next(iter(driver.held.values()))[0]
    if end == "close":
        driver.give(CLIENT, frames.close(0))
        assert driver.written[BROKER] == frames.close(0)
    elif end == "gone":
        assert not driver.session.has_undelivered(CLIENT)
    elif end == "ended":
        driver.session.end(CLIENT, 0)
    elif end == "farewell":
        driver.session.start_close("", 0)
    elif end == "broker":
        driver.give(BROKER, frames.close(0, 320))
    else:
        with pytest.raises(Close):
            driver.give(CLIENT, b"nonsense" * 2)
        driver.session.start_close("", 0)
    driver.take()
    driver.forget()
    assert [id(request) for request in driver.given_up] == [id(held)]
    driver.session.resolved(held, None, 0)
    driver.tick()
    driver.take()
    assert not driver.written[BROKER]
    assert not broker.published
    assert left.spool.has_recovered(lambda _: True)


def test_a_queue_over_which_connections_are_closed_is_dropped_in_the_end(left: Left) -> None:
    left.put("orders", [publish(number) for number in range(3)])
    left.crash()
    hub, told = Hub(), []
    for _ in range(10):
        driver = Driver(spool=left.spool, hub=hub)
        broker = connected(left, driver=driver)
        if not left.spool._recovered and not left.entries():
            break
        while driver.woken or not left.disk.is_idle:
            left.disk.finish_all()
            driver.tick()
        driver.give(BROKER, frames.close(0, 541, "INTERNAL_ERROR"))
        driver.session.close()
        told += driver.replayed
        assert not broker.published
    (dropped,) = told
    assert dropped[1:] == (
        0,
        0,
        3,
        0,
        "the broker closed 3 connections that replayed these messages: 541 INTERNAL_ERROR",
    )
    assert not hub.failures


def test_purged_entries_are_not_sent(left: Left) -> None:
    for name in ("orders", "other"):
        left.put(name, [publish(number, name) for number in range(3)])
    left.crash()
    driver = Driver(lambda request: hold(request) if "orders" in str(request.resources) else None, spool=left.spool)
    broker = connected(left, driver=driver).run()
    assert len(driver.held) == 1
    assert driver.session.purge(Resource("queue", "orders"), 0) == (0, 3)
    assert not driver.held
    broker.run()
    assert len(broker.published) == 3
    assert {told.name.name: told[1:] for told in driver.replayed} == {
        "orders": (0, 0, 3, 0, ""),
        "other": (3, 0, 0, 0, ""),
    }
    assert left.entries() == 0


def test_a_client_that_is_exempt_replays_nothing(left: Left) -> None:
    left.put("orders", [publish(0)])
    left.crash()
    broker = connected(left, driver=Driver(spool=left.spool, exempt=True)).run()
    assert (broker.opened, broker.published) == (0, [])
    assert left.entries() == 1
