"""Sends of every kind, and the properties of messages."""

from collections.abc import Mapping
from typing import Any

import pytest
from harness.wire_bytes import encode_batch, encode_properties
from hypothesis import given
from hypothesis import strategies as st

from admin.demo.broker.sending import property_of, with_property
from admin.demo.broker.store import pack_host
from proxy.protocols.rocketmq.batch_body import BatchMessage, decode_properties
from proxy.protocols.rocketmq.wire.codes import HEADER_BINARY, RequestCode, ResponseCode

V1 = {
    "topic": "orders",
    "producerGroup": "producers",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 1,
    "sysFlag": 1,
    "bornTimestamp": 5,
    "flag": 7,
    "properties": "TAGS\x01t\x02",
    "batch": "0",
}
V2 = {
    "a": "producers",
    "b": "orders",
    "c": "TBW102",
    "d": 4,
    "e": 1,
    "f": 1,
    "g": 5,
    "h": 7,
    "i": "TAGS\x01t\x02",
    "m": "false",
}


def _properties(record: Any) -> dict[str, str]:
    return decode_properties(record.message.properties.decode())


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.SEND_MESSAGE, V1),
        (RequestCode.SEND_REPLY_MESSAGE, V1),
        (RequestCode.SEND_MESSAGE_V2, V2),
        (RequestCode.SEND_REPLY_MESSAGE_V2, V2),
        (RequestCode.SEND_BATCH_MESSAGE, V2),
        (RequestCode.SEND_MESSAGE_V2, V1),
    ],
)
@pytest.mark.parametrize("header_type", [0, HEADER_BINARY])
def test_every_kind_of_send_is_stored(bench: Any, code: int, fields: Mapping[str, object], header_type: int) -> None:
    client = bench.client(host="10.0.0.9", port=4321, header_type=header_type)
    answer = client.call(code, fields, b"body")
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["queueId"] == "1"
    assert answer.fields["queueOffset"] == "0"
    assert answer.fields["msgId"] == "7F00000100002A9F0000000000000000"
    assert bench.broker.stored("orders") == 1
    (record,) = client.consume(queue_id=1)
    message = record.message
    assert (message.body, message.flag, message.sys_flag, message.born_ms) == (b"body", 7, 1, 5)
    assert message.born_host == pack_host("10.0.0.9", 4321)
    assert record.store_host == pack_host("127.0.0.1", 10911)
    assert _properties(record) == {
        "TAGS": "t",
        "UNIQ_KEY": answer.fields["transactionId"],
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }


def test_oneway_send_is_stored_and_never_answered(client: Any, bench: Any, oneway: int) -> None:
    client.send(RequestCode.SEND_MESSAGE_V2, V2, b"body", flag=oneway)
    client.send(RequestCode.SEND_MESSAGE_V2, {"b": "TBW102"}, b"refused", flag=oneway)
    client.send(4711, flag=oneway)
    assert client.answers() == []
    assert client.woken == 0
    assert bench.broker.stored("orders") == 1


@pytest.mark.parametrize(
    ("code", "fields", "mark"),
    [
        (RequestCode.SEND_BATCH_MESSAGE, V2, {"m": "true"}),
        (RequestCode.SEND_MESSAGE_V2, V2, {"m": "true"}),
        (RequestCode.SEND_MESSAGE, V1, {"batch": "True"}),
    ],
)
def test_batch_is_stored_as_its_messages(
    client: Any, bench: Any, code: int, fields: Mapping[str, object], mark: Mapping[str, str]
) -> None:
    messages = [BatchMessage(b"%d" % number, f"TAGS\x01t{number % 2}\x02", number) for number in range(4)]
    answer = client.call(code, {**fields, **mark}, encode_batch(messages))
    assert answer.code == ResponseCode.SUCCESS
    assert len(set(answer.fields["msgId"].split(","))) == 4
    assert answer.fields["queueOffset"] == "0"
    assert bench.broker.stored("orders") == 4
    records = client.consume(queue_id=1)
    assert [record.message.body for record in records] == [b"0", b"1", b"2", b"3"]
    assert [record.message.flag for record in records] == [0, 1, 2, 3]
    assert _properties(records[1]) == {"TAGS": "t1"}
    assert len(client.consume(queue_id=1, subscription="t1")) == 2


def test_batch_mark_of_the_cpp_client_is_none_to_a_broker(client: Any) -> None:
    body = encode_batch([BatchMessage(b"0"), BatchMessage(b"1")])
    client.call(RequestCode.SEND_MESSAGE, {**V1, "batch": "1"}, body)
    assert [record.message.body for record in client.consume(queue_id=1)] == [body]


