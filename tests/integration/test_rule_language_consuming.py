"""Limits on a group's consumption of a topic: pulls through a sidecar to the embedded broker, frame by frame."""

import re
import time
from collections.abc import Iterator
from itertools import count

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import (
    FrameClient,
    heartbeat,
    pull,
    query_offset,
    refused,
    send,
    sends,
    stored,
    update_offset,
)
from harness.sidecar import Metrics, Sluice, StartSluice

from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

pytestmark = [pytest.mark.integration, pytest.mark.long]

_RATE = 100

_RULES = f"""
[[limits]]
kind = "subscription"
name = "counted@*"
rate = 0.01
burst_s = 1000
max_delay_s = 0.2

[[limits]]
kind = "subscription"
name = "counted-busy@*"
rate = 0.01
burst_s = 1000
max_delay_s = 0.2
busy_code = 2

[[limits]]
kind = "subscription"
name = "patient@*"
rate = 0.01
burst_s = 1000
max_delay_s = 3600

[[limits]]
kind = "subscription"
name = "steady@*"
rate = {_RATE}
burst_s = 0.2

# None of these is about pulls.
[[limits]]
kind = "client"
name = "127.0.5.1"
rate = 0

[[limits]]
kind = "listener"
name = "default"
rate = 1_000
"""


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    with start_sluice(routes=(broker.route(),), config=_RULES) as sluice:
        yield sluice


@pytest.fixture(scope="module")
def _numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def topic(client: FrameClient, _numbers: Iterator[int]) -> str:
    name = f"topic-{next(_numbers)}"
    assert stored(client.ask(send(name, batch=300))) == 1
    return name


def _next_offset(answer: RemotingCommand) -> int:
    assert answer.code == ResponseCode.SUCCESS, answer
    return int(answer.fields["nextBeginOffset"])


def _pulled(metrics: Metrics, group: str, topic: str) -> float:
    return metrics.total("sluice_messages_total", kind="subscription", resource=f"{group}@{topic}", verdict="pass")


@pytest.mark.parametrize(
    ("code", "group", "busy_code"),
    [
        pytest.param(RequestCode.PULL_MESSAGE, "counted", 215, id="pull"),
        pytest.param(RequestCode.LITE_PULL_MESSAGE, "counted", 215, id="lite pull"),
        pytest.param(RequestCode.PULL_MESSAGE, "counted-busy", 2, id="busy code of the rule"),
    ],
)
def test_records_that_pulls_brought_are_debited(
    client: FrameClient, sidecar: Sluice, topic: str, *, code: int, group: str, busy_code: int
) -> None:
    # Two permits of ten are left after the first, and a debt of 98 after the second: the third waits for its deadline.
    (first,) = client.ask(pull(group, topic, 0, most=8, code=code))
    (second,) = client.ask(pull(group, topic, _next_offset(first), most=100, code=code))
    (third,) = client.ask(pull(group, topic, _next_offset(second), code=code))

    assert _next_offset(second) == 108 == _pulled(sidecar.metrics(), group, topic)
    assert third.code == busy_code
    assert re.fullmatch(
        rf"\[RateLimit\] for {group}@{topic} need wait:\d+microsecs, rule subscription:{group}@\*", third.remark
    )
    (limit,) = sidecar.explain(kind="subscription", name=f"{group}@{topic}")["limits"]
    assert -98 <= limit["state"]["stored_permits"] < -97
    # Other groups, and sends to the topic, have no debt.
    (of_another,) = client.ask(pull("unlimited", topic, 0, code=code))
    assert _next_offset(of_another) == 32
    assert stored(client.ask(send(topic))) == 1


def test_pop_is_refused_for_the_debt_of_a_pull(client: FrameClient, topic: str) -> None:
    (paid,) = client.ask(pull("counted", topic, 0))

    (popped,) = client.ask(pull("counted", topic, 0, code=RequestCode.POP_MESSAGE))

    assert _next_offset(paid) == 32
    assert popped.code == ResponseCode.FLOW_CONTROL


def test_next_pull_is_held_until_the_last_is_paid_for(client: FrameClient, sidecar: Sluice, topic: str) -> None:
    begun_s, offset = time.monotonic(), 0
    while offset < 240:
        (answer,) = client.ask(pull("steady", topic, offset, most=40))
        offset = _next_offset(answer)

    # The burst is 20, and the last answer is still a debt.
    assert offset <= _RATE * (time.monotonic() - begun_s) + 20 + 40
    metrics = sidecar.metrics()
    assert _pulled(metrics, "steady", topic) == offset
    assert metrics.total("sluice_rule_held_total", rule="subscription:steady@*") >= 4
    assert metrics.total("sluice_rule_refused_total", rule="subscription:steady@*") == 0


def test_held_pull_holds_up_nothing_else(client: FrameClient, sidecar: Sluice, topic: str) -> None:
    (first,) = client.ask(pull("patient", topic, 0))
    client.write(pull("patient", topic, _next_offset(first)))

    answers = client.ask(
        heartbeat("patient-client"),
        update_offset("patient", topic, 32),
        query_offset("patient", topic),
        send(topic),
        pull("others", topic, 0),
    )

    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 5
    assert answers[2].fields["offset"] == "32"
    assert sidecar.metrics().total("sluice_held_requests") == 1
    client.close()
    sidecar.wait_for_metrics(lambda metrics: metrics.total("sluice_held_requests") == 0)


def test_long_poll_waits_at_the_broker_and_is_answered_by_the_next_message(
    client: FrameClient, sidecar: Sluice, topic: str
) -> None:
    client.write(long_poll := pull("counted", topic, 300, wait_ms=25_000))
    # It has passed, and costs nothing before its answer.
    sidecar.wait_for_metrics(
        lambda metrics: metrics.total("sluice_requests_total", resource=f"counted@{topic}", verdict="pass") == 1
    )
    assert _pulled(sidecar.metrics(), "counted", topic) == 0

    with FrameClient(sidecar.routes[0].listen) as producer:
        assert stored(producer.ask(send(topic))) == 1

    (answer,) = client.read()
    assert answer.opaque == long_poll.opaque
    assert _next_offset(answer) == 301
    assert _pulled(sidecar.metrics(), "counted", topic) == 1


def test_pull_that_finds_nothing_costs_nothing(client: FrameClient, sidecar: Sluice, topic: str) -> None:
    answers = [answer for _ in range(30) for answer in client.ask(pull("counted", topic, 300))]

    assert {answer.code for answer in answers} <= {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED}
    assert refused(answers) == []
    (limit,) = sidecar.explain(kind="subscription", name=f"counted@{topic}")["limits"]
    assert limit["state"]["stored_permits"] == 10


def test_limits_on_senders_do_not_apply_to_pulls(sidecar: Sluice, topic: str) -> None:
    with FrameClient(sidecar.routes[0].listen, source="127.0.5.1") as client:
        (answer,) = client.ask(pull("unlimited", topic, 0))
        answers = client.ask(*sends(2, topic))

    assert _next_offset(answer) == 32
    assert len(refused(answers)) == 2
