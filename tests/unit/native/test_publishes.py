"""The publishes of a chunk: which are plain, where they lie, and how they are numbered."""

from random import Random

import pytest
import sluice_native
from hypothesis import given
from hypothesis import strategies as st
from playbook import amqp_frames as frames
from playbook.slow_channels import MAX_AHEAD, Sent, SlowChannels, Taken

from limiter.deciding.limits import Limits
from limiter.rules.rule_set import RuleSet

KINDS = ("queue", "exchange", "routing_key")
MAX_KEYS, MAX_RUNS = 1000, 1000


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


def test_what_it_is_for_changes_with_what_is_asked_for() -> None:
    channels = channels_of(1)
    chunk = b"".join(frames.content(1, b"events", b"a", b"") + frames.content(1, b"events", b"b", b""))
    for with_keys in (False, True, False):
        publishes = scan(channels, chunk, routing_keys=with_keys)
        assert [publishes.key(run) for run in range(publishes.runs)] == [b"\6events\1a", b"\6events\1b"]
        assert {len(sent.resources) for sent in taken_by(publishes).sent} == {1 + with_keys}


PLAIN_TABLE = frames.table((b"CCC", frames.text(b"x")), (b"cc", frames.text(b"x")), (b"x-CC", frames.text(b"CC is it")))
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


def test_a_table_without_copies_is_plain() -> None:
    chunk = frames.publish(1, b"", b"orders", bits=1) + frames.header(1, 0, *PLAIN_TABLE)
    assert taken_by(scan(channels_of(1), chunk)).stop == len(chunk)


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


def test_it_ends_where_no_publish_lacks_its_header() -> None:
    one, two = frames.content(1, b"", b"a", b"one"), frames.content(2, b"", b"b", b"two")
    channels = channels_of(1, 2, confirms=(1, 2))
    publishes = scan(channels, b"".join([*one[:2], two[0], one[2]]))
    assert (len(publishes), publishes.stop, publishes.open()) == (1, len(one[0] + one[1]), [(1, 0, 3)])
    again = scan(channels, b"".join([two[0], one[2], *two[1:]]))
    assert ([each.number for each in taken_by(again).sent], again.frames, again.open()) == ([1], 4, [])


