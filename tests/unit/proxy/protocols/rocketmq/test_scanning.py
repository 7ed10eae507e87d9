"""The scans and the columns they fill: both read the same, and columns say what the requests in them would."""

import sys
from collections.abc import Callable, Sequence
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook import frames
from playbook.captures import distinct_frames
from playbook.playbook import READINGS, Anything, Client, Playbook, Reading

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Request, Side, grouped
from proxy.protocols.base import Close, SessionContext, WireCounters, nobody_takes
from proxy.protocols.rocketmq.cutting import cut
from proxy.protocols.rocketmq.gathered import Gathered
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.pending import Pending
from proxy.protocols.rocketmq.requests import RequestStream
from proxy.protocols.rocketmq.scanning import MAX_KEYS, Opaques, Scanner, Segment
from proxy.protocols.rocketmq.scans import PYTHON, Scan, find, scan_named
from proxy.protocols.rocketmq.transactions import Transactions
from proxy.protocols.rocketmq.wire.codes import MAX_FRAME_BYTES

MOST = MAX_FRAME_BYTES - 4
CONNECTION = ConnectionInfo(1, "main", "main", "192.0.2.1:40000", "192.0.2.1")


def scan_of(reading: Reading) -> Scan:
    assert reading != "as it comes"
    scan = scan_named(reading)
    assert scan is not None
    return scan


@pytest.fixture(params=READINGS[1:])
def scan(request: pytest.FixtureRequest) -> Scan:
    return scan_of(request.param)


@pytest.fixture
def owed(scan: Scan) -> Opaques:
    return scan.opaques()


@pytest.fixture
def scanner(scan: Scan, owed: Opaques) -> Scanner:
    return scan.scanner(owed)


def send(topic: str, opaque: int = 1, *, group: str = "pg", flag: int = 0, body: bytes = b"x") -> bytes:
    return frames.json_frame(310, {"a": group, "b": topic}, opaque=opaque, flag=flag, body=body)


def read(scanner: Scanner, data: bytes, position: int = 0) -> Segment:
    return scanner.scan(memoryview(data), position, MOST)


# --- Segments -------------------------------------------------------------------------------------


def test_frames_of_one_key_are_one_run(scanner: Scanner, owed: Opaques) -> None:
    data = send("a", 1) + send("a", 2)
    segment = read(scanner, data)
    assert len(segment) == 2
    assert segment.stop == len(data)
    assert [(number, list(indexes), size, oneway) for number, indexes, size, oneway in segment.runs] == [
        (0, [0, 1], len(data), 0)
    ]
    assert (segment.first_new, segment.new) == (0, [("topic", "a", "pg")])
    assert len(owed) == 2


def test_runs_are_in_the_order_of_first_appearance_and_keys_keep_their_numbers(scanner: Scanner) -> None:
    read(scanner, send("a"))
    segment = read(scanner, send("b") + send("a") + send("b") + send("b", group="other"))
    assert [(number, list(indexes)) for number, indexes, _, _ in segment.runs] == [(1, [0, 2]), (0, [1]), (2, [3])]
    assert (segment.first_new, segment.new) == (1, [("topic", "b", "pg"), ("topic", "b", "other")])


def test_sends_to_a_retry_topic_and_send_backs_are_charged_to_the_group(scanner: Scanner) -> None:
    send_back = frames.json_frame(36, {"group": "g", "originTopic": "x"})
    segment = read(scanner, send("%RETRY%g", group="c") + send_back)
    assert segment.new == [("retry_group", "g", "c"), ("retry_group", "g", "")]


def test_scan_ends_at_what_is_not_plain(scanner: Scanner) -> None:
    first = send("a")
    for other in (
        frames.json_frame(34, body=b"{}"),
        frames.json_frame(310, {"a": "g", "b": "t", "m": "true"}),
        frames.json_frame(310, {"a": "g"}),
        send("a", flag=frames.RESPONSE),
        frames.frame(b"junk"),
        frames.frame(b"{}", header_type=7),
        b"\xff" * 8,
        send("a")[:20],
        b"\0\0",
        b"",
    ):
        segment = read(scanner, first + other + first)
        assert (len(segment), segment.stop) == (1, len(first)) or not other or len(other) < 9, other


def test_body_may_still_be_coming(scanner: Scanner) -> None:
    data = send("a", body=b"x" * 100)
    segment = read(scanner, data[:-60])
    assert (len(segment), segment.stop) == (1, len(data))


def test_nothing_is_taken_of_nothing(scanner: Scanner) -> None:
    segment = read(scanner, b"")
    assert (len(segment), segment.stop, segment.runs, segment.new) == (0, 0, [], [])


