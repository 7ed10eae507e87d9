"""Groups, heartbeats and offsets."""

import json
from typing import Any

import pytest

from admin.demo.broker.groups import Group, Groups, Subscription, tag_filter
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, RequestCode, ResponseCode


def _split(answers: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the broker's own requests and its answers."""
    return [one for one in answers if not one.flag & 1], [one for one in answers if one.flag & 1]


def test_new_consumer_is_listed_and_everyone_in_its_group_is_told(client: Any, bench: Any) -> None:
    client.heartbeat(client_id="one")
    notices, answers = _split(client.answers())
    assert [(notice.code, notice.flag) for notice in notices] == [
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, FLAG_ONEWAY)
    ]
    assert notices[0].fields == {"consumerGroup": "readers"}
    assert answers[0].fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}

    other = bench.client()
    other.heartbeat(client_id="two")
    assert len(_split(client.answers())[0]) == len(_split(other.answers())[0]) == 1
    answer = client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
    assert json.loads(answer.body) == {"consumerIdList": ["one", "two"]}

    client.heartbeat(client_id="one")
    assert _split(client.answers())[0] == []


@pytest.mark.parametrize("how", ["unregister", "close"])
def test_group_is_told_when_a_consumer_leaves(client: Any, bench: Any, how: str) -> None:
    other = bench.client()
    for one, name in ((client, "one"), (other, "two")):
        one.heartbeat(client_id=name)
    client.answers()
    other.answers()
    if how == "close":
        client.close()
    else:
        fields = {"clientID": "one", "producerGroup": "", "consumerGroup": "readers"}
        assert client.call(RequestCode.UNREGISTER_CLIENT, fields).code == ResponseCode.SUCCESS
    assert [notice.code for notice in other.answers()] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    answer = other.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
    assert json.loads(answer.body) == {"consumerIdList": ["two"]}
    other.close()
    answer = bench.client().call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, readers")


def test_broadcasting_group_is_not_told(client: Any) -> None:
    body = {"clientID": "one", "consumerDataSet": [{"groupName": "readers", "messageModel": "BROADCASTING"}]}
    answer = client.call(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS


def test_heartbeat_of_a_consumer_makes_its_retry_topic(client: Any) -> None:
    client.heartbeat()
    client.answers()
    assert client.consume("%RETRY%readers") == []


def test_heartbeat_of_version_2_says_whether_subscriptions_are_wanted(client: Any, bench: Any) -> None:
    def beat(fingerprint: int, **more: object) -> str:
        client.heartbeat(heartbeatFingerprint=fingerprint, **more)
        (answer,) = _split(client.answers())[1]
        return str(answer.fields["IS_SUB_CHANGE"])

    assert beat(11) == "false"
    assert beat(11, withoutSub=True, topics=()) == "false"
    client.produce()
    assert client.consume(sysFlag=0, subscription="") != []
    assert beat(12) == "true"


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"{}", b'{"clientID":1}', b"\x80", b"[" * 100_000, b'{"clientID":"a","consumerDataSet":[{}]}'],
)
def test_heartbeat_that_cannot_be_read_is_refused(client: Any, body: bytes) -> None:
    answer = client.call(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "heartbeat cannot be read" in answer.remark


def test_groups_beyond_the_bound_are_refused(make_bench: Any) -> None:
    client = make_bench(max_groups=1).client()
    client.heartbeat("first")
    client.answers()
    client.heartbeat("second")
    (answer,) = client.answers()
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the group second was not made: its name is illegal, or there are too many",
    )


@pytest.mark.parametrize("version", ["7", "x", "--5", "9" * 5000, "", 7])
def test_subscription_version_may_be_spelled_in_any_way(client: Any, version: object) -> None:
    subscription = {"topic": "orders", "subString": "a", "subVersion": version}
    body = {"clientID": "one", "consumerDataSet": [{"groupName": "readers", "subscriptionDataSet": [subscription]}]}
    client.send(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert _split(client.answers())[1][0].code == ResponseCode.SUCCESS
    client.produce()
    assert client.consume(sysFlag=0, subscription="") == []


def _offset_fields(queue_id: int = 0, **more: object) -> dict[str, object]:
    return {"consumerGroup": "readers", "topic": "orders", "queueId": queue_id, **more}


def test_committed_offset_is_given_back(client: Any, oneway: int) -> None:
    client.produce()
    fields = _offset_fields(commitOffset=5)
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, _offset_fields()).fields == {"offset": "5"}
    client.send(RequestCode.UPDATE_CONSUMER_OFFSET, _offset_fields(commitOffset=6), flag=oneway)
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, _offset_fields()).fields == {"offset": "6"}


