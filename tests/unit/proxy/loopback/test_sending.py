"""Sends of every kind, send-backs, and the end of a transaction."""

from collections.abc import Mapping
from typing import Any

import pytest

from proxy.loopback.records import decode_record, pack_host
from proxy.protocols.rocketmq.batch_body import BatchMessage, decode_properties, encode_batch
from proxy.protocols.rocketmq.codes import HEADER_BINARY, RequestCode, ResponseCode

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


def test_topic_is_not_made_when_that_is_turned_off(make_bench: Any) -> None:
    client = make_bench(auto_create_topics=False, topics={"orders": 2}).client()
    assert client.produce("orders", queue_id=1).code == ResponseCode.SUCCESS
    assert client.produce("invoices").code == ResponseCode.TOPIC_NOT_EXIST


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


def _send_back(client: Any, record: Any, **more: object) -> Any:
    fields = {"group": "readers", "offset": record.physical_offset, "delayLevel": 0, "maxReconsumeTimes": 16, **more}
    return client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def test_message_sent_back_comes_again_with_its_history(client: Any, bench: Any) -> None:
    sent = client.produce(body=b"again", properties="TAGS\x01t\x02WAIT\x01true\x02", queue_id=2)
    (record,) = client.consume(queue_id=2)
    answer = _send_back(client, record)
    assert (answer.code, dict(answer.fields)) == (ResponseCode.SUCCESS, {})
    bench.wait(9.9)
    assert client.consume("%RETRY%readers") == []
    bench.wait(0.1)
    (again,) = client.consume("%RETRY%readers")
    assert again.message.body == b"again"
    assert again.message.reconsume_times == 1
    assert again.message.born_ms == record.message.born_ms
    assert again.message.born_host == record.message.born_host
    properties = _properties(again)
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]
    assert properties["WAIT"] == "false"
    assert properties["DELAY"] == "3"
    assert properties["REAL_TOPIC"] == "%RETRY%readers"
    assert properties["TAGS"] == "t"

    _send_back(client, again)
    bench.wait(30)
    third = client.consume("%RETRY%readers")[1]
    assert third.message.reconsume_times == 2
    assert _properties(third)["DELAY"] == "4"
    assert _properties(third)["RETRY_TOPIC"] == "orders"
    assert _properties(third)["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]


def test_consumer_chooses_the_delay_level(client: Any, bench: Any) -> None:
    client.produce()
    (record,) = client.consume()
    _send_back(client, record, delayLevel=1)
    bench.wait(1)
    assert len(client.consume("%RETRY%readers")) == 1


@pytest.mark.parametrize("how", [{"maxReconsumeTimes": 0}, {"delayLevel": -1}])
def test_message_that_may_not_come_again_goes_to_the_dead_letters(
    client: Any, bench: Any, how: Mapping[str, int]
) -> None:
    client.produce(body=b"dead")
    (record,) = client.consume()
    assert _send_back(client, record, **how).code == ResponseCode.SUCCESS
    (dead,) = client.consume("%DLQ%readers")
    assert dead.message.body == b"dead"
    assert bench.broker.delayed == 0


def test_redelivered_message_sent_back_too_often_goes_to_the_dead_letters(client: Any, bench: Any) -> None:
    client.produce()
    (record,) = client.consume()
    for times in range(2):
        _send_back(client, record, maxReconsumeTimes=2, delayLevel=1)
        bench.wait(1)
        record = client.consume("%RETRY%readers", offset=times)[0]
    _send_back(client, record, maxReconsumeTimes=2, delayLevel=1)
    assert [dead.message.reconsume_times for dead in client.consume("%DLQ%readers")] == [3]


def test_send_back_of_a_message_that_was_dropped_is_refused(make_bench: Any) -> None:
    client = make_bench(max_queue_messages=1).client()
    client.produce()
    (record,) = client.consume()
    client.produce()
    answer = _send_back(client, record)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "look message by offset failed, 0"


def test_send_to_a_retry_topic_is_what_clients_do_when_a_send_back_was_refused(client: Any, bench: Any) -> None:
    properties = "RETRY_TOPIC\x01orders\x02DELAY\x011\x02"
    answer = client.produce("%RETRY%readers", b"again", properties=properties, j=1, l=16)
    assert answer.code == ResponseCode.SUCCESS
    bench.wait(1)
    (again,) = client.consume("%RETRY%readers")
    assert again.message.reconsume_times == 1
    client.produce("%RETRY%readers", b"dead", properties=properties, j=17, l=16)
    assert [record.message.body for record in client.consume("%DLQ%readers")] == [b"dead"]


def test_prepared_message_is_seen_once_its_transaction_is_committed(client: Any) -> None:
    places = []
    for body in (b"commit", b"roll back", b"open"):
        answer = client.produce(body=body, f=4)
        assert answer.code == ResponseCode.SUCCESS
        places.append(int(answer.fields["msgId"][16:], 16))
    assert client.consume() == []
    for place, verdict in zip(places, (8, 12, 0), strict=True):
        ended = client.call(
            RequestCode.END_TRANSACTION,
            {"commitLogOffset": place, "commitOrRollback": verdict, "tranStateTableOffset": 0},
        )
        assert ended.code == ResponseCode.SUCCESS
    (record,) = client.consume()
    assert record.message.body == b"commit"
    assert record.message.sys_flag == 8
    again = client.call(RequestCode.END_TRANSACTION, {"commitLogOffset": places[0], "commitOrRollback": 8})
    assert again.code == ResponseCode.SYSTEM_ERROR
    assert len(client.consume()) == 1


def test_transactions_that_never_end_are_forgotten_in_the_end(make_bench: Any) -> None:
    client = make_bench(max_prepared=2).client()
    places = [int(client.produce(f=4).fields["msgId"][16:], 16) for _ in range(3)]
    codes = [
        client.call(RequestCode.END_TRANSACTION, {"commitLogOffset": place, "commitOrRollback": 8}).code
        for place in places
    ]
    assert codes == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS, ResponseCode.SUCCESS]


def test_groups_beyond_the_bound_get_no_retries(make_bench: Any) -> None:
    client = make_bench(max_groups=1).client()
    client.produce()
    (record,) = client.consume()
    refused = _send_back(client, record, group="another")
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert client.produce("%RETRY%another").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_what_a_topic_keeps_can_be_looked_at(client: Any, bench: Any) -> None:
    assert bench.broker.records("orders") == []
    client.produce(body=b"0")
    client.produce(body=b"1", queue_id=1)
    bodies = [decode_record(record).message.body for record in bench.broker.records("orders")]
    assert bodies == [b"0", b"1"]


def test_message_that_was_stamped_before_keeps_its_stamps(client: Any) -> None:
    client.produce(properties="MSG_REGION\x01elsewhere\x02UNIQ_KEY\x01u")
    (record,) = client.consume()
    properties = _properties(record)
    assert (properties["MSG_REGION"], properties["CLUSTER"], properties["UNIQ_KEY"]) == (
        "elsewhere",
        "DefaultCluster",
        "u",
    )
