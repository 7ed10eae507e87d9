"""Spooled publishes: in order and each once, in memory or on disk, and the answers to those not forwarded."""

from errno import EIO
from struct import pack

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver
from amqp_playbook.spooled import NS, SpooledDriver, spooled

from limiter.rules.resource import Resource
from proxy.deciding.batch import Hold, Later, Request, Side, Ticket, Verdict
from proxy.flow.credit import Stage
from proxy.protocols.base import Close
from proxy.spool.queue import States
from proxy.spool.spool import QueueName, SpoolSettings

ACK, NACK, DECLARE = (60, 80), (60, 120), (50, 10)
ORDERS = Resource("queue", "orders")


def make(decide: object = spooled, confirms: tuple[int, ...] = (), **more: object) -> SpooledDriver:
    driver = SpooledDriver(decide, **more)  # type: ignore[arg-type]  # as the driver's
    driver.open((1, 2), confirms=confirms, user="ann")
    return driver


def publish(driver: Driver, bodies: object, channel: int = 1, key: str = "orders", **more: object) -> None:
    driver.give(CLIENT, b"".join(b"".join(frames.publish(channel, "", key, each, **more)) for each in bodies))  # type: ignore[attr-defined]  # an iterable
    while driver.unread[CLIENT] and isinstance(driver, SpooledDriver) and not driver.disk.is_idle:
        # Because the spool is full.
        driver.disk.finish_all()
        driver.read(CLIENT)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def bodies(driver: Driver) -> list[bytes]:
    return [each.body for each in driver.to_broker() if each.header is not None]


def answers(driver: Driver) -> list[tuple[tuple[int, int] | None, int]]:
    return [(each.method, int.from_bytes(each.arguments[:8])) for each in driver.to_client()]


def work(driver: SpooledDriver) -> None:
    """Run all requests and disk work, without resolving anything."""
    while driver.woken or not driver.disk.is_idle:
        driver.disk.finish_all()
        if driver.woken:
            driver.tick()


def with_expiration(channel: int, body: bytes, expiration_ms: object) -> bytes:
    properties = b"\x02" + frames.short(str(expiration_ms))
    header = pack(">HHQH", 60, 0, len(body), 1 << 12 | 1 << 8) + properties
    begin = frames.publish(channel, "", "orders", body)[0]
    return begin + frames.frame(2, channel, header) + frames.frame(3, channel, body)


def test_spooled_messages_use_no_session_memory() -> None:
    driver = make(settings=SpoolSettings(memory_bytes=100_000))
    for _ in range(20):
        publish(driver, [bytes(200)] * 200)
        driver.disk.finish_all()
    driver.pass_time(1)
    driver.disk.finish_all()
    assert len(driver.held) == 1
    assert driver.spooled_count() == 3_999
    assert driver.session._publishes._memory.taken_bytes < 8_000
    assert not driver.session.paused(CLIENT)
    states = driver.spool.states()
    assert states.delta > 3_000
    # Other keys and channels continue.
    driver.decide = lambda _: None
    publish(driver, [b"other"], key="other")
    publish(driver, [b"second"], channel=2)
    assert bodies(driver) == [b"other", b"second"]
    driver.settle()
    assert len(bodies(driver)) == 4_002


def test_a_spooling_client_is_not_read_while_the_spool_is_full_with_any_number_of_keys() -> None:
    driver = make(settings=SpoolSettings(memory_bytes=20_000))
    for number in range(300):
        driver.give(CLIENT, b"".join(b"".join(frames.publish(1, "", f"q{number % 10}", bytes(500))) for _ in range(3)))
    assert driver.spool.is_stopped
    assert driver.session.paused(CLIENT)
    assert driver.unread[CLIENT]
    assert driver.spool.figures().memory_bytes < 100_000
    driver.woken = False
    driver.disk.finish_all()
    driver.pass_time(1)
    driver.disk.finish_all()
    assert not driver.spool.is_stopped
    assert driver.woken
    assert not driver.session.paused(CLIENT)


def test_requests_say_since_when_they_wait_and_how_much_they_cost() -> None:
    driver = make()
    driver.now_ns = 5
    publish(driver, [b"first"])
    driver.now_ns = 7
    publish(driver, [b"second"])
    driver.now_ns = 70
    driver.resolve()
    work(driver)
    assert [each.since_ns for each in driver.requests] == [0, 7]
    assert driver.requests[0].size_bytes == driver.requests[1].size_bytes - 1


def test_no_more_comes_out_than_the_broker_reads() -> None:
    driver = make()
    publish(driver, numbered(2_000))
    driver.writes = False
    driver.decide = lambda _: None
    driver.resolve()
    work(driver)
    assert 400 <= len(bodies(driver)) < 470
    assert driver.spooled_count() > 1_500
    (resource,) = [stage for stage in driver.session.stages() if stage.kind == "resource"]
    assert resource.out_of_credit
    assert resource.waits_for() == (driver.writer,)
    driver.writes = True
    driver.take()
    driver.settle()
    assert bodies(driver) == numbered(2_000)
    assert not driver.watches_writes