def test_new_group_starts_a_young_queue_at_its_first_message(client: Any) -> None:
    client.produce(queue_id=0)
    ask = RequestCode.QUERY_CONSUMER_OFFSET
    assert client.call(ask, _offset_fields()).fields == {"offset": "0"}
    assert client.call(ask, _offset_fields(setZeroIfNotFound="false")).code == ResponseCode.QUERY_NOT_FOUND
    assert client.call(ask, _offset_fields(1)).code == ResponseCode.QUERY_NOT_FOUND


def test_new_group_decides_itself_where_to_start_in_a_queue_that_has_dropped_messages(make_bench: Any) -> None:
    client = make_bench(max_queue_messages=1).client()
    client.produce()
    client.produce()
    answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, _offset_fields())
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("fields", [_offset_fields(topic="unknown"), _offset_fields(4), _offset_fields(-1)])
def test_offsets_are_kept_only_for_queues_that_exist(client: Any, bench: Any, fields: dict[str, object]) -> None:
    client.produce()
    answer = client.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": 5})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields).code == ResponseCode.QUERY_NOT_FOUND


def test_ends_of_a_queue_are_told(make_bench: Any) -> None:
    bench = make_bench(max_queue_messages=2)
    client = bench.client()
    for _ in range(3):
        client.produce()
    queue = {"topic": "orders", "queueId": 0}
    assert client.call(RequestCode.GET_MAX_OFFSET, queue).fields == {"offset": "3"}
    assert client.call(RequestCode.GET_MIN_OFFSET, queue).fields == {"offset": "1"}


def _group() -> Any:
    return Group("readers")


def test_joining_again_changes_nothing() -> None:
    group = _group()
    subscription = Subscription("orders", "*", 1)
    assert group.join("one", "client-1", [subscription])
    assert not group.join("one", "client-1", [subscription])
    assert group.join("two", "client-2", [subscription])
    assert group.client_ids() == ["client-1", "client-2"]
    assert group.leave("one")
    assert not group.leave("one")
    assert group.client_ids() == ["client-2"]


def test_client_with_two_connections_is_listed_once() -> None:
    group = _group()
    group.join("one", "client", [])
    group.join("two", "client", [])
    assert group.client_ids() == ["client"]


def test_later_subscription_replaces_an_earlier_one_and_not_the_other_way() -> None:
    group = _group()
    group.join("one", "client", [Subscription("orders", "a", 2)])
    assert not group.join("one", "client", [Subscription("orders", "old", 1)])
    assert group.subscriptions["orders"].expression == "a"
    assert not group.join("one", "client", [Subscription("orders", "b", 3)])
    assert group.subscriptions["orders"].expression == "b"
    assert group.join("one", "client", [Subscription("invoices", "*", 4)])
    assert list(group.subscriptions) == ["invoices"]


def test_heartbeat_without_subscriptions_keeps_them() -> None:
    group = _group()
    group.join("one", "client", [Subscription("orders", "*")])
    assert not group.join("one", "client", None)
    assert list(group.subscriptions) == ["orders"]


def test_groups_are_bounded() -> None:
    groups: Groups[str] = Groups(max_groups=1)
    group = groups.make("a")
    assert group is not None
    assert groups.make("a") is group
    assert groups.make("b") is None
    assert groups.get("b") is None


@pytest.mark.parametrize(("name", "legal"), [("g" * 120, True), ("", False), ("g" * 121, False), ("a b", False)])
def test_name_of_a_group_leaves_room_for_its_retry_topic(name: str, legal: bool) -> None:  # noqa: FBT001 - a parameter of the test
    groups: Groups[str] = Groups(max_groups=1)
    assert (groups.make(name) is not None) is legal


@pytest.mark.parametrize(
    ("expression", "wanted", "unwanted"),
    [("a", ["a"], ["", "b", "A"]), ("a || b", ["a", "b"], ["", "c", "a || b"]), (" a||", ["a"], [""])],
)
def test_tags_are_filtered(expression: str, wanted: list[str], unwanted: list[str]) -> None:
    accepts = tag_filter(expression)
    assert accepts is not None
    assert all(accepts(tag) for tag in wanted)
    assert not any(accepts(tag) for tag in unwanted)


@pytest.mark.parametrize("expression", ["*", ""])
def test_star_wants_everything(expression: str) -> None:
    assert tag_filter(expression) is None
