"""Pulls: what they find, and how long they wait for it."""

from collections.abc import Mapping
from typing import Any

import pytest
from stored_records import decode_records

from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode


def test_pull_answers_with_messages_and_where_to_go_on(client: Any) -> None:
    for number in range(3):
        client.produce(body=b"%d" % number)
    answer = client.call(RequestCode.LITE_PULL_MESSAGE, client.pull_fields(offset=1))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert dict(answer.fields) == {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "0",
        "topicSysFlag": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }
    assert [record.message.body for record in decode_records(answer.body)] == [b"1", b"2"]


def test_pull_at_the_end_waits_for_the_next_message(client: Any, bench: Any) -> None:
    client.produce()
    opaque = client.pull(offset=1)
    bench.wait(10)
    assert client.answers() == []
    assert bench.broker.held_pulls == 1
    producer = bench.client()
    producer.produce(queue_id=1)
    assert client.answers() == []
    producer.produce(body=b"next")
    (answer,) = client.answers()
    assert (answer.opaque, answer.code) == (opaque, ResponseCode.SUCCESS)
    assert [record.message.body for record in decode_records(answer.body)] == [b"next"]
    assert bench.broker.held_pulls == 0
    bench.wait(100)
    assert client.answers() == []


@pytest.mark.parametrize("offset", [0, 1])
def test_held_pull_ends_without_messages_when_its_time_is_over(client: Any, bench: Any, offset: int) -> None:
    for _ in range(offset):
        client.produce()
    client.produce(queue_id=1)
    opaque = client.pull(offset=offset, suspendTimeoutMillis=15000)
    bench.wait(14.999)
    assert client.answers() == []
    bench.wait(0.001)
    (answer,) = client.answers()
    assert (answer.opaque, answer.code) == (opaque, ResponseCode.PULL_NOT_FOUND)
    assert answer.fields["nextBeginOffset"] == str(offset)
    assert bench.broker.held_pulls == 0


def test_messages_of_one_chunk_wake_a_pull_once(client: Any, bench: Any) -> None:
    client.produce(queue_id=1)
    client.pull()
    producer = bench.client()
    parts: list[bytes] = []
    producer.send_bytes = parts.append
    for number in range(3):
        producer.send(RequestCode.SEND_MESSAGE_V2, {"b": "orders", "e": 0}, b"%d" % number)
    bench.broker.receive(producer.channel, b"".join(parts), bench.now_ns)
    (answer,) = client.answers()
    assert len(list(decode_records(answer.body))) == 3


@pytest.mark.parametrize("more", [{"sysFlag": 4}, {"suspendTimeoutMillis": 0}, {"suspendTimeoutMillis": -1}])
def test_pull_that_may_not_wait_is_answered_at_once(client: Any, more: Mapping[str, int]) -> None:
    client.produce(queue_id=1)
    client.pull(**more)
    (answer,) = client.answers()
    assert answer.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(("offset", "next_offset"), [(-5, "2"), (1, "2"), (9, "4")])
def test_offset_outside_the_queue_is_corrected_at_once(make_bench: Any, offset: int, next_offset: str) -> None:
    client = make_bench(max_queue_messages=2).client()
    for _ in range(4):
        client.produce()
    client.pull(offset=offset)
    (answer,) = client.answers()
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.fields["nextBeginOffset"] == next_offset


def test_offset_of_an_earlier_process_is_corrected_in_an_empty_queue(client: Any) -> None:
    client.produce(queue_id=1)
    client.pull(offset=1000)
    (answer,) = client.answers()
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


def test_tags_select_messages_and_only_those_wake(client: Any, bench: Any) -> None:
    for tag in ("a", "b", "c"):
        client.produce(body=tag.encode(), properties=f"TAGS\x01{tag}\x02")
    assert [record.message.body for record in client.consume(subscription="a || c")] == [b"a", b"c"]
    answer = client.call(RequestCode.PULL_MESSAGE, client.pull_fields(subscription="d"))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")

    client.pull(offset=3, subscription="d")
    producer = bench.client()
    producer.produce(properties="TAGS\x01a\x02")
    assert client.answers() == []
    producer.produce(body=b"d", properties="TAGS\x01d\x02")
    (answer,) = client.answers()
    assert [record.message.body for record in decode_records(answer.body)] == [b"d"]


def test_pull_held_while_unwanted_messages_came_goes_on_behind_them(client: Any, bench: Any) -> None:
    client.produce(queue_id=1)
    client.pull(subscription="a")
    bench.client().produce(properties="TAGS\x01b\x02")
    bench.wait(15)
    (answer,) = client.answers()
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.fields["nextBeginOffset"] == "1"


def test_subscription_of_the_heartbeat_counts_when_the_pull_brings_none(client: Any) -> None:
    client.produce()
    more = {"sysFlag": 2, "subscription": ""}
    refused = client.call(RequestCode.PULL_MESSAGE, client.pull_fields(**more))
    assert refused.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    client.heartbeat()
    client.answers()
    assert client.call(RequestCode.PULL_MESSAGE, client.pull_fields(**more)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("more", "code", "remark"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "unknown"),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4]"),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1]"),
        ({"consumerGroup": ""}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "not exist"),
        ({"expressionType": "SQL92"}, ResponseCode.SYSTEM_ERROR, "SQL92"),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR, "<queueOffset>"),
    ],
)
def test_pull_that_makes_no_sense_is_refused(client: Any, more: Mapping[str, object], code: int, remark: str) -> None:
    client.produce()
    answer = client.call(RequestCode.PULL_MESSAGE, {**client.pull_fields(), **more})
    assert answer.code == code
    assert remark in answer.remark


def test_pull_commits_the_offset_it_brings(client: Any) -> None:
    client.produce()
    client.consume(sysFlag=5, commitOffset=7)
    client.consume(sysFlag=4, commitOffset=9)
    asked = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, asked).fields == {"offset": "7"}


def test_answer_is_bounded(make_bench: Any) -> None:
    client = make_bench(max_pull_bytes=3000).client()
    for _ in range(5):
        client.produce(body=b"x" * 1000)
    assert len(client.consume()) == 2
    assert len(client.consume(maxMsgBytes=1500)) == 1
    assert len(client.consume(maxMsgNums=1)) == 1
    assert len(client.consume(maxMsgNums=0)) == 1


def test_held_pulls_of_a_connection_are_bounded_and_end_with_it(make_bench: Any) -> None:
    bench = make_bench(max_held_pulls=3)
    client = bench.client()
    client.produce(queue_id=1)
    for _ in range(5):
        client.pull()
    assert [answer.code for answer in client.answers()] == [ResponseCode.PULL_NOT_FOUND] * 2
    assert bench.broker.held_pulls == 3
    client.close()
    assert bench.broker.held_pulls == 0
    assert bench.broker.next_timer_ns() is None
    bench.client().produce()
    assert client.answers() == []
