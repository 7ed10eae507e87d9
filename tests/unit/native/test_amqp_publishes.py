"""The publishes of a chunk: plain ones, their keys, and their numbers."""

import pytest
from amqp_playbook.reading import BROKER, Reading, Run
from playbook import amqp_frames as frames

from proxy.protocols.amqp091.confirms import Confirms

NACK = 120
ORDERS = b"".join(frames.content(1, b"", b"orders", b"hello"))


def all_of(run: Run) -> list[bool]:
    return [True] * len(run.sizes)


def test_whole_publishes_are_taken_one_after_the_other() -> None:
    reading = Reading()
    assert reading.feed(ORDERS * 3) == (b"", ORDERS * 3, 3 * len(ORDERS), False, (9, 0))
    assert reading.runs == [((("queue", "orders"),), [len(ORDERS)] * 3)]


@pytest.mark.parametrize(
    ("exchange", "routing_key", "with_keys", "resources"),
    [
        (b"", b"orders", True, [("queue", "v/orders")]),
        (b"events", b"eu.created", False, [("exchange", "v/events")]),
        (b"events", b"eu.created", True, [("exchange", "v/events"), ("routing_key", "v/events/eu.created")]),
        (b"events", b"", True, [("exchange", "v/events"), ("routing_key", "v/events/")]),
        (b"a/b", b"50%/c d", True, [("exchange", "v/a%2Fb"), ("routing_key", "v/a%2Fb/50%25%2Fc d")]),
        (b"events", b"\xff", False, [("exchange", "v/events")]),
    ],
)
def test_it_is_for_a_queue_or_an_exchange(
    exchange: bytes,
    routing_key: bytes,
    with_keys: bool,  # noqa: FBT001 - a case
    resources: list[tuple[str, str]],
) -> None:
    reading = Reading(before_names="v/", routing_keys=with_keys)
    assert not reading.feed(b"".join(frames.content(1, exchange, routing_key, b""))).leaves
    ((asked, _),) = reading.runs
    assert [tuple(each) for each in asked] == resources
    assert [tuple(each) for each in reading.channels.names()] == resources


TO_OTHERS = [frames.table((key, frames.array(frames.text(b"other")))) for key in (b"CC", b"BCC")]
LONG = frames.table((b"long", frames.text(bytes(4096))))


@pytest.mark.parametrize(
    "other",
    [
        frames.frame(frames.HEARTBEAT, 1, b""),
        frames.method(1, 60, 10, bytes(7)),
        frames.publish(1, b"", b"orders", bits=2) + frames.header(1, 0),
        frames.publish(1, b"", b"orders", bits=4) + frames.header(1, 0),
        frames.publish(1, b"", b"") + frames.header(1, 0),
        frames.publish(1, b"", b"\xe4") + frames.header(1, 0),
        frames.publish(1, b"tab\t", b"orders") + frames.header(1, 0),
        frames.publish(2, b"", b"orders") + frames.header(2, 0),
        frames.publish(0, b"", b"orders") + frames.header(0, 0),
        frames.publish(65535, b"", b"orders") + frames.header(65535, 0),
        frames.publish(1, b"", b"orders") * 2,
        frames.publish(1, b"", b"orders") + frames.header(2, 0),
        frames.publish(1, b"", b"orders") + frames.header(1, 0, 1),
        frames.publish(1, b"", b"orders") + frames.header(1, 0, *TO_OTHERS[0]),
        frames.publish(1, b"", b"orders") + frames.header(1, 0, *TO_OTHERS[1]),
        frames.publish(1, b"", b"orders") + frames.header(1, 0, *LONG),
        frames.publish(1, b"", b"orders") + frames.frame(frames.HEADER, 1, bytes(13)),
        frames.publish(1, b"", b"orders") + frames.frame(frames.HEADER, 1, bytes(14)),
        frames.publish(1, b"", b"orders") + frames.frame(frames.BODY, 1, b""),
        frames.publish(1, b"", b"orders") + frames.header(1, (1 << 31) + 1),
        frames.publish(1, b"", b"orders")[:-1] + b"\0" + frames.header(1, 0),
        frames.method(1, 60, 40, b"\0\0\0"),
        frames.method(1, 60, 40, b"\0\0\0\0"),
        frames.method(1, 60, 40, b"\0\0\0\1a\0\0"),
        frames.header(1, 0),
        frames.frame(frames.BODY, 1, b"x"),
        frames.frame(4, 1, b"x"),
        frames.frame(frames.METHOD, 1, b""),
    ],
)
def test_the_first_that_is_not_plain_is_for_the_session(other: bytes) -> None:
    reading = Reading((1, 3), all_of)
    nack = frames.confirm(1, 1, method_id=NACK)
    assert reading.feed(ORDERS + other + ORDERS) == (nack, b"", len(ORDERS), True, (3, 0))
    assert reading.give_back() == ({}, {1: (1, 0, None, 1, set(), {}), 3: Confirms().numbers()})