def test_no_scan_looks_far_for_a_header() -> None:
    channels = channels_of(1, 2)
    one, empty = frames.content(1, b"", b"a", b""), b"".join(frames.content(2, b"", b"b", b""))
    for count, found in ((MAX_AHEAD // 2 - 1, MAX_AHEAD // 2), (MAX_AHEAD, 0)):
        assert len(scan(channels, one[0] + empty * count + one[1])) == found


def test_more_body_is_stepped_over_by_the_next_scan() -> None:
    channels = channels_of(1)
    whole = b"".join(frames.content(1, b"", b"orders", bytes(300), frame_bytes=108))
    first = len(whole) - 2 * 108
    publishes = scan(channels, whole[: first + 50])
    assert (len(publishes), publishes.stop) == (1, first + 108)
    assert publishes.open() == [(1, 0, 100)]
    assert publishes.cut == (1, 0)
    assert taken_by(publishes).sent[0].size == len(whole) - 16
    rest = scan(channels, whole[first + 108 :] + ORDERS)
    assert (len(rest), rest.frames, rest.stop, rest.cut) == (1, 4, 108 + len(ORDERS), None)
    assert rest.kept([0], 0, rest.stop) == [(0, 108)]


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


@pytest.mark.parametrize("indexes", [[2], [0, 2], range(3), (5,), [10**15]])
def test_there_are_no_other_publishes(indexes: list[int]) -> None:
    publishes = scan(channels_of(1), ORDERS * 2)
    for ask in (publishes.sizes, publishes.numbered, publishes.spans, publishes.forward, publishes.refuse):
        with pytest.raises(IndexError):
            ask(indexes)
    for ask_one in (publishes.asker, publishes.key, publishes.run, publishes.channel):
        with pytest.raises(IndexError):
            ask_one(1)
    with pytest.raises(IndexError):
        publishes.publish(2)
    with pytest.raises(IndexError):
        publishes.kept([2], 0, 9)


def test_a_scan_ends_before_too_many_runs() -> None:
    chunk = b"".join(b"".join(frames.content(1, b"", b"q%d" % number, b"")) for number in (0, 1, 0, 2))
    publishes = channels_of(1).scan(chunk, 0, 2, 100, False)
    assert (publishes.runs, len(publishes), publishes.stop) == (2, 3, len(chunk) // 4 * 3)


def test_a_scan_ends_when_it_has_as_many_publishes_as_it_may() -> None:
    publishes = channels_of(1).scan(ORDERS * 5, 0, 9, 3, False)
    assert (len(publishes), publishes.stop) == (3, 3 * len(ORDERS))


def test_keys_are_forgotten_when_there_are_many() -> None:
    resources = Limits(RuleSet()).resources
    assert resources is not None
    channels = sluice_native.Channels(resources, KINDS, "", 131_072, 2)
    channels.mark(1)
    for number in range(5):
        assert len(scan(channels, b"".join(frames.content(1, b"", b"q%d" % number, b"")))) == 1
    assert [name for _, name in channels.names()] == ["q3", "q4"]


def _stream(random: Random) -> bytes:
    """Return frames of some channels in any order, and some that do not belong there."""
    lines = []
    for channel in (1, 2, 3, 300):
        line: list[bytes] = []
        for _ in range(random.randrange(5)):
            exchange, key = random.choice([(b"", b"q"), (b"", b"r"), (b"ex", b"a"), (b"ex", b"b"), (b"", b"\xff")])
            size = random.choice([0, 1, 30, 31, 100])
            content = frames.content(channel, exchange, key, bytes(size), frame_bytes=random.choice([16, 38, 1000]))
            if random.random() < 0.1:
                content[1] = frames.header(channel, size, *random.choice([PLAIN_TABLE, *TO_OTHERS]))
            if random.random() < 0.05:
                content.insert(random.randrange(len(content) + 1), frames.method(channel, 60, 10, bytes(7)))
            line += content
        lines.append(line)
    stream = []
    while any(lines):
        stream.append(random.choice([line for line in lines if line]).pop(0))
        if random.random() < 0.02:
            stream.append(frames.frame(frames.HEARTBEAT, 0, b""))
    return b"".join(stream)


def _broken(random: Random, stream: bytes) -> bytes:
    """Change some bytes."""
    data = bytearray(stream)
    for _ in range(random.randrange(3)):
        if data:
            data[random.randrange(len(data))] = random.choice([0, 1, 2, 3, 8, 60, 255, random.randrange(256)])
    return bytes(data)


class Pair:
    """The compiled channels and the slow ones, held to each other."""

    def __init__(self, random: Random, frame_max: int = 1000) -> None:
        self.random = random
        self.fast, self.slow = channels_of(), SlowChannels(frame_max=frame_max)
        self.fast.frame_max = frame_max
        for channel in (1, 2, 3, 300):
            for each in (self.fast, self.slow):
                if channel in {1, 3}:
                    each.select(channel)
                each.mark(channel)

    def read(self, chunk: bytes, *, routing_keys: bool) -> int:
        """Read all that can be read of a chunk; return where its rest begins."""
        position = 0
        while len(chunk) - position >= frames.AROUND_BYTES:
            expected = self.slow.scan(chunk, position, routing_keys=routing_keys)
            publishes = scan(self.fast, chunk, position, routing_keys=routing_keys)
            assert taken_by(publishes) == expected
            rests = {channel: each.rest for channel, each in self.slow.all.items() if each.rest}
            assert {channel: rest for channel, _, rest in publishes.open()} == rests
            if expected.stop > position:
                position = expected.stop
                continue
            # What a scan does not take is stepped over, and its channel may be plain again.
            stop = position + frames.AROUND_BYTES + int.from_bytes(chunk[position + 3 : position + 7], "big")
            if stop > len(chunk):
                break
            channel = int.from_bytes(chunk[position + 1 : position + 3], "big")
            assert self.fast.unmark(channel) == self.slow.unmark(channel)
            if self.random.random() < 0.7 and channel in {1, 2, 3, 300}:
                self.fast.mark(channel)
                self.slow.mark(channel)
            position = stop
        return position


@given(st.integers(0, 2**32), st.booleans())
def test_a_stream_is_read_alike_however_it_is_cut(seed: int, routing_keys: bool) -> None:  # noqa: FBT001 - drawn
    random = Random(seed)
    stream = _stream(random)
    if random.random() < 0.5:
        stream = _broken(random, stream)
    pair, position, end = Pair(random), 0, 0
    while end < len(stream):
        end = min(len(stream), max(end, position) + random.choice([1, 7, 20, 100, 1000]))
        if position < end:
            position += pair.read(stream[position:end], routing_keys=routing_keys)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_stream_is_read_alike_when_it_is_cut_anywhere(seed: int) -> None:
    stream = _stream(Random(seed))
    for cut in range(len(stream)):
        pair = Pair(Random(seed))
        position = pair.read(stream[:cut], routing_keys=True)
        pair.read(stream[position:], routing_keys=True)


@given(st.binary(max_size=400), st.integers(0, 500))
def test_any_bytes_are_read(chunk: bytes, position: int) -> None:
    channels = channels_of(*range(300), confirms=tuple(range(0, 300, 2)))
    publishes = scan(channels, chunk, position)
    assert publishes.stop >= position
    channels.settle(chunk, position, True)