@pytest.mark.parametrize("body", [b"", b"short", encode_batch([BatchMessage(b"x")])[:-1]])
def test_batch_that_cannot_be_read_is_refused_as_a_whole(client: Any, bench: Any, body: bytes) -> None:
    body = body and encode_batch([BatchMessage(b"whole")]) + body
    answer = client.call(RequestCode.SEND_BATCH_MESSAGE, {**V2, "m": "true"}, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.broker.stored("orders") == 0


def test_topic_is_made_by_the_first_send_with_the_queues_the_producer_wants(client: Any, bench: Any) -> None:
    for topic, wanted, queues in (("few", 2, 2), ("many", 100, 8), ("none", 0, 1)):
        assert client.produce(topic, queue_id=queues - 1, d=wanted).code == ResponseCode.SUCCESS
        assert client.produce(topic, queue_id=queues).code == ResponseCode.SYSTEM_ERROR
    assert bench.broker.stored_by_topic() == {"few": 1, "many": 1, "none": 1}


def test_send_without_a_queue_goes_round_the_queues(client: Any) -> None:
    queues = [client.produce(queue_id=-1).fields["queueId"] for _ in range(5)]
    assert queues == ["0", "1", "2", "3", "0"]


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"b": "TBW102"}, ResponseCode.NO_PERMISSION, "template"),
        ({"b": "a b"}, ResponseCode.SYSTEM_ERROR, "name is 1 to 127"),
        ({"b": ""}, ResponseCode.SYSTEM_ERROR, "name is 1 to 127"),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR, "<e> is no number"),
        ({"g": 1 << 63}, ResponseCode.SYSTEM_ERROR, "<g> is no number"),
        ({"f": 1 << 31}, ResponseCode.SYSTEM_ERROR, "<f> is no number of 32 bits"),
        ({"i": "K\x01" + "v" * 33_000}, ResponseCode.MESSAGE_ILLEGAL, "properties are longer"),
    ],
)
def test_illegal_send_is_refused_with_a_reason(
    client: Any, bench: Any, changes: Mapping[str, object], code: int, remark: str
) -> None:
    answer = client.produce(**changes)
    assert answer.code == code
    assert remark in answer.remark
    assert not any(bench.broker.stored_by_topic().values())


def test_body_over_four_mebibytes_is_refused(client: Any) -> None:
    assert client.produce(body=bytes(4 << 20)).code == ResponseCode.SUCCESS
    assert client.produce(body=bytes((4 << 20) + 1)).code == ResponseCode.MESSAGE_ILLEGAL


def test_message_that_was_stamped_before_keeps_its_stamps(client: Any) -> None:
    client.produce(properties="MSG_REGION\x01elsewhere\x02UNIQ_KEY\x01u")
    (record,) = client.consume()
    properties = _properties(record)
    assert (properties["MSG_REGION"], properties["CLUSTER"], properties["UNIQ_KEY"]) == (
        "elsewhere",
        "DefaultCluster",
        "u",
    )


_WORDS = st.text("aAbBDELAY_ 1", max_size=6)
_NAMES = _WORDS.filter(bool)


@given(st.dictionaries(_NAMES, _WORDS, max_size=5), _NAMES, _WORDS)
def test_properties_are_found_and_set_as_in_a_dictionary(known: dict[str, str], name: str, value: str) -> None:
    text = encode_properties(known)
    for spelling in (text, text.removesuffix("\x02")):
        assert property_of(spelling, name) == known.get(name)
        changed = with_property(spelling, name, value)
        assert property_of(changed, name) == value
        assert decode_properties(changed) == known | {name: value}
        assert changed.count(f"{name}\x01") >= 1


def test_name_inside_another_name_or_value_is_not_found() -> None:
    properties = "XTAGS\x01a\x02KEYS\x01TAGS\x02"
    assert property_of(properties, "TAGS") is None
    assert property_of(properties, "KEYS") == "TAGS"


@pytest.mark.parametrize("given_key", ["", "MINE"])
def test_every_message_has_a_unique_key(client: Any, given_key: str) -> None:
    properties = f"UNIQ_KEY\x01{given_key}\x02" if given_key else ""
    keys = [client.produce(properties=properties).fields["transactionId"] for _ in range(2)]
    stored = [decode_properties(record.message.properties.decode())["UNIQ_KEY"] for record in client.consume()]
    assert stored == keys
    if given_key:
        assert keys == [given_key] * 2
    else:
        assert len(set(keys)) == 2
        assert all(len(key) == 32 for key in keys)