@pytest.mark.parametrize(
    ("refused", "kept"),
    [("", [(0, 6)]), ("b", [(0, 1), (3, 4), (5, 6)]), ("a", [(1, 3), (4, 5)]), ("ab", [])],
)
def test_contents_of_channels_lie_between_each_other(refused: str, kept: list[tuple[int, int]]) -> None:
    one, two = frames.content(1, b"", b"a", b"one"), frames.content(2, b"", b"b", b"two")
    order = [one[0], two[0], two[1], one[1], two[2], one[2]]
    reading = Reading((1, 2), lambda run: [run.resources[0].name in refused])
    read = reading.feed(b"".join(order))
    assert read.to_broker == b"".join(b"".join(order[slice(*span)]) for span in kept)
    assert len(read.to_client) == len(refused) * len(frames.confirm(1, 1, method_id=NACK))


def test_remaining_body_bytes_are_returned() -> None:
    reading = Reading()
    whole = b"".join(frames.content(1, b"", b"orders", bytes(200), frame_bytes=108))
    assert reading.feed(whole[:-108]).to_broker == whole[:-108]
    rests, numbers = reading.give_back()
    assert (rests, numbers) == ({1: 100}, {1: (1, 1, None, 1, set(), {})})
    again = Reading({1: (rests[1], numbers[1])})
    assert again.feed(whole[-108:] + ORDERS).to_broker == whole[-108:] + ORDERS
    assert again.channels.unconfirmed() == 2
    assert again.give_back() == ({}, {1: (2, 2, None, 1, set(), {})})
    assert again.channels.unconfirmed() == 0


def test_no_frame_is_longer_than_agreed() -> None:
    whole = b"".join(frames.content(1, b"", b"orders", bytes(100)))
    assert Reading(frame_max=108).feed(whole).stop == len(whole)
    read = Reading(frame_max=107).feed(whole)
    assert (read.stop, read.leaves) == (len(whole) - 108, True)


def test_publishes_are_numbered_by_channel() -> None:
    reading = Reading({1: (0, Confirms().numbers()), 2: (0, (7, 5, 4, 6, set(), {}))}, all_of)
    read = reading.feed(b"".join(b"".join(frames.content(channel, b"", b"a", b"")) for channel in (1, 2, 1, 1, 2)))
    told = [(1, 1), (2, 8), (1, 2), (1, 3), (2, 9)]
    assert read.to_client == b"".join(frames.confirm(*each, method_id=NACK) for each in told)
    assert reading.give_back()[1] == {1: (3, 0, None, 1, set(), {}), 2: (9, 5, 4, 6, set(), {})}


def test_refused_publishes_are_answered_and_the_others_counted_on() -> None:
    reading = Reading(refuses=lambda run: [True, False, True, False][: len(run.sizes)])
    read = reading.feed(ORDERS * 4)
    assert read.to_broker == ORDERS * 2
    assert read.to_client == b"".join(frames.confirm(1, number, method_id=NACK) for number in (1, 3))
    assert reading.channels.unconfirmed() == 2
    assert reading.feed(frames.confirm(1, 2), BROKER).to_client == frames.confirm(1, 4)
    assert reading.give_back()[1] == {1: (4, 2, 0, 1, {2}, {1: 2})}


def test_keys_are_forgotten_when_there_are_many() -> None:
    reading = Reading()
    for number in range(2000):
        assert not reading.feed(b"".join(frames.content(1, b"", b"q%d" % number, b""))).leaves
    names = [name for _, name in reading.channels.names()]
    assert len(names) <= 1025
    assert names[-1] == "q1999"
