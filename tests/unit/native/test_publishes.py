"""The publishes of a chunk: which are plain, where they lie, and how they are numbered."""

from dataclasses import dataclass, field

import pytest
import sluice_native
from playbook import amqp_frames as frames

from limiter.deciding.limits import Limits
from limiter.rules.rule_set import RuleSet

KINDS = ("queue", "exchange", "routing_key")
MAX_KEYS, MAX_RUNS = 1000, 1000


@dataclass
class Sent:
    """One publish that was taken."""

    channel: int
    resources: tuple[tuple[str, str], ...]
    number: int
    body: int
    size: int
    spans: list[tuple[int, int]]


@dataclass
class Taken:
    """What a scan took, and whose frame ends beyond the chunk."""

    stop: int
    frames: int = 0
    sent: list[Sent] = field(default_factory=list)
    cut: tuple[int, int | None] | None = None


def channels_of(
    *marked: int, confirms: tuple[int, ...] = (), before_names: str = "", limits: Limits | None = None
) -> sluice_native.Channels:
    """Return a connection with some channels that are plain."""
    resources = (Limits(RuleSet()) if limits is None else limits).resources
    assert resources is not None
    channels = sluice_native.Channels(resources, KINDS, before_names, 131_072, MAX_KEYS)
    for channel in confirms:
        channels.select(channel)
    for channel in marked:
        channels.mark(channel)
    return channels


def scan(
    channels: sluice_native.Channels, chunk: bytes, position: int = 0, *, routing_keys: bool = False
) -> sluice_native.Publishes:
    """Scan a chunk."""
    return channels.scan(chunk, position, MAX_RUNS, 10_000, routing_keys)


def taken_by(publishes: sluice_native.Publishes) -> Taken:
    """Return all that is said of what was taken."""
    sent = []
    for index, spans in enumerate(publishes.spans(range(len(publishes)))):
        run, number, body, size = publishes.publish(index)
        resources, producer_group = publishes.asker(run)
        channel, numbered = publishes.channel(run)
        assert (producer_group, numbered) == ("", number > 0)
        sent.append(Sent(channel, tuple((kind, name) for kind, name in resources), number, body, size, spans))
    for run in range(publishes.runs):
        indexes, size_bytes = publishes.run(run)
        assert [publishes.publish(index)[0] for index in indexes] == [run] * len(indexes)
        assert size_bytes == sum(publishes.sizes(indexes)) > 0
    assert publishes.numbered(range(len(publishes))) == sum(each.number > 0 for each in sent)
    return Taken(publishes.stop, publishes.frames, sent, publishes.cut)


ORDERS = b"".join(frames.content(1, b"", b"orders", b"hello"))


def test_whole_publishes_are_taken_one_after_the_other() -> None:
    taken = taken_by(scan(channels_of(1), ORDERS * 3))
    size = len(ORDERS)
    assert (taken.stop, taken.frames) == (3 * size, 9)
    assert [each.spans for each in taken.sent] == [[(0, size)], [(size, 2 * size)], [(2 * size, 3 * size)]]
    assert {each.resources for each in taken.sent} == {(("queue", "orders"),)}
    assert {(each.body, each.size) for each in taken.sent} == {(5, size)}


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
    channels = channels_of(1, before_names="v/")
    chunk = b"".join(frames.content(1, exchange, routing_key, b""))
    (only,) = taken_by(scan(channels, chunk, routing_keys=with_keys)).sent
    assert list(only.resources) == resources
    assert [tuple(each) for each in channels.names()] == resources[:1]


TO_OTHERS = [frames.table((key, frames.array(frames.text(b"other")))) for key in (b"CC", b"BCC")]
LONG = frames.table((b"long", frames.text(bytes(4096))))