def test_frame_longer_than_allowed_is_not_taken(scanner: Scanner) -> None:
    data = send("a", body=b"x" * 100)
    assert len(scanner.scan(memoryview(data), 0, len(data) - 4)) == 1
    assert len(scanner.scan(memoryview(data), 0, len(data) - 5)) == 0


def test_oneway_sends_are_told_and_not_owed(scanner: Scanner, owed: Opaques) -> None:
    segment = read(scanner, send("a", 1) + send("a", 2, flag=frames.ONEWAY) + send("b", 3, flag=frames.ONEWAY))
    assert [run[3] for run in segment.runs] == [1, 1]
    assert [number in owed for number in (1, 2, 3)] == [True, False, False]


def test_single_frames_can_be_looked_at(scanner: Scanner) -> None:
    one, two = send("a", 7), send("b", -8, flag=frames.ONEWAY, body=b"longer")
    segment = read(scanner, b"...." + one + two, 4)
    assert segment.frame(0) == (0, 4, 4 + len(one), 310, 7, 0)
    assert segment.frame(1) == (1, 4 + len(one), 4 + len(one) + len(two), 310, -8, frames.ONEWAY)
    assert list(segment.sizes([0, 1])) == [len(one), len(two)]
    assert list(segment.sizes(range(1, 2))) == [len(two)]


def test_what_is_left_without_some_frames_is_in_the_largest_slices(scanner: Scanner) -> None:
    whole = send("a")
    size = len(whole)
    segment = read(scanner, whole * 5)
    assert segment.kept([], 0, 5 * size) == [(0, 5 * size)]
    assert segment.kept([1, 2, 4], 0, 5 * size) == [(0, size), (3 * size, 4 * size)]
    assert segment.kept(range(5), 0, 5 * size) == []
    assert segment.kept([0], size, 5 * size) == [(size, 5 * size)]


def test_refused_frames_are_answered_and_not_owed(scanner: Scanner, owed: Opaques) -> None:
    segment = read(scanner, send("a", 5) + send("a", 6) + send("a", 7, flag=frames.ONEWAY) + send("a", -2147483648))
    answers, count = segment.refuse([1, 2, 3], b"{head", b"tail}")
    assert [whole[8:] for whole in frames.split(answers)] == [b"{head6tail}", b"{head-2147483648tail}"]
    assert all(int.from_bytes(whole[4:8]) == len(whole) - 8 for whole in frames.split(answers))
    assert count == 2
    assert len(owed) == 1
    assert 5 in owed


def test_keys_are_forgotten_when_there_are_too_many(scanner: Scanner) -> None:
    for at in range(MAX_KEYS + 1):
        assert read(scanner, send(f"t{at}")).first_new == at
    segment = read(scanner, send("t0") + send("fresh"))
    assert (segment.first_new, len(segment.new)) == (0, 2)


def test_compiled_scan_of_another_version_is_not_used_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("other_scan")
    monkeypatch.setitem(sys.modules, "other_scan", other)
    for interface in (None, 0, 1):
        other.INTERFACE = interface  # type: ignore[attr-defined]
        compiled, used = find("other_scan")
        assert compiled is None
        assert used.name == "python"
        assert str(used).startswith("the Python scan; the compiled scan that is installed belongs to another version")


def test_without_a_compiled_scan_the_one_in_python_is_used() -> None:
    assert find("no_such_scan") == (None, PYTHON)
    assert str(PYTHON) == "the Python scan"


def test_what_is_owed_is_bounded(scan: Scan) -> None:
    owed = scan.opaques()
    for opaque in range(20_000):
        owed.add(opaque)
    assert len(owed) == 16_384
    assert owed.discard(3)
    assert not owed.discard(3)
    owed.add(-1)
    assert -1 in owed


# --- Both are the same ----------------------------------------------------------------------------

