"""What Sluice refuses whatever the limits are."""

import struct

import pytest
from harness.wire_bytes import encode_batch
from playbook.frames import json_frame, read_header, send, send_batch
from playbook.playbook import Anything, Client, Playbook, ToBroker, hold
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading

from proxy.deciding.batch import Side
from proxy.protocols.rocketmq.batch_body import BatchMessage
from proxy.protocols.rocketmq.forbidden import INTERNAL_TOPICS, is_internal

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


@pytest.mark.parametrize("code", [10, 324])
def test_every_kind_of_send_to_an_internal_topic_is_refused(code: int) -> None:
    one = json_frame(code, {"producerGroup": "g", "topic": INTERNAL[0], "sysFlag": "0", "batch": "false"})
    assert (Playbook() >> Client(one) << Anything()).given[Side.BROKER] == b""
    assert (Playbook() >> Client(send_batch(INTERNAL[0], 3)) << Anything()).given[Side.BROKER] == b""


def test_what_is_refused_anyway_is_not_held() -> None:
    play = Playbook(hold("a")) >> Client(send(INTERNAL[0], 2) + BEFORE) << Anything()
    assert [request.resources[0].name for request in play.held] == ["a"]


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


@pytest.mark.parametrize("inner", ["INNER_NUM\x0130000\x02INNER_BASE\x010\x02", "INNER_MULTI_DISPATCH\x01a\x02"])
def test_batch_with_a_message_that_counts_as_many_or_is_elsewhere_too_is_refused(inner: str) -> None:
    body = encode_batch([BatchMessage(b"x"), BatchMessage(b"x", inner)])
    whole = send("a", 2, batch=True, body=body)
    play = Playbook() >> Client(BEFORE + whole[:-30]) << Anything() >> Client(whole[-30:] + BEHIND) << Anything()
    assert play.given[Side.BROKER] == BEFORE + BEHIND
    assert play.refused_by == ["inner_batch"]


#: The broker might make any number of messages of it: it steps back by the length of its properties.
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
    assert (answer["code"], answer["remark"]) == (13, "The lengths of the batch's messages do not add up.")
    assert [request.messages for request in play.requests] == [1, 1, 1]


@pytest.mark.parametrize("changes", [{"exempt": True}, {"limiting": False}])
def test_malformed_batch_passes_where_nothing_is_refused(changes: dict[str, object]) -> None:
    whole = send("a", batch=True, body=MALFORMED)
    assert Playbook(**changes) >> Client(whole[:400]) >> Client(whole[400:]) << ToBroker(whole)


@pytest.mark.parametrize("changes", [{"internal_topics": "pass"}, {"exempt": True}, {"limiting": False}])
def test_who_may_sends_as_to_any_topic(changes: dict[str, object]) -> None:
    chunk = send(INTERNAL[0], 1) + send("a", 2, sys_flag="128")
    play = Playbook(**changes) >> Client(chunk) << ToBroker(chunk)
    assert [request.resources[0].name for request in play.requests] == [INTERNAL[0], "a"]
