"""Busy answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.rules.resource import Resource
from proxy.deciding.batch import Refuse
from proxy.protocols.rocketmq.replies import busy_answer
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode

RULE = "topic:orders"


def answered(
    resource: Resource, kind: str = "topic", *, rule: str = RULE, busy_code: int | None = None
) -> RemotingCommand:
    return decode(busy_answer(Refuse(resource, rule, 12_345, busy_code), 7, kind))


def test_a_busy_answer_has_code_remark_and_the_requests_number() -> None:
    answer = answered(Resource("topic", "orders"))
    assert (answer.code, answer.flag, answer.opaque) == (2, 1, 7)
    assert answer.remark == "[RateLimit] for orders need wait:12345microsecs, rule topic:orders"
    assert (answer.body, answer.fields) == (b"", {})


@pytest.mark.parametrize(
    ("resource", "shown"),
    [
        (Resource("topic", "orders"), "orders"),
        (Resource("retry_group", "cg"), "%RETRY%cg"),
        (Resource("subscription", "cg@orders"), "cg@orders"),
        (Resource("client", "10.1.2.3"), "client 10.1.2.3"),
        (Resource("producer_group", "pg"), "producer group pg"),
        (Resource("listener", "main"), "listener main"),
        (Resource("total", "topic:*"), "total topic:*"),
        (Resource("handler", "deny_names"), "handler deny_names"),
    ],
)
def test_a_remark_names_what_is_over_its_limit(resource: Resource, shown: str) -> None:
    refuse = Refuse(resource, "the rule", 1)
    remark = f"[RateLimit] for {shown} need wait:1microsecs, rule the rule"
    assert decode(busy_answer(refuse, 7, "topic")).remark == remark


@pytest.mark.parametrize(
    ("kind", "busy_code", "expected"),
    [
        ("topic", None, 2),
        ("retry_group", None, 2),
        ("subscription", None, 215),
        ("topic", 215, 215),
        ("subscription", 2, 2),
        # What clients would read as stored, or as something else than busy.
        ("topic", 0, 2),
        ("topic", 10, 2),
        ("subscription", 19, 215),
    ],
)
def test_the_code_is_the_rules_if_clients_take_it_for_busy(kind: str, busy_code: int | None, expected: int) -> None:
    assert answered(Resource("listener", "main"), kind, busy_code=busy_code).code == expected


@given(st.text(max_size=255), st.text(max_size=255), st.integers(min_value=0), st.integers(-(2**31), 2**31 - 1))
def test_any_names_make_an_answer_that_can_be_read(name: str, rule: str, wait_us: int, opaque: int) -> None:
    refuse = Refuse(Resource("topic", name), rule, wait_us)
    frame = busy_answer(refuse, opaque, "topic")
    header = json.loads(frame[8:])
    remark = f"[RateLimit] for {name} need wait:{wait_us}microsecs, rule {rule}"
    assert (header["remark"], header["opaque"]) == (remark, opaque)
    assert frame[:8] == (len(frame) - 4).to_bytes(4, "big") + (len(frame) - 8).to_bytes(4, "big")


@pytest.mark.parametrize("kind", ["topic", "retry_group", "client"])
def test_names_longer_than_any_topic_are_cut(kind: str) -> None:
    refuse = Refuse(Resource(kind, "x" * 100_000), "y" * 100_000, 1)
    assert len(busy_answer(refuse, 7, "topic")) < 700


def test_one_that_can_never_be_admitted_is_told_how_much_can() -> None:
    refuse = Refuse(Resource("topic", "orders"), "topic:orders", 1_000_000, most=550)

    remark = "[RateLimit] for orders at most 550 messages at once, rule topic:orders"
    assert decode(busy_answer(refuse, 7, "topic")).remark == remark
