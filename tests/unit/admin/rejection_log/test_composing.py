from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from admin.edits.model import Change
from admin.rejection_log.aggregate import Aggregate
from admin.rejection_log.composing import Composer, LimitsInForce
from admin.rejection_log.records import AnyRecord, TrafficRecord
from limiter.counting.rejections import Amount, Rejection, ResourceSecond
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

MINUTE = 1_700_000_040


def read(line: bytes) -> Any:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return msgspec.json.decode(line, type=AnyRecord)


@pytest.fixture
def composer() -> Composer:
    return Composer("broker-a", "0123456789ab")


def change(**fields: Any) -> Change:
    at = "2026-11-21T12:00:00.500Z"
    return Change(**{"id": 7, "at": at, "by": "alice", "address": "", "action": "set", "reason": "more", **fields})


def test_every_record_has_the_next_number(composer: Composer, make_rejection: Callable[..., Rejection]) -> None:
    lines = [
        composer.rejection(5, make_rejection()),
        composer.heartbeat(Aggregate(0, 1), version="1", limiting=True),
        composer.limit(5, Rule("topic", "orders", 5), {}),
        composer.limit_change(change(target="limits/topic/orders")),
    ]
    assert [(read(line).n, read(line).run, read(line).instance) for line in lines] == [
        (number, "0123456789ab", "broker-a") for number in (1, 2, 3, 4)
    ]


def test_a_traffic_record_says_all_that_was_counted(
    composer: Composer, make_second: Callable[..., ResourceSecond]
) -> None:
    minute = Aggregate(MINUTE, 10)
    minute.add(MINUTE + 2, make_second(admitted=3, refused=4, repeated=2, identified=3))
    ((resource, traffic),) = minute
    limit = {"rule": "topic:orders", "rate_per_s": 3.0, "break_s": 1.0}
    record = read(composer.traffic(MINUTE, resource, traffic, limit))
    assert isinstance(record, TrafficRecord)
    assert (record.kind, record.name, record.at_s) == ("topic", "orders", MINUTE)
    assert (record.rule, record.rate_per_s, record.burst_s, record.break_s) == ("topic:orders", 3.0, 1.0, 1.0)
    assert tuple(record.admitted.__struct_fields__) == ("requests", "messages", "size_bytes")
    assert (record.admitted.messages, record.refused.requests, record.held.requests) == (6, 4, 0)
    assert (record.busy_answers, record.languages, record.clients) == (4, {"JAVA": (7, 4)}, 1)
    assert (record.second, record.second_admitted, record.second_refused) == ((2,), (6,), (4,))
    assert (record.second_requests, record.second_bytes, record.second_repeated) == ((7,), (304,), (4,))
    assert (record.repeated, record.identified) == (Amount(2, 4, 200), 3)


def test_what_is_as_by_default_is_not_written(composer: Composer, make_second: Callable[..., ResourceSecond]) -> None:
    minute = Aggregate(MINUTE, 10)
    minute.add(MINUTE, make_second(refused=1))
    ((resource, traffic),) = minute
    written = msgspec.json.decode(composer.traffic(MINUTE, resource, traffic, {"rule": "r", "rate_per_s": 1.0}))
    unwritten = {"admitted", "held", "burst_s", "bytes_burst_s", "count", "action", "bytes_per_s", "more_clients"}
    unwritten |= {"repeated", "identified", "second_repeated"}
    assert not unwritten & set(written)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"target": "limits/topic/a/b", "old": {"rate": 5}, "new": {"rate": 7.5}},
            ("topic", "a/b", 5.0, 7.5),
        ),
        ({"target": "limits/total/topic:x*", "new": {"rate": "unlimited"}}, ("total", "topic:x*", None, None)),
        (
            {"target": "switches/all", "old": {"limiting": True}, "new": {"limiting": False}},
            ("all", "", None, None),
        ),
        ({"target": "configuration", "action": "reload"}, ("", "", None, None)),
    ],
)
def test_a_change_is_told_with_the_rates_before_and_after(
    composer: Composer, fields: dict[str, Any], expected: tuple[object, ...]
) -> None:
    record = read(composer.limit_change(change(**fields)))
    assert (record.kind, record.name, record.rate_before_per_s, record.rate_after_per_s) == expected
    assert (record.change_id, record.by, record.reason, record.at_s) == (7, "alice", "more", 1_795_262_400)


def test_names_that_utf_8_cannot_hold_are_written_all_the_same(
    composer: Composer, make_rejection: Callable[..., Rejection]
) -> None:
    record = read(composer.rejection(1, make_rejection("a\udcffb\n")))
    assert record.name == "a?b\n"


def test_limits_are_those_in_force_and_switches_make_them_off() -> None:
    rules = RuleSet((Rule("topic", "orders", 5), Rule("topic", "x*", None, bytes_per_s=9, count="requests")))
    limits = LimitsInForce(rules)
    assert limits.of(Resource("topic", "orders")) == {"rule": "topic:orders", "rate_per_s": 5, "break_s": 1.0}
    assert limits.of(Resource("topic", "xy")) == {
        "rule": "topic:x*",
        "bytes_per_s": 9,
        "break_s": 1.0,
        "count": "requests",
    }
    assert limits.of(Resource("topic", "nobody's")) == {}
    assert limits.of(Resource("topic", "_other")) == {}
    off = LimitsInForce(rules.replace(off_kinds=["topic"])).of(Resource("topic", "orders"))
    assert (off["action"], off["rate_per_s"]) == ("off", 5)
    assert LimitsInForce(rules.replace(enabled=False)).of(Resource("topic", "orders"))["action"] == "off"


def test_rules_are_those_for_resources_and_of_the_built_in_ones_only_defaults() -> None:
    rules = (
        Rule("topic", "orders", 5),
        Rule("topic", "free", None, exempt=True),
        Rule("topic", "*", 9, shared=True),
        Rule("client", "10.0.0.1", 9),
        Rule("topic", "RMQ_SYS_*", None, exempt=True, source="built-in"),
        Rule("topic", "*", 2000, source="built-in"),
    )
    assert [rule.name for rule, _ in LimitsInForce(RuleSet(rules)).of_rules()] == [
        "topic:orders",
        "topic:free",
        "topic:*",
    ]
