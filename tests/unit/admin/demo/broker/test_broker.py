"""The broker as a whole: codes it does not know, bad bytes, bounds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.demo.broker.broker import Broker
from admin.demo.broker.channel import Role
from admin.demo.broker.store import LoopbackConfig
from proxy.protocols.rocketmq.wire.codes import FLAG_RESPONSE, RemoteProtocolError, RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode


@pytest.mark.parametrize(
    ("role", "code"),
    [
        (Role.BROKER, RequestCode.POP_MESSAGE),
        (Role.BROKER, 4711),
        (Role.BROKER, -1),
        (Role.BROKER, RequestCode.GET_ROUTEINFO_BY_TOPIC),
        (Role.NAME_SERVER, RequestCode.SEND_MESSAGE_V2),
    ],
)
def test_unknown_request_is_answered_as_not_supported(bench: Any, role: Role, code: int) -> None:
    answer = bench.client(role).call(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert f"request type {code} not supported" in answer.remark


def test_remark_repeats_what_the_client_wrote_but_not_at_any_length(client: Any) -> None:
    answer = client.call(RequestCode.PULL_MESSAGE, {**client.pull_fields(), "topic": "t" * 10_000_000})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert len(answer.remark) == 500


def test_answers_of_clients_are_ignored(client: Any, bench: Any) -> None:
    client.send(RequestCode.SEND_MESSAGE_V2, {"b": "orders"}, flag=FLAG_RESPONSE)
    assert client.answers() == []
    assert bench.broker.stored("orders") == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"PROXY TCP4",
        bytes(8),
        b"\x00\x00\x00\x03\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x05abcd",
        b"\x00\x00\x00\x08\x02\x00\x00\x04abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
    ],
)
def test_bytes_that_are_no_frame_end_the_connection(client: Any, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        client.send_bytes(data)


def test_frames_may_come_byte_by_byte(client: Any, bench: Any) -> None:
    command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=9, fields={"b": "orders"}, body=b"body")
    for byte in encode(command) * 2:
        client.send_bytes(bytes([byte]))
    assert [answer.opaque for answer in client.answers()] == [9, 9]
    assert bench.broker.stored("orders") == 2


def test_memory_stays_bounded_under_a_flood(make_bench: Any) -> None:
    bench = make_bench(max_store_bytes=1 << 20, max_queue_messages=500, max_topics=50)
    client = bench.client()
    for number in range(10_000):
        client.send(RequestCode.SEND_MESSAGE_V2, {"b": f"t{number % 100}", "e": number % 4}, b"x" * 100)
        client.channel.take()
    assert bench.broker._store.size_bytes <= 1 << 20
    assert len(bench.broker.stored_by_topic()) == 49
    assert bench.broker._store.dropped > 0


_NAMES = st.sampled_from(
    [
        *("a", "b", "d", "e", "f", "g", "h", "i", "j", "l", "m"),
        *("topic", "queueId", "properties", "batch", "sysFlag"),
        *("consumerGroup", "queueOffset", "maxMsgNums", "suspendTimeoutMillis", "subscription", "commitOffset"),
    ]
)
_VALUES = st.one_of(
    st.sampled_from(["orders", "%RETRY%g", "%DLQ%g", "g", "*", "true", "0", "1", "-1", "4", "8", ""]),
    st.sampled_from(["DELAY\x011\x02", "TAGS\x01a\x02DELAY\x01\x02", "UNIQ_KEY\x01", "99999999999999999999", "1e3"]),
    st.text(max_size=10),
)
_COMMANDS = st.builds(
    RemotingCommand,
    code=st.sampled_from([*(int(code) for code in RequestCode), 0, -5]),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    version=st.sampled_from([0, 63, 513]),
    fields=st.dictionaries(_NAMES, _VALUES, max_size=12),
    body=st.one_of(st.binary(max_size=60), st.just(b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}')),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(_COMMANDS, st.integers(0, 1), st.integers(0, 20)), max_size=20))
def test_no_request_makes_the_broker_raise(plan: list[tuple[RemotingCommand, int, int]]) -> None:
    broker = Broker(LoopbackConfig(), lambda: 0)
    channels = [broker.connect(role, "127.0.0.1", 1, lambda: None) for role in (Role.BROKER, Role.NAME_SERVER)]
    now_ns = 0
    for command, which, wait_s in plan:
        broker.receive(channels[which], encode(command), now_ns)
        now_ns += wait_s * 1_000_000_000
        broker.run_timers(now_ns)
    for channel in channels:
        broker.disconnect(channel)
    assert broker.held_pulls == 0
