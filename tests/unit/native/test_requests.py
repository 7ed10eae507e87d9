"""A client's frames: plain ones, their runs, the forwarded bytes, and requests without an answer."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook import frames
from playbook.extension import CLIENT, Extension, Recorder, Run, feed


def _prefix(length: int, header_bytes: int, header_type: int = 0) -> bytes:
    return struct.pack(">iI", length, header_type << 24 | header_bytes)


@pytest.fixture
def passing(extension: Extension) -> Recorder:
    """A judge that admits everything."""
    return extension.recorder(lambda run: [(len(run.sizes), True)])


def test_all_plain_frames_of_a_chunk_are_decided_together(extension: Extension, passing: Recorder) -> None:
    sends = [frames.send("orders", opaque, body=bytes(opaque)) for opaque in range(1, 6)]
    chunk = b"".join(sends)
    assert feed(extension.lend(passing), CLIENT, chunk) == (b"", chunk, len(chunk), False, (5, 0))
    assert passing.runs == [Run("topic", "orders", "producers", list(map(len, sends)))]
    assert passing.counted == [(5, 5, None)]
    assert [opaque in extension.owed for opaque in range(7)] == [False, True, True, True, True, True, False]


@pytest.mark.parametrize("other", [frames.heartbeat(), frames.unparsable(), frames.send_batch("orders", 3)])
def test_first_frame_for_python_ends_it(extension: Extension, passing: Recorder, other: bytes) -> None:
    first = frames.send("orders")
    read = feed(extension.lend(passing), CLIENT, first + other + first)
    assert read == (b"", first, len(first), True, (1, 0))


def test_frames_that_nothing_limits_pass_between_sends(extension: Extension, passing: Recorder) -> None:
    chunk = frames.send("a", 1) + frames.pull(2) + frames.json_frame(105, {"topic": "a"}, opaque=3) + frames.send("b")
    lent = extension.lend(passing)
    assert feed(lent, CLIENT, chunk) == (b"", chunk, len(chunk), False, (4, 0))
    assert [opaque in extension.owed for opaque in (1, 2, 3)] == [True, False, True]
    assert lent.give_back()[3] == ([2], False)


def test_a_frame_is_taken_as_soon_as_its_header_is_there(extension: Extension, passing: Recorder) -> None:
    whole = frames.send("orders", body=b"hello")
    for cut in range(len(whole)):
        lent = extension.lend(passing)
        read = feed(lent, CLIENT, whole[:cut])
        is_taken = cut >= len(whole) - 5
        assert read == (b"", whole[: cut * is_taken], cut * is_taken, False, (is_taken, 0))
        assert lent.give_back()[0] == ((len(whole) - cut) * is_taken, False)


_HEADER = frames.send("orders", body=b"")[8:]
_SIZE = len(_HEADER)


@pytest.mark.parametrize(
    ("length", "header_bytes", "header_type"),
    [
        (_SIZE + 3, _SIZE, 0),
        (3, 0, 0),
        (0, 0, 0),
        (-1, 0, 0),
        (-(2**31), 0, 0),
        (2**31 - 1, _SIZE, 0),
        (_SIZE + 4, _SIZE, 2),
        (_SIZE + 4, _SIZE, 255),
        (_SIZE + 4, 0xFFFFFF, 0),
        (_SIZE + 4, _SIZE, 1),
        (4, 0, 0),
    ],
)
def test_invalid_frames_are_left_to_python(
    extension: Extension, length: int, header_bytes: int, header_type: int
) -> None:
    chunk = _prefix(length, header_bytes, header_type) + _HEADER
    assert feed(extension.lend(extension.recorder()), CLIENT, chunk) == (b"", b"", 0, True, (0, 0))
    assert len(extension.owed) == 0


def test_frame_longer_than_allowed_is_left_to_python(extension: Extension) -> None:
    whole = frames.send("orders")
    for max_length, leaves in ((len(whole) - 4, False), (len(whole) - 5, True), (-1, True)):
        lent = extension.lend(extension.recorder(), max_length=max_length)
        assert feed(lent, CLIENT, whole).leaves is leaves


def test_frames_are_decided_by_name_and_group(extension: Extension, passing: Recorder) -> None:
    sends = [
        frames.send("a", 1, group="g"),
        frames.send("b", 2, group="g", flag=frames.ONEWAY),
        frames.send("a", 3, group="h"),
        frames.send("a", 4, group="g", binary=True),
        frames.send("a", 5, group="g", code=320),
        frames.send_back("g", 6),
        frames.send("b", 7, group="g"),
        frames.send("b", 8, group="g"),
    ]
    sizes = list(map(len, sends))
    feed(extension.lend(passing), CLIENT, b"".join(sends))
    assert passing.runs == [
        Run("topic", "a", "g", [sizes[0], sizes[3], sizes[4]]),
        Run("topic", "b", "g", [sizes[1], sizes[6], sizes[7]]),
        Run("topic", "a", "h", [sizes[2]]),
        Run("retry_group", "g", "", [sizes[5]]),
    ]
    assert [answers for answers, _, _ in passing.counted] == [3, 2, 1, 1]
    assert 2 not in extension.owed


def test_names_are_remembered_from_chunk_to_chunk(extension: Extension, passing: Recorder) -> None:
    lent = extension.lend(passing)
    for topics in ("ab", "bca"):
        feed(lent, CLIENT, b"".join(map(frames.send, topics)))
    assert [run.name for run in passing.runs] == ["a", "b", "b", "c", "a"]
    assert extension.owed.names() == [("topic", "a"), ("topic", "b"), ("topic", "c")]
    other = extension.requests()
    feed(extension.lend(passing, other), CLIENT, frames.send("b"))
    assert other.names() == [("topic", "b")]


def test_too_many_names_are_forgotten_when_the_next_chunk_begins(extension: Extension, passing: Recorder) -> None:
    requests = extension.requests(max_keys=2)
    lent = extension.lend(passing, requests)
    for topics in ("abc", "ca"):
        feed(lent, CLIENT, b"".join(map(frames.send, topics)))
        assert [name for _, name in requests.names()] == list(topics)
    assert [run.name for run in passing.runs] == list("abcca")


def test_a_chunk_may_be_for_any_number_of_topics(extension: Extension, passing: Recorder) -> None:
    topics = [f"t{number}" for number in range(5000)]
    chunk = b"".join(map(frames.send, topics))
    assert feed(extension.lend(passing), CLIENT, chunk) == (b"", chunk, len(chunk), False, (5000, 0))
    assert [run.name for run in passing.runs] == topics


def test_more_than_fits_is_not_owed(extension: Extension, passing: Recorder) -> None:
    owed = extension.requests(most=2)
    lent = extension.lend(passing, owed)
    read = feed(lent, CLIENT, b"".join(frames.send("a", opaque) for opaque in range(5)))
    assert (read.frames, len(owed), owed.ambiguous) == ((5, 0), 2, True)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8))
def test_the_set_of_unanswered_requests_knows_duplicate_numbers(sends: list[tuple[int, bool]]) -> None:
    extension = Extension()
    lent = extension.lend(extension.recorder(lambda run: [(len(run.sizes), True)]))
    feed(lent, CLIENT, b"".join(frames.send("a", opaque, flag=2 * oneway) for opaque, oneway in sends))
    answered = [opaque for opaque, oneway in sends if not oneway]
    assert extension.owed.ambiguous is (len(set(answered)) < len(answered))
    assert len(extension.owed) == len(set(answered))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.lists(st.integers(0, 2000), max_size=4),
)
def test_all_but_refused_requests_pass_in_any_chunks(sends: list[tuple[int, bool, bool]], cuts: list[int]) -> None:
    chunks = [
        frames.send("orders", number, body=bytes(size), flag=2 * oneway)
        for number, (size, oneway, _) in enumerate(sends)
    ]
    verdicts = iter([not refused for *_, refused in sends])
    extension = Extension()
    lent = extension.lend(extension.recorder(lambda run: [(1, next(verdicts)) for _ in run.sizes]))
    to_broker = to_client = kept = b""
    for piece in frames.cut(b"".join(chunks), *cuts):
        read = feed(lent, CLIENT, kept + piece)
        assert not read.leaves
        kept = (kept + piece)[read.stop :]
        to_broker, to_client = to_broker + read.to_broker, to_client + read.to_client
    assert kept == b""
    assert to_broker == b"".join(chunk for chunk, (*_, refused) in zip(chunks, sends, strict=True) if not refused)
    refused = [number for number, (_, oneway, refused) in enumerate(sends) if refused and not oneway]
    assert [int(answer[8:]) for answer in frames.split(to_client)] == refused
    passed = [number for number, (_, oneway, refused) in enumerate(sends) if not refused and not oneway]
    assert all(number in extension.owed for number in passed)
    assert len(extension.owed) == len(passed)
    assert lent.take_counts() == (len(sends), sum(refused for *_, refused in sends))


def test_refused_frames_are_answered_between_frames_of_the_broker_and_no_longer_owed(extension: Extension) -> None:
    opaques = (1, -7, 0, 2**31 - 1, -(2**31), 10)
    judge = extension.recorder(lambda _: [(5, False), (1, True)])
    lent = extension.lend(judge, around=lambda _: (b'{"code":2,"opaque":', b"}"))
    of_broker = frames.answer(99, body=bytes(50))
    begun = feed(lent, 1, of_broker[:-9])
    assert begun.to_client == of_broker[:-9]
    read = feed(lent, CLIENT, b"".join(frames.send("orders", opaque) for opaque in opaques))
    assert (read.to_client, read.to_broker) == (b"", frames.send("orders", 10))
    answers = feed(lent, 1, of_broker[-9:]).to_client.removeprefix(of_broker[-9:])
    assert list(frames.split(answers)) == [frames.frame(b'{"code":2,"opaque":%d}' % opaque) for opaque in opaques[:5]]
    assert len(extension.owed) == 1
    assert 10 in extension.owed


def test_oneway_frames_that_are_refused_settle_nothing(extension: Extension) -> None:
    extension.owed.add(2, True)
    chunk = frames.send("orders", 1) + frames.send("orders", 2, flag=frames.ONEWAY)
    read = feed(extension.lend(extension.recorder()), CLIENT, chunk)
    assert (read.to_client, read.to_broker) == (frames.frame(b"1"), b"")
    assert [opaque in extension.owed for opaque in (1, 2)] == [False, True]


def test_spans_of_a_run_are_answered_in_the_order_of_the_wire(extension: Extension) -> None:
    names = itertools.cycle(["x", "y"])
    judge = extension.recorder(lambda run: [(1, False)] * len(run.sizes))
    lent = extension.lend(judge, around=lambda _: (next(names).encode(), b""))
    read = feed(lent, CLIENT, b"".join(frames.send(topic, number) for number, topic in enumerate("abab")))
    assert [each[8:] for each in frames.split(read.to_client)] == [b"x0", b"x1", b"y2", b"y3"]