@pytest.mark.parametrize(
    "other",
    [
        frames.frame(frames.HEARTBEAT, 0, b""),
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
        frames.publish(1, b"", b"orders") + frames.header(1, (1 << 40) + 1),
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
def test_the_first_that_is_not_plain_ends_it(other: bytes) -> None:
    publishes = scan(channels_of(1, 3), ORDERS + other + ORDERS)
    assert (len(publishes), publishes.stop) == (1, len(ORDERS))
    assert publishes.kept([0], 0, publishes.stop) == []


def test_contents_of_channels_lie_between_each_other() -> None:
    one, two = frames.content(1, b"", b"a", b"one"), frames.content(2, b"", b"b", b"two")
    order = [one[0], two[0], two[1], one[1], two[2], one[2]]
    publishes = scan(channels_of(1, 2), b"".join(order))
    first, second = taken_by(publishes).sent
    starts = [sum(map(len, order[:at])) for at in range(7)]
    assert (first.channel, first.spans) == (2, [(starts[1], starts[3]), (starts[4], starts[5])])
    assert second.spans == [(starts[0], starts[1]), (starts[3], starts[4]), (starts[5], starts[6])]
    assert publishes.kept([], 0, starts[6]) == [(0, starts[6])]
    assert publishes.kept([0], 0, starts[6]) == [(0, starts[1]), (starts[3], starts[4]), (starts[5], starts[6])]
    assert publishes.kept([1], 0, starts[6]) == [(starts[1], starts[3]), (starts[4], starts[5])]
    assert publishes.kept([0, 1], 0, starts[6]) == []


def test_an_unmarked_channel_tells_what_is_to_come() -> None:
    channels = channels_of(1)
    whole = b"".join(frames.content(1, b"", b"orders", bytes(200), frame_bytes=108))
    scan(channels, whole[:-108])
    assert channels.unmark(1) == 100
    assert channels.unmark(1) == 0
    assert scan(channels, whole[-108:]).stop == 0
    channels.mark(1)
    assert scan(channels, whole[-108:]).stop == 0
    assert scan(channels, ORDERS).stop == len(ORDERS)
    assert channels.unmark(7) == 0


def test_no_frame_is_longer_than_agreed() -> None:
    channels = channels_of(1)
    whole = b"".join(frames.content(1, b"", b"orders", bytes(100)))
    channels.frame_max = 108
    assert scan(channels, whole).stop == len(whole)
    channels.frame_max = 107
    assert scan(channels, whole).stop == len(whole) - 108
    channels.frame_max = 0
    assert scan(channels_of(1), whole).stop == len(whole)


def test_publishes_are_numbered_by_channel() -> None:
    channels = channels_of(1, 2, 3, confirms=(1, 2))
    chunk = b"".join(b"".join(frames.content(channel, b"", b"a", b"")) for channel in (1, 2, 1, 3, 1))
    assert [each.number for each in taken_by(scan(channels, chunk)).sent] == [1, 1, 2, 0, 3]
    assert (channels.publish(1), channels.publish(3), channels.publish(9)) == (4, 0, 0)
    channels.select(1)
    assert channels.publish(1) == 5
    channels.forget(1)
    channels.select(1)
    channels.mark(1)
    assert [each.number for each in taken_by(scan(channels, chunk)).sent] == [1, 2, 2, 0, 3]


def test_refused_publishes_are_answered_and_the_others_counted_on() -> None:
    channels = channels_of(1, 2, confirms=(1,))
    chunk = b"".join(b"".join(frames.content(channel, b"", b"a", b"")) for channel in (1, 2, 1, 1, 2))
    publishes = scan(channels, chunk)
    refusals, count = publishes.refuse([0, 1, 3])
    assert list(frames.split(refusals)) == [frames.confirm(1, number, method_id=120) for number in (1, 3)]
    assert count == 2
    publishes.forward([0, 1, 3])
    assert (channels.unconfirmed(1), channels.unconfirmed(2)) == (1, 0)
    assert channels.answered(1, 1, multiple=False, refused=False) == [2]


def test_keys_are_forgotten_when_there_are_many() -> None:
    resources = Limits(RuleSet()).resources
    assert resources is not None
    channels = sluice_native.Channels(resources, KINDS, "", 131_072, 2)
    channels.mark(1)
    for number in range(5):
        assert len(scan(channels, b"".join(frames.content(1, b"", b"q%d" % number, b"")))) == 1
    assert [name for _, name in channels.names()] == ["q3", "q4"]