def test_unrefusable_publishes_are_forwarded_after_the_client_left() -> None:
    driver = make(confirms=(2,))
    publish(driver, numbered(100))
    publish(driver, numbered(50), channel=2)
    assert driver.session.has_undelivered(CLIENT)
    assert len(driver.lost) == 49
    driver.give(BROKER, frames.close_ok(1))
    driver.settle()
    assert bodies(driver) == numbered(100)
    assert not driver.session.has_undelivered(CLIENT)
    assert not driver.spool.queues()


@pytest.mark.parametrize("by", [CLIENT, BROKER])
def test_spooled_publishes_end_with_their_channel(by: Side) -> None:
    driver = make(confirms=(1,))
    publish(driver, numbered(100))
    publish(driver, [b"x"] * 10, channel=2)
    driver.give(BROKER, frames.close(1, 404) if by is BROKER else frames.close_ok(1))
    assert len(driver.lost) + len(driver.given_up) == 100
    assert driver.spooled_count() == 9
    assert len(driver.spool.queues()) == 1
    driver.settle()
    assert bodies(driver) == [b"x"] * 10
    assert driver.session._publishes.waiting == 0


def test_nothing_is_left_when_the_connection_is_over() -> None:
    driver = make(confirms=(1,), settings=SpoolSettings(memory_bytes=1))
    publish(driver, numbered(100))
    publish(driver, numbered(100), channel=2)
    driver.session.close()
    assert not driver.spool.queues()
    assert len(driver.lost) == 198
    assert not driver.session.stages()
    assert driver.stage.followers() == ()
    driver.disk.finish_all()


@pytest.mark.parametrize("confirms", [(), (1,)])
def test_expired_publishes_are_not_sent(confirms: tuple[int, ...]) -> None:
    driver = make(confirms=confirms)
    driver.give(CLIENT, with_expiration(1, b"first", 500))
    for body, expiration_ms in ((b"gone", 1_000), (b"there", 10_000), (b"gone", 0), (b"no number", "soon")):
        driver.give(CLIENT, with_expiration(1, body, expiration_ms))
    driver.now_ns = 3 * NS
    driver.settle()
    assert bodies(driver) == [b"there", b"no number"]
    assert answers(driver) == ([(ACK, 1), (ACK, 2), (ACK, 4)] if confirms else [])
    assert len(driver.lost) == 2
    assert driver.spool.figures().expired_total == 2
    assert driver.session._publishes.refused == 0


def test_overdue_publishes_are_refused_if_possible() -> None:
    driver = make(confirms=(1,), settings=SpoolSettings(max_age_s=10))
    publish(driver, [b"0", b"1", b"2"])
    driver.now_ns = 5 * NS
    publish(driver, [b"3"])
    driver.now_ns = 11 * NS
    driver.resolve()
    work(driver)
    assert answers(driver) == [(NACK, 2), (NACK, 3)]
    driver.settle()
    assert bodies(driver) == [b"0", b"3"]


def test_overdue_unrefusable_publishes_are_forwarded_and_charged() -> None:
    driver = make(settings=SpoolSettings(max_age_s=10))
    publish(driver, [b"0", b"1", b"2"])
    driver.now_ns = 5 * NS
    publish(driver, [b"3"])
    driver.tick()
    assert driver.session.next_tick_ns() == 10 * NS
    driver.now_ns = 11 * NS
    driver.woken = True
    work(driver)
    assert bodies(driver) == [b"0", b"1", b"2"]
    charges = [charge for batch in driver.batches for charge in batch.charges]
    assert [(charge.resources, charge.messages) for charge in charges] == [((ORDERS,), 1)] * 3
    assert len(driver.held) == 1
    assert driver.spool.figures().too_old_total == 2


def test_overdue_publishes_are_handled_without_another_event() -> None:
    driver = make(settings=SpoolSettings(max_age_s=10))
    publish(driver, [b"0"])
    driver.now_ns = 10 * NS - 1
    driver.decide = lambda _: Later()
    publish(driver, [b"1"], channel=2, key="other")
    driver.tick()
    assert driver.session._publishes.again_ns == 10 * NS - 1 + NS // 100
    driver.now_ns = 10 * NS
    driver.tick()
    assert bodies(driver) == [b"0"]