SENDS: Sequence[Callable[[int], bytes]] = (
    lambda opaque: send("orders", opaque),
    lambda opaque: send("orders", opaque, flag=frames.ONEWAY),
    lambda opaque: send("payments", opaque, group="other", body=b"y" * 50),
    lambda opaque: send("%RETRY%g", opaque),
    lambda opaque: send("größe", opaque),
    lambda opaque: send("x" * 255, opaque),
    lambda opaque: send("x" * 256, opaque),
    lambda opaque: send("", opaque),
    lambda opaque: send("%RETRY%", opaque),
    lambda opaque: frames.binary_frame(310, {"a": "pg", "b": "orders"}, opaque=opaque),
    lambda opaque: frames.binary_frame(310, {"a": "pg", "b": "orders", "m": "true"}, opaque=opaque, body=b"z" * 30),
    lambda opaque: frames.json_frame(310, {"a": "pg", "b": "orders", "m": "true"}, opaque=opaque, body=b"z" * 30),
    lambda opaque: frames.json_frame(10, {"producerGroup": "pg", "topic": "orders"}, opaque=opaque),
    lambda opaque: frames.json_frame(36, {"group": "g"}, opaque=opaque),
    lambda opaque: frames.send("a", opaque, sys_flag="1"),
    lambda opaque: frames.send("a", opaque, sys_flag=1),
    lambda opaque: frames.send("a", opaque, sys_flag="128"),
    lambda opaque: frames.send("a", opaque, sys_flag=132, binary=False),
    lambda opaque: frames.send("a", opaque, sys_flag="128", binary=True),
    lambda opaque: frames.send("rmq_sys_wheel_timer", opaque),
    lambda opaque: frames.send("SCHEDULE_TOPIC_XXXX", opaque, binary=True),
    lambda opaque: frames.send_half("a", opaque),
    lambda opaque: frames.end_transaction(opaque, opaque, flag=0),
    lambda opaque: frames.json_frame(34, {}, opaque=opaque, body=b"{}"),
    lambda opaque: frames.json_frame(11, {"consumerGroup": "g", "topic": "t"}, opaque=opaque),
    lambda opaque: frames.frame(b"{'code':310,\"opaque\":%d,extFields:{b:'odd'}}" % opaque),
    lambda opaque: frames.frame(b"nobody reads this"),
)
_CAPTURED = distinct_frames("to_broker")
_streams = st.lists(
    st.tuples(st.sampled_from(SENDS), st.integers(-5, 40)).map(lambda made: made[0](made[1]))
    | st.sampled_from(_CAPTURED),
    max_size=30,
).map(b"".join)


def stream_of(reading: Reading) -> RequestStream:
    scan = None if reading == "as it comes" else scan_of(reading)
    owed = Pending(scan_of("python").opaques() if scan is None else scan.opaques())
    scanner = None if scan is None else scan.scanner(owed.opaques)
    context = SessionContext(
        CONNECTION, WireCounters(), lambda: None, False, lambda kind: False, RocketMQOptions(), nobody_takes
    )
    stream = RequestStream(context, owed, Transactions(), lambda *_: False, scanner=scanner)
    stream._trial = 0
    return stream


def fed(reading: Reading, pieces: Sequence[bytes], refuses: Callable[[int], bool]) -> list[object]:
    """Return all that can be seen of a stream that is fed some pieces, with some of its requests refused."""
    stream = stream_of(reading)
    told: list[object] = []
    count = 0
    for piece in pieces:
        requests = stream.feed(memoryview(bytearray(piece)), 0)
        batch = Batch(CONNECTION, Side.CLIENT, requests)
        refuse = Refuse(Resource("topic", "any"), "rule", 7)
        batch.verdicts.update({at: refuse for at in range(len(requests)) if refuses(count + at)})
        count += len(requests)
        out: list[bytes | memoryview] = []
        refused = stream.pass_on(batch, out)
        told += [
            [_plain(request) for request in requests],
            stream.refusals,
            b"".join(out),
            refused.requests,
            list(frames.split(b"".join(refused.answers))),
            stream.frames,
            len(stream._owed),
            stream.missing_bytes(),
            stream.between_frames(),
            stream.names.shown(),
        ]
        if stream.close is not None:
            told.append(str(stream.close))
            break
    return told


def _plain(request: Request) -> object:
    return (
        request.resources,
        request.messages,
        request.size_bytes,
        request.producer_group,
        request.oneway,
        request.order_key,
        request.consumes,
    )


@settings(deadline=None)
@given(_streams, st.randoms(use_true_random=False))
def test_a_stream_is_read_the_same_frame_by_frame_and_by_each_scan(data: bytes, random: Random) -> None:
    pieces, at = [], 0
    while at < len(data):
        step = random.choice((1, 9, 100, 500, 5000, len(data)))
        pieces.append(data[at : at + step])
        at += step
    refused = {number for number in range(100) if random.random() < random.choice((0.0, 0.3, 1.0))}
    expected = fed("as it comes", pieces, refused.__contains__)
    for reading in READINGS[1:]:
        assert fed(reading, pieces, refused.__contains__) == expected


@pytest.mark.parametrize("reading", READINGS[1:])
@settings(deadline=None)
@given(data=_streams, random=st.randoms(use_true_random=False))
def test_columns_say_what_their_requests_do(reading: Reading, data: bytes, random: Random) -> None:
    stream = stream_of(reading)
    first = random.choice((0, 0, 13, 300))
    for piece in (data[:first], data[first:]):
        if not piece:
            continue
        gathered = stream.feed(memoryview(piece), 0)
        batch = Batch(CONNECTION, Side.CLIENT, gathered)
        groups = batch.groups()
        made = list(gathered)
        assert len(made) == len(gathered)
        assert [
            (group.resources, group.producer_group, group.consumes, list(group.indexes), list(group.messages))
            for group in groups
        ] == [
            (group.resources, group.producer_group, group.consumes, list(group.indexes), list(group.messages))
            for group in grouped(made)
        ]
        assert batch.sums_bytes() == Batch(CONNECTION, Side.CLIENT, made).sums_bytes()
        plain = Batch(CONNECTION, Side.CLIENT, made)
        for group in groups:
            some = [index for index in group.indexes if random.random() < 0.5]
            assert list(batch.size_bytes(some)) == list(plain.size_bytes(some))
            if some:
                assert batch.sums_of(group, some) == plain.sums_of(group, some)
        stream.pass_on(batch, [])
        if stream.close is not None:
            return


