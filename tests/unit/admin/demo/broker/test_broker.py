"""What recorded and real clients do not show of the broker: bounds, refusals, bytes that are no requests."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from harness.wire_bytes import encode_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_records import decode_records

from admin.demo.broker.broker import Broker
from admin.demo.broker.channel import Channel
from admin.demo.broker.sending import property_of
from proxy.protocols.rocketmq.batch_body import BatchMessage
from proxy.protocols.rocketmq.wire.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    HEADER_BINARY,
    RemoteProtocolError,
    RequestCode,
    ResponseCode,
)
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

V1 = {"topic": "orders", "queueId": 1, "sysFlag": 1, "bornTimestamp": 5, "flag": 7, "properties": "TAGS\x01t\x02"}
V2 = {"b": "orders", "e": 1, "f": 1, "g": 5, "h": 7, "i": "TAGS\x01t\x02", "m": "false"}
READERS = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.message.body for record in decode_records(answer.body)]


def test_unknown_request_is_answered_as_not_supported(client: Any) -> None:
    answer = client.call(RequestCode.POP_MESSAGE)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "request type 200050 not supported" in answer.remark


def test_answers_of_clients_are_ignored(client: Any, bench: Any) -> None:
    client.send(RequestCode.SEND_MESSAGE_V2, V2, flag=FLAG_RESPONSE)
    assert client.answers() == []
    assert bench.broker.stored_by_topic() == {}


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{"])
def test_bytes_that_are_no_frame_end_the_connection(client: Any, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        client.send_bytes(data)


def test_frames_may_come_byte_by_byte(client: Any, bench: Any) -> None:
    command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=9, fields={"b": "orders"}, body=b"body")
    for byte in encode(command) * 2:
        client.send_bytes(bytes([byte]))
    assert [answer.opaque for answer in client.answers()] == [9, 9]
    assert bench.broker.stored_by_topic() == {"orders": 2}


def test_oldest_messages_go_first_when_the_store_is_full(client: Any) -> None:
    for number in range(40):
        client.produce(f"t{number % 2}", bytes([number]) * (1 << 20))
    kept = [client.call(RequestCode.GET_MIN_OFFSET, {"topic": topic, "queueId": 0}) for topic in ("t0", "t1")]
    (first, second) = (int(answer.fields["offset"]) for answer in kept)
    assert 4 <= first <= 6
    assert second in {first, first - 1}
    assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "t0", "queueId": 0}).fields == {"offset": "20"}


# --- Sends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields"),
    [(RequestCode.SEND_MESSAGE, V1), (RequestCode.SEND_MESSAGE_V2, V2), (RequestCode.SEND_REPLY_MESSAGE_V2, V2)],
)
@pytest.mark.parametrize("header_type", [0, HEADER_BINARY])
def test_every_kind_of_send_is_stored(bench: Any, code: int, fields: Mapping[str, object], header_type: int) -> None:
    client = bench.client(header_type=header_type)
    answer = client.call(code, fields, b"body")
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("1", "0")
    assert answer.fields["msgId"] == "7F00000200002A9F0000000000000000"
    (record,) = client.consume(queue_id=1)
    message = record.message
    assert (message.body, message.flag, message.sys_flag, message.born_ms) == (b"body", 7, 1, 5)
    assert message.properties == b"TAGS\x01t\x02"


def test_oneway_send_is_stored_and_never_answered(client: Any, bench: Any) -> None:
    client.send(RequestCode.SEND_MESSAGE_V2, V2, b"body", flag=FLAG_ONEWAY)
    client.send(4711, flag=FLAG_ONEWAY)
    assert client.answers() == []
    assert bench.broker.stored_by_topic() == {"orders": 1}


@pytest.mark.parametrize(
    ("code", "fields"),
    [(RequestCode.SEND_MESSAGE_V2, {**V2, "m": "true"}), (RequestCode.SEND_MESSAGE, {**V1, "batch": "True"})],
)
def test_batch_is_stored_as_its_messages(client: Any, bench: Any, code: int, fields: Mapping[str, object]) -> None:
    messages = [BatchMessage(b"%d" % number, f"TAGS\x01t{number % 2}\x02", number) for number in range(4)]
    answer = client.call(code, fields, encode_batch(messages))
    assert len(set(answer.fields["msgId"].split(","))) == 4
    assert bench.broker.stored_by_topic() == {"orders": 4}
    assert [record.message.flag for record in client.consume(queue_id=1)] == [0, 1, 2, 3]
    assert [record.message.body for record in client.consume(queue_id=1, subscription="t1")] == [b"1", b"3"]


@pytest.mark.parametrize("body", [b"", b"short", encode_batch([BatchMessage(b"x")])[:-1]])
def test_batch_that_cannot_be_read_is_refused_as_a_whole(client: Any, bench: Any, body: bytes) -> None:
    answer = client.call(RequestCode.SEND_BATCH_MESSAGE, {**V2, "m": "true"}, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.broker.stored_by_topic() == {}


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"b": "a b"}, ResponseCode.SYSTEM_ERROR, "a topic's name"),
        ({"e": 99}, ResponseCode.SYSTEM_ERROR, "queueId[99]"),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR, "<e> is no number"),
        ({"h": 1 << 31}, ResponseCode.MESSAGE_ILLEGAL, "does not fit"),
        ({"i": "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL, "does not fit"),
    ],
)
def test_illegal_send_is_refused_with_a_reason(
    client: Any, bench: Any, changed: Mapping[str, object], code: int, remark: str
) -> None:
    answer = client.call(RequestCode.SEND_MESSAGE_V2, {**V2, **changed}, b"body")
    assert answer.code == code
    assert remark in answer.remark
    assert bench.broker.stored_by_topic() == {}


def test_name_inside_another_name_or_value_is_not_found() -> None:
    assert property_of("XTAGS\x01a\x02B\x01TAGS\x02", "TAGS") == ""
    assert property_of("TAGS\x01a\x02TAGS\x01b", "TAGS") == "b"


# --- Pulls -----------------------------------------------------------------------------------------


def test_pull_at_the_end_waits_for_the_next_message_and_the_answer_is_bounded(client: Any, bench: Any) -> None:
    client.produce()
    opaque = client.pull(offset=1)
    bench.wait(10)
    producer = bench.client()
    producer.produce(queue_id=1)
    assert client.answers() == []
    producer.produce(body=bytes(200_000))
    (answer,) = client.answers()
    assert (answer.opaque, answer.code, len(bodies(answer)[0])) == (opaque, ResponseCode.SUCCESS, 200_000)
    assert bench.broker.held_pulls == 0
    producer.produce(body=bytes(200_000))
    assert len(client.consume(offset=0)) == 2


@pytest.mark.parametrize("offset", [0, 1])
def test_held_pull_ends_without_messages_when_its_time_is_over(client: Any, bench: Any, offset: int) -> None:
    for _ in range(offset):
        client.produce()
    client.produce(queue_id=1)
    client.pull(offset=offset, suspendTimeoutMillis=15000)
    bench.wait(14.999)
    assert client.answers() == []
    bench.wait(0.002)
    (answer,) = client.answers()
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, str(offset))


@pytest.mark.parametrize("more", [{"sysFlag": 4}, {"suspendTimeoutMillis": 0}])
def test_pull_that_may_not_wait_is_answered_at_once(client: Any, more: Mapping[str, int]) -> None:
    client.produce(queue_id=1)
    client.pull(**more)
    (answer,) = client.answers()
    assert answer.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(("queue_id", "offset", "next_offset"), [(0, -5, "0"), (0, 9, "1"), (1, 1000, "0")])
def test_offset_outside_the_queue_is_corrected_at_once(
    client: Any, queue_id: int, offset: int, next_offset: str
) -> None:
    client.produce()
    client.pull(queue_id=queue_id, offset=offset)
    (answer,) = client.answers()
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, next_offset)


def test_tags_select_messages_and_what_was_skipped_is_told(client: Any) -> None:
    for tag in ("a", "b", "c"):
        client.produce(body=tag.encode(), properties=f"TAGS\x01{tag}\x02")
    client.produce()
    assert [record.message.body for record in client.consume(subscription=" a||c ||")] == [b"a", b"c"]
    answer = client.call(RequestCode.PULL_MESSAGE, client.pull_fields(subscription="d"))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")


def test_subscription_of_the_heartbeat_counts_when_the_pull_brings_none(client: Any) -> None:
    client.produce()
    fields = {name: value for name, value in client.pull_fields(sysFlag=2).items() if name != "subscription"}
    assert client.call(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    client.heartbeat()
    client.answers()
    assert client.call(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "unknown" * 1000}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_pull_that_makes_no_sense_is_refused(client: Any, more: Mapping[str, object], code: int) -> None:
    client.produce()
    answer = client.call(RequestCode.PULL_MESSAGE, {**client.pull_fields(), **more})
    assert answer.code == code
    assert len(answer.remark) <= 500


# --- Groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "unregister"])
def test_group_is_told_of_who_comes_and_who_leaves(client: Any, bench: Any, how: str) -> None:
    other = bench.client()
    client.heartbeat(client_id="one")
    client.answers()
    other.heartbeat(client_id="two")
    assert [notice.code for notice in client.answers()] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    client.heartbeat(client_id="one")
    other.answers()
    if how == "close":
        client.close()
    else:
        client.send(RequestCode.UNREGISTER_CLIENT, {"clientID": "one", "consumerGroup": "readers"})
    (notice,) = other.answers()
    assert (notice.code, notice.fields) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "readers"})
    answer = other.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
    assert json.loads(answer.body) == {"consumerIdList": ["two"]}


@pytest.mark.parametrize("body", [b"", b"{}", b"\x80", b"[" * 100_000, b'{"clientID":"a","consumerDataSet":[{}]}'])
def test_heartbeat_that_cannot_be_read_is_refused(client: Any, body: bytes) -> None:
    answer = client.call(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "heartbeat cannot be read" in answer.remark


def test_committed_offset_is_given_back(client: Any) -> None:
    client.produce()
    ask = RequestCode.QUERY_CONSUMER_OFFSET
    # A new group starts a young queue at its first message, and decides itself where there is none.
    assert client.call(ask, READERS).fields == {"offset": "0"}
    assert client.call(ask, {**READERS, "queueId": 1}).code == ResponseCode.QUERY_NOT_FOUND
    client.send(RequestCode.UPDATE_CONSUMER_OFFSET, {**READERS, "commitOffset": 6}, flag=FLAG_ONEWAY)
    assert client.call(ask, READERS).fields == {"offset": "6"}
    client.consume(sysFlag=5, commitOffset=7)
    client.consume(sysFlag=4, commitOffset=9)
    assert client.call(ask, READERS).fields == {"offset": "7"}


# --- Anything --------------------------------------------------------------------------------------

_NAMES = st.sampled_from(
    [
        *("a", "b", "d", "e", "f", "g", "h", "i", "j", "l", "m"),
        *("topic", "queueId", "properties", "batch", "sysFlag"),
        *("consumerGroup", "queueOffset", "maxMsgNums", "suspendTimeoutMillis", "subscription", "commitOffset"),
    ]
)
_VALUES = st.one_of(
    st.sampled_from(["orders", "%RETRY%g", "g", "*", "true", "0", "1", "-1", "4", "8", "", "99999999999999999999"]),
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
@given(st.lists(_COMMANDS, max_size=20))
def test_no_request_makes_the_broker_raise(commands: list[RemotingCommand]) -> None:
    broker, channel = Broker(), Channel("127.0.0.1", 1)
    for now_s, command in enumerate(commands):
        broker.receive(channel, bytearray(encode(command)), now_s)
        broker.end_long_polls(now_s)
    broker.disconnect(channel)
    assert broker.held_pulls == 0
