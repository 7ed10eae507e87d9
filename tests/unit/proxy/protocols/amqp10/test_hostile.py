"""Invalid frames, and frames meant to cost much."""

import sys
from random import Random
from types import FrameType
from typing import Any

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import Described, ULong, say
from amqp10_playbook.driver import BROKER, CLIENT, ORDERS, REFUSED, Driver, refuse

from proxy.common.buffers import SMALL_FRAME_BYTES, GatherRoom
from proxy.protocols.amqp10 import wire
from proxy.protocols.base import Terms


@pytest.mark.parametrize("longest", [100, 1 << 20])
def test_a_transfer_longer_than_the_other_peer_takes_is_not_relayed(longest: int) -> None:
    driver = Driver().open(max_frame_size=1000).takes()
    driver.forget()
    transfer = say(5, "transfer", codec.message(b"x" * 2000), handle=3, delivery_id=2**32 - 4, delivery_tag=b"0")
    for chunk in codec.in_chunks(transfer, longest):
        driver.give(BROKER, chunk)
    assert driver.reason == "bad_frame"
    assert not driver.written[CLIENT]


@pytest.mark.parametrize("longest", [100, 1 << 20])
def test_the_broker_bounds_transfers_only_to_max_frame_size(longest: int) -> None:
    error = Described(ULong(0x1D), [codec.Symbol("amqp:not-found"), "y" * 2000])
    said = say(5, "detach", handle=3, closed=True, error=error)
    driver = Driver().open(max_frame_size=1000).takes()
    driver.forget()
    for chunk in codec.in_chunks(said, longest):
        driver.give(BROKER, chunk)
    assert driver.written[CLIENT] == said
    driver = Driver().open(broker={"max_frame_size": 1000}).takes()
    driver.give(CLIENT, say(1, "detach", handle=0, closed=True, error=error))
    assert driver.closed is not None


def test_a_performative_that_does_not_end_is_not_kept() -> None:
    driver = Driver().open()
    begins = b"\0\x53\x12\xd0" + (wire.MAX_PERFORMATIVE_BYTES + 1).to_bytes(4) + b"\0\0\0\x01"
    driver.give(CLIENT, (1 << 30).to_bytes(4) + b"\x02\0\0\x01" + begins + b"x" * 4096)
    assert driver.reason == "bad_frame"


@pytest.mark.parametrize("first", [10, 3000, 4095])
def test_a_long_frame_is_read_once_4_kib_have_arrived(first: int) -> None:
    driver = Driver().open()
    said = ((1 << 30).to_bytes(4) + b"\x02\xff\0\x01").ljust(4096, b"x")
    driver._receive(BROKER, said[:first])
    assert driver.closed is None
    driver._receive(BROKER, said[first:])
    assert driver.reason == "bad_frame"


def test_a_long_attach_takes_no_longer_in_small_chunks() -> None:
    driver = Driver().open()
    unsettled = codec.Raw(
        b"\xd1"
        + (900_004).to_bytes(4)
        + (2).to_bytes(4)
        + b"\xb0"
        + (449_990).to_bytes(4)
        + bytes(449_990)
        + b"\xb0"
        + (450_000).to_bytes(4)
        + bytes(450_000)
    )
    frame = say(1, "attach", name="a", handle=0, role=False, unsettled=unsettled, initial_delivery_count=0)
    driver.give(CLIENT, frame, Random(1), longest=3000)
    assert driver.closed is None
    assert driver.written[BROKER] == frame
    assert len(driver.session.describe(0).links) == 1


def test_kept_frames_are_bounded() -> None:
    terms = {ORDERS: Terms(delays=True, max_bytes=10_000_000)}
    room = GatherRoom(2 * SMALL_FRAME_BYTES)
    driver = Driver(terms=terms, room=room).open().sends()
    driver.credit(100, incoming_window=1 << 30)
    driver.forget()
    for number in range(100):
        first = {"delivery_id": 0, "delivery_tag": b"t"} if number == 0 else {}
        driver.client(1, "transfer", b"x" * 5000, handle=0, more=True, **first)
        driver.tick()
    # There is no room for more, so it is forwarded, and charged normally.
    assert len(driver.total[BROKER]) > 100 * 5000
    assert room.taken_bytes == 0
    assert not driver.session._streams[CLIENT]._kept


