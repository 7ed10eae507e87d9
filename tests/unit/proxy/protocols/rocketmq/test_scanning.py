"""The scan reads what is read frame by frame, and the columns it fills say what the requests in them would."""

import sys
from collections.abc import Callable, Sequence
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook import frames
from playbook.captures import distinct_frames
from playbook.playbook import READINGS, Reading

from limiter.compiled import find
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Request, Side
from proxy.protocols.base import SessionContext, WireCounters, nobody_takes
from proxy.protocols.options import read_by
from proxy.protocols.rocketmq.answers import Pending
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.requests import RequestStream
from proxy.protocols.rocketmq.scanning import SCAN
from proxy.protocols.rocketmq.transactions import Transactions

RESOURCES = Limits(RuleSet()).resources
CONNECTION = ConnectionInfo(1, "main", "main", "192.0.2.1:40000", "192.0.2.1")


def send(topic: str, opaque: int = 1, *, group: str = "pg", flag: int = 0, body: bytes = b"x") -> bytes:
    return frames.json_frame(310, {"a": group, "b": topic}, opaque=opaque, flag=flag, body=body)


def test_compiled_part_of_another_version_is_not_used_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("other_scan")
    monkeypatch.setitem(sys.modules, "other_scan", other)
    for interface in (None, 0, 1):
        other.INTERFACE = interface  # type: ignore[attr-defined]
        compiled, unusable = find("other_scan")
        assert compiled is None
        assert unusable.startswith("the compiled part that is installed belongs to another version")
    monkeypatch.setattr("proxy.protocols.options.COMPILED", None)
    assert read_by("auto", "why") == "Python, frame by frame; why"


def test_without_the_compiled_part_frames_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("no_such_scan") == (None, "")
    assert read_by("python", "why") == "Python, frame by frame"
    monkeypatch.setattr("proxy.protocols.options.COMPILED", None)
    assert read_by("auto", "") == "Python, frame by frame"


# --- All readings are the same --------------------------------------------------------------------

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
    """Return a stream; "as it comes" it notes numbers where a scan does, and reads frame by frame all the same."""
    scan = None if reading == "python" else SCAN
    opaques = None if scan is None else scan.opaques()
    owed = Pending(opaques)
    scanner = None if scan is None or opaques is None or reading == "as it comes" else scan.scanner(opaques, RESOURCES)
    context = SessionContext(
        CONNECTION, WireCounters(), lambda: None, False, lambda kind: False, RocketMQOptions(), nobody_takes
    )
    stream = RequestStream(context, owed, Transactions(), lambda *_: False, scanner=scanner)
    stream._trial = 0
    return stream


def fed(
    reading: Reading, pieces: Sequence[bytes], refuses: Callable[[int], bool]
) -> tuple[list[object], list[int] | None]:
    """Return all that can be seen of a stream that is fed some pieces, with some of its requests refused.

    That is what it told, and how much was owed meanwhile: None for "python", which counts equal numbers once.
    """
    stream = stream_of(reading)
    told: list[object] = []
    owed: list[int] = []
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
            stream.missing_bytes(),
            stream.between_frames(),
            _named(stream),
        ]
        owed.append(len(stream._owed))
        if stream.close is not None:
            told.append(str(stream.close))
            break
    return told, None if reading == "python" else owed


def _named(stream: RequestStream) -> object:
    """Return which names are shown, in whatever order; only how many if there are more."""
    names, more = stream.shown_names()
    return len(names) + more if more else set(names)


def _plain(request: Request) -> object:
    return (
        request.resources,
        request.messages,
        request.size_bytes,
        request.producer_group,
        request.refusal,
        request.order_key,
        request.consumes,
    )


@settings(deadline=None)
@given(_streams, st.randoms(use_true_random=False))
def test_a_stream_is_read_the_same_frame_by_frame_and_by_the_scan(data: bytes, random: Random) -> None:
    pieces, at = [], 0
    while at < len(data):
        step = random.choice((1, 9, 100, 500, 5000, len(data)))
        pieces.append(data[at : at + step])
        at += step
    refused = {number for number in range(100) if random.random() < random.choice((0.0, 0.3, 1.0))}
    expected = fed("as it comes", pieces, refused.__contains__)
    for reading in READINGS[1:]:
        told, owed = fed(reading, pieces, refused.__contains__)
        assert told == expected[0]
        assert owed is None or owed == expected[1]


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
        of_each = {index: group for group in groups for index in group.indexes}
        assert sorted(of_each) == list(range(len(made)))
        for index, group in of_each.items():
            assert group.resources == made[index].resources
            assert group.producer_group == made[index].producer_group
            assert group.consumes == made[index].consumes
        plain = Batch(CONNECTION, Side.CLIENT, made)
        for group in groups:
            some = [index for index in group.indexes if random.random() < 0.5]
            assert list(batch.size_bytes(some)) == list(plain.size_bytes(some))
            if some:
                assert batch.sums_of(group, some) == plain.sums_of(group, some)
        stream.pass_on(batch, [])
        if stream.close is not None:
            return


@pytest.mark.parametrize("reading", READINGS[1:])
def test_beginning_of_a_header_may_come_again_with_the_next_chunk(reading: Reading) -> None:
    data = send("a", 1) + send("b", 2) + send("c", 3)
    expected, _ = fed(reading, [data], {1}.__contains__)
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


@pytest.mark.parametrize("reading", READINGS[1:])
def test_stream_reads_fast_while_its_chunks_take_few_steps(reading: Reading) -> None:
    stream = stream_of(reading)
    for data, fast in (
        (send("a") * 500, reading == "compiled"),
        (b"".join(send(f"t{at}") for at in range(100)), reading == "compiled"),
        (frames.json_frame(34, body=b"{}") * 100, False),
        (send("a", body=bytes(5000)) * 30, True),
    ):
        requests = stream.feed(memoryview(data), 0)
        stream.pass_on(Batch(CONNECTION, Side.CLIENT, requests.simplest()), [])
        assert stream.reads_fast() is fast