@pytest.mark.parametrize("plain", [0, 1, 7])
def test_frames_that_are_not_plain_do_not_make_a_scan_of_each_other_one(
    plain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of("python")
    scanner_type = type(stream._scanner)
    scan, at = scanner_type.scan, []

    def noted(self: Scanner, chunk: memoryview, position: int, max_length: int) -> Segment:
        at.append(position)
        return scan(self, chunk, position, max_length)

    monkeypatch.setattr(scanner_type, "scan", noted)
    chunk = memoryview((frames.json_frame(34, body=b"{}") + send("a") * plain) * 500)
    left, turns = len(chunk), 0
    while left:
        stream.feed(chunk[-left:], 0)
        stream.pass_on(None, [])
        left, turns = stream.left_bytes, turns + 1
    assert turns <= len(at) <= 12 * turns + 500 * (1 + plain) // 64
    assert stream.frames == 500 * (1 + plain)


def test_nothing_is_cut_where_something_is_held() -> None:
    assert cut(Gathered(), {}, 0, lambda header: None) is not None


def test_close_ends_a_scanned_chunk_behind_its_last_frame() -> None:
    for reading in READINGS:
        stream = stream_of(reading)
        stream.feed(memoryview(send("a") + b"\xff" * 8), 0)
        assert isinstance(stream.close, Close)
        out: list[bytes | memoryview] = []
        stream.pass_on(None, out)
        assert b"".join(out) == send("a")


@pytest.mark.parametrize("reading", READINGS[1:])
def test_beginning_of_a_header_may_come_again_with_the_next_chunk(reading: Reading) -> None:
    data = send("a", 1) + send("b", 2) + send("c", 3)
    expected = fed(reading, [data], {1}.__contains__)
    cut_at = len(send("a", 1)) + 20
    stream = stream_of(reading)
    requests = stream.feed(memoryview(data[:cut_at]), 0)
    assert len(requests) == 1
    out: list[bytes | memoryview] = []
    stream.pass_on(Batch(CONNECTION, Side.CLIENT, requests), out)
    assert stream.held_back() == 20
    back = stream.take_back()
    assert back == data[cut_at - 20 : cut_at]
    assert stream.held_back() == 0
    requests = stream.feed(memoryview(back + data[cut_at:]), 0)
    batch = Batch(CONNECTION, Side.CLIENT, requests)
    batch.verdicts[0] = Refuse(Resource("topic", "any"), "rule", 7)
    refused = stream.pass_on(batch, out)
    assert b"".join(out) == expected[2]
    assert list(refused.answers) == expected[4]


def test_beginning_of_a_long_header_is_not_read_again() -> None:
    stream = stream_of("python")
    long = frames.json_frame(310, {"a": "pg", "b": "t", "i": "x" * 5000})
    stream.feed(memoryview(long[:4000]), 0)
    stream.pass_on(None, [])
    assert (stream.held_back(), stream.take_back()) == (0, b"")
    requests = stream.feed(memoryview(long[4000:]), 0)
    assert len(requests) == 1


def test_stream_reads_fast_while_its_chunks_take_few_steps() -> None:
    for reading in READINGS[1:]:
        stream = stream_of(reading)
        stream._scan_from_bytes = scan_of(reading).least_bytes
        for data, fast in (
            (send("a") * 500, True),
            (b"".join(send(f"t{at}") for at in range(100)), False),
            (frames.json_frame(34, body=b"{}") * 100, False),
            (send("a") * 500, True),
        ):
            requests = stream.feed(memoryview(data), 0)
            stream.pass_on(Batch(CONNECTION, Side.CLIENT, requests.simplest()), [])
            assert stream.reads_fast() == (fast and reading == "compiled")


def test_half_messages_are_compared_with_what_was_scanned_once_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(Pending, "scanned", lambda _: calls.append(1))
    play = Playbook(reading="python")
    for piece, count in (
        ((send("a", 1) * 20 + frames.send_half("a", 2)) * 5, 1),
        (frames.send_half("a", 3), 1),
        (send("a", 1) * 20 + bytes(8), 2),
    ):
        play = play >> Client(piece) << Anything()
        assert len(calls) == count