def test_room_is_given_on_demand_and_returned_at_the_end() -> None:
    room = GatherRoom()
    kept = []
    for _ in range(2):
        driver = Driver(terms={ORDERS: Terms(delays=True, max_bytes=10_000_000)}, room=room).open().sends()
        driver.credit(100, incoming_window=1 << 30)
        for number in range(30):
            first = {"delivery_id": 0, "delivery_tag": b"t"} if number == 0 else {}
            driver.client(1, "transfer", b"x" * 5000, handle=0, more=True, **first)
        assert not driver.to(BROKER)
        kept.append(driver)
    before = room.taken_bytes
    kept[0].session._shared._lose()
    kept[0].tick()
    assert len(kept[0].to(BROKER)) == 30
    assert 0 < room.taken_bytes < before
    kept[1].session.close()
    assert room.taken_bytes == 0


def test_frames_of_our_own_that_are_not_written_are_counted() -> None:
    driver = Driver(refuse, terms={ORDERS: REFUSED}).open().sends()
    driver.credit(1000)
    driver.take = lambda: None  # type: ignore[method-assign]
    for number in range(50):
        driver.send(number)
    assert driver.session.backlog_bytes(CLIENT) > 50 * 100
    Driver.take(driver)
    assert driver.session.backlog_bytes(CLIENT) == 0


def test_many_links_that_come_and_go_cost_the_same_each() -> None:
    def steps(count: int) -> int:
        """Count the executed lines of Python, because times depend on the machine."""
        driver = Driver().open()
        target = Described(ULong(0x29), ["/queues/orders"])
        both = [(handle, handle % 2 == 1) for handle in range(count)]
        frames = [
            say(1, "attach", name=f"{handle}", handle=handle, role=role, target=target, source=target)
            for handle, role in sorted(both, key=lambda each: not each[1])
        ]
        frames += [say(1, "detach", handle=handle) for handle in range(0, count, 2)]
        data = b"".join(frames)
        lines = 0

        def count_line(_frame: FrameType, event: str, _what: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return count_line

        before = sys.gettrace()
        sys.settrace(count_line)
        try:
            driver.give(CLIENT, data)
        finally:
            sys.settrace(before)
        return lines

    assert steps(4000) < 8 * steps(500) * 1.1


def not_let_in(driver: Driver, hostname: str | None = None) -> Driver:
    opens = codec.SASL_HEADER + say(0, "sasl_init", mechanism="ANONYMOUS") + codec.HEADER
    driver.give(CLIENT, opens + say(0, "open", container_id="c", hostname=hostname))
    return driver.forget()


LET_IN = codec.SASL_HEADER + say(0, "sasl_outcome", code=0) + codec.HEADER
LET_IN += say(0, "open", container_id="b", properties=codec.RABBITMQ)


def test_client_is_not_read_before_the_broker_opened() -> None:
    driver = not_let_in(Driver())
    begin = {"next_outgoing_id": 0, "incoming_window": 1, "outgoing_window": 1}
    driver.give(CLIENT, b"".join(say(number, "begin", **begin) for number in range(200)))
    driver.give(CLIENT, say(200, "begin", **begin))
    assert not driver.to(BROKER)
    assert driver.session.paused(CLIENT)
    assert not driver.session.paused(BROKER)
    driver.give(BROKER, LET_IN)
    assert not driver.session.paused(CLIENT)
    assert len(driver.to(BROKER)) == 201


def test_names_are_no_longer_than_names_can_be() -> None:
    driver = not_let_in(Driver(), hostname="vhost:" + "v" * 100_000)
    driver.give(BROKER, LET_IN)
    windows = {"incoming_window": 400, "outgoing_window": 500}
    source = Described(ULong(0x28), ["/queues/" + "q" * 100_000])
    driver.client(1, "begin", next_outgoing_id=0, **windows)
    driver.client(1, "attach", name="c", handle=0, role=True, source=source)
    driver.client(1, "attach", name="d", handle=1, role=False, target=source, initial_delivery_count=0)
    shared = driver.session._shared
    assert max(len(str(scope)) for scope in shared.connection.scopes) < 300
    links = [link for session in driver.session._sessions for link in session.links]
    assert len(links) == 2
    assert max(len(str(each)) for link in links for each in link.resources) < 600


def test_heartbeats_are_not_read_all_the_time() -> None:
    driver = Driver().open(idle_time_out=1)
    driver.now_ns += 1
    tick_ns = driver.session.next_tick_ns()
    assert tick_ns is not None
    assert tick_ns >= 25_000_000


def test_transfers_without_credit_are_not_decided() -> None:
    driver = Driver(terms={ORDERS: REFUSED}).open().sends()
    for number in range(3):
        driver.send(number)
    assert driver.reason == "transfer_limit_exceeded"
    assert not driver.requests