@pytest.mark.parametrize("confirms", [(), (1,)])
def test_a_purge_leaves_only_held_requests(confirms: tuple[int, ...]) -> None:
    driver = make(confirms=confirms, settings=SpoolSettings(memory_bytes=1))
    publish(driver, numbered(3_000))
    publish(driver, numbered(10), key="other")
    driver.disk.finish_all()
    refused, dropped = driver.session.purge(ORDERS, driver.now_ns)
    assert (refused, dropped) == ((2_999, 0) if confirms else (0, 2_999))
    assert driver.session.purge(ORDERS, driver.now_ns) == (0, 0)
    publish(driver, [b"new"])
    work(driver)
    assert len(driver.lost) == 2_999
    told = answers(driver)
    assert told == ([(NACK, number) for number in range(2, 3_001)] if confirms else [])
    assert driver.spooled_count() == 10
    driver.settle()
    assert sorted(bodies(driver)) == sorted([b"0", b"new", *numbered(10)])


def test_unread_answers_do_not_pile_up() -> None:
    driver = make(confirms=(1,))
    publish(driver, [b""] * 60_000)
    driver.session.purge(ORDERS, driver.now_ns)
    take = driver.session.take
    driver.session.take = lambda side: take(side) if side is BROKER else ()  # type: ignore[method-assign]  # it does not read
    work(driver)
    assert 1 << 20 < driver.session.backlog_bytes(CLIENT) < (1 << 20) + 50_000
    driver.session.take = take  # type: ignore[method-assign]  # as it was
    driver.take()
    work(driver)
    assert len(answers(driver)) == 59_999


def damage(driver: SpooledDriver, index: int) -> None:
    """Let a read fail permanently."""
    driver.disk.finish_read(index, OSError(EIO, "Input/output error"))


@pytest.mark.parametrize("confirms", [(), (1,)])
def test_damaged_entries_are_nacked_so_clients_resend(confirms: tuple[int, ...]) -> None:
    driver = make(confirms=confirms, settings=SpoolSettings(memory_bytes=1))
    publish(driver, numbered(1_000))
    while driver.disk.writes:
        driver.disk.finish_write()
    driver.decide = lambda _: None
    driver.resolve()
    while not driver.disk.reads:
        driver.tick()
    damage(driver, 0)
    (lost,) = driver.damaged
    assert driver.woken
    if confirms:
        with pytest.raises(Close, match="spool_damaged"):
            driver.tick()
        driver.session.start_close("damaged", driver.now_ns)
        driver.take()
        assert driver.to_client()[-1].arguments[:2] == pack(">H", 541)
        return
    driver.settle()
    went = bodies(driver)
    assert len(went) == 1_000 - lost.entries
    assert went == sorted(went, key=int)
    assert len(driver.lost) == lost.entries
    assert driver.session.in_flight() == 0


def test_entries_say_whose_they_are_and_which_are_to_be_replayed() -> None:
    driver = make(confirms=(2,))
    publish(driver, numbered(3))
    publish(driver, numbered(3), channel=2)
    plain, confirmed = driver.spool.queues()
    assert QueueName.read(plain.name) == QueueName("main", "queue", "orders", ("%2F", "ann"))
    entry = plain.head()
    assert entry is not None
    assert (entry.handle, entry.messages, entry.is_refusable, entry.is_recoverable) == (0, 1, False, True)
    entry = confirmed.head()
    assert entry is not None
    assert (entry.handle, entry.is_refusable, entry.is_recoverable) == (2, True, False)


def test_uncommitted_publishes_are_not_recoverable() -> None:
    driver = make()
    driver.give(CLIENT, frames.method(1, 90, 10))
    publish(driver, numbered(3))
    (queue,) = driver.spool.queues()
    entry = queue.head()
    assert entry is not None
    assert not entry.is_recoverable


def test_stages_show_waits_for_a_limit_and_for_the_disk() -> None:
    driver = make()
    publish(driver, numbered(3))

    def states() -> dict[str, str]:
        shown: list[Stage] = [driver.stage, *driver.session.stages()]
        return {f"{stage.kind} {stage.name}".strip(): stage.state(driver.now_ns) for stage in shown}

    assert states() == {"connection": "throttled", "channel 1": "throttled", "resource queue:orders": "throttled"}
    (resource,) = [stage for stage in driver.session.stages() if stage.kind == "resource"]
    resource.stall(driver.spool.store, driver.now_ns, on=True)
    publish(driver, numbered(500))
    assert not driver.stage.out_of_credit
    publish(driver, numbered(600))
    assert driver.stage.out_of_credit
    assert states() == dict.fromkeys(states(), "flow")
    resource.stall(driver.spool.store, driver.now_ns, on=False)
    assert not driver.stage.out_of_credit
    driver.settle()
    driver.pass_time(100)
    assert states() == {"connection": "running", "channel 1": "running"}
    driver.session.close()
    assert not driver.session.stages()


def test_unspoolable_publishes_wait_in_memory() -> None:
    def hold(_: Request) -> Verdict:
        return Hold(ORDERS, "rule", Ticket(lambda: None))

    driver = make(hold)
    publish(driver, numbered(50))
    assert driver.spooled_count() == 0
    assert driver.session.in_flight() == 50
    assert driver.spool.states() == States()
    driver.settle()
    assert bodies(driver) == numbered(50)
