"""Requests that Sluice refuses whatever the limits."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook.frames import read_header, send
from playbook.playbook import Anything, Client, Playbook, ToBroker
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading

from limiter.rules.resource import Resource
from proxy.deciding.batch import Refuse, Side
from proxy.protocols.rocketmq.refusals import INTERNAL_TOPICS, busy_answer, is_internal
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode

INTERNAL = ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_DefaultCluster")
BEFORE, BEHIND = send("a", 1), send("b", 3)


@pytest.mark.parametrize("topic", INTERNAL)
@pytest.mark.parametrize("binary", [False, True])
def test_send_to_an_internal_topic_is_refused_in_the_brokers_words(topic: str, binary: bool) -> None:  # noqa: FBT001
    play = Playbook() >> Client(BEFORE + send(topic, 2, binary=binary) + BEHIND) << Anything()
    assert play.given[Side.BROKER] == BEFORE + BEHIND
    answer = read_header(play.given[Side.CLIENT])
    assert (answer["code"], answer["opaque"], answer["flag"]) == (16, 2, 1)
    assert answer["remark"] == f"Sending message to topic[{topic}] is forbidden."
    assert play.refused_by == ["internal_topic"]


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC", "orders", "BenchmarkTest"])
def test_topics_that_clients_send_to_are_not_internal(topic: str) -> None:
    assert not is_internal(topic)
    assert Playbook() >> Client(send(topic)) << ToBroker(send(topic))


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_topics_of_the_broker_are_internal(topic: str) -> None:
    assert is_internal(topic)


@pytest.mark.parametrize("sys_flag", ["128", "129", "192", 128, "-1", "x"])
def test_message_that_counts_as_many_is_refused(sys_flag: object) -> None:
    one = send("a", 2, sys_flag=sys_flag, properties={"INNER_NUM": "1000"})
    play = Playbook() >> Client(BEFORE + one + BEHIND) << Anything()
    assert play.given[Side.BROKER] == BEFORE + BEHIND
    assert play.refused_by == ["inner_batch"]
    assert read_header(play.given[Side.CLIENT])["code"] == 16


def test_escaped_spelling_does_not_hide_it() -> None:
    plain = send("a", 2, sys_flag="128")
    escaped = plain.replace(b'"f":"128"', b'"f":"\\u00312"')
    assert len(escaped) == len(plain) + 4
    header = plain[8 : plain.index(b"hello")].replace(b'"f":"128"', b'"\\u0066":"\\u003128"')
    whole = (4 + len(header) + 5).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"hello"
    assert (Playbook() >> Client(whole) << Anything()).refused_by == ["inner_batch"]


# The broker might read any number of messages, because the length of its properties goes backwards.
MALFORMED = struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1) * 30


@pytest.mark.parametrize("cut_at", [0, 300])
def test_malformed_batch_is_refused_and_costs_nothing(cut_at: int) -> None:
    whole = BEFORE + send("a", 2, batch=True, body=MALFORMED) + BEHIND
    play = Playbook() >> Client(whole[: len(whole) - cut_at]) << Anything()
    if cut_at:
        play = play >> Client(whole[-cut_at:]) << Anything()
    assert play.given[Side.BROKER] == BEFORE + BEHIND
    assert play.refused_by == ["malformed_batch"]
    answer = read_header(play.given[Side.CLIENT])
    assert (answer["code"], answer["remark"]) == (
        13,
        "The batch is malformed: the lengths of its messages are inconsistent.",
    )
    assert [request.messages for request in play.requests] == [1, 1, 1]


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


def test_a_client_is_told_of_a_slow_broker() -> None:
    remark = "[RateLimit] the broker is overloaded; for orders need wait:12345microsecs, rule adaptive listener:*"
    assert answered(Resource("topic", "orders"), rule="adaptive listener:*").remark == remark


@given(st.text(max_size=255), st.text(max_size=255), st.integers(min_value=0), st.integers(-(2**31), 2**31 - 1))
def test_any_names_make_an_answer_that_can_be_read(name: str, rule: str, wait_us: int, opaque: int) -> None:
    refuse = Refuse(Resource("topic", name), rule, wait_us)
    frame = busy_answer(refuse, opaque, "topic")
    header = json.loads(frame[8:])
    remark = f"[RateLimit] for {name} need wait:{wait_us}microsecs, rule {rule}"
    assert (header["remark"], header["opaque"]) == (remark, opaque)
    assert frame[:8] == (len(frame) - 4).to_bytes(4, "big") + (len(frame) - 8).to_bytes(4, "big")


def test_the_refusal_of_one_that_can_never_be_admitted_states_the_maximum() -> None:
    refuse = Refuse(Resource("topic", "orders"), "topic:orders", 1_000_000, most=550)

    remark = "[RateLimit] orders accepts at most 550 messages at a time, rule topic:orders"
    assert decode(busy_answer(refuse, 7, "topic")).remark == remark
