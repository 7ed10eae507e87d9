"""Counting, hours and refusals of a rule: frames through a sidecar to the embedded broker."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, send_back, sends, stored
from harness.sidecar import Sluice, StartSluice

from proxy.protocols.rocketmq.wire.command import encode

pytestmark = pytest.mark.integration

_SYSTEM_BUSY, _FLOW_CONTROL = 2, 215
_BATCH = 16
_TEN_PASS = range(10, 12)
_BYTES = 10_000

_RULES = """
[[limits]]
kind = "topic"
name = "by-message"
rate = 0.16
burst_s = 1000

[[limits]]
kind = "topic"
name = "by-request"
rate = 0.01
burst_s = 1000
count = "requests"

[[limits]]
kind = "topic"
name = "by-byte"
rate = "unlimited"
bytes_per_s = 10
bytes_burst_s = 1000
max_debt_s = 3600

[[limits]]
kind = "topic"
name = "by-both"
rate = 0.01
burst_s = 1000
bytes_per_s = 10
bytes_burst_s = 1000
max_debt_s = 3600

[[limits]]
kind = "topic"
name = "ten"
rate = 0.01
burst_s = 1000

[[limits]]
kind = "topic"
name = "flow-control"
rate = 0.01
burst_s = 1000
busy_code = 215

[[limits]]
kind = "retry_group"
name = "refused"
rate = 0.01
burst_s = 1000
action = "reject"

[[limits]]
kind = "topic"
name = "retired"
rate = 0

[[limits]]
kind = "topic"
name = "shadowed"
rate = 0.01
burst_s = 1000
action = "shadow"

[[limits]]
kind = "topic"
name = "off"
rate = 0.01
burst_s = 1000
action = "off"

[[limits]]
kind = "topic"
name = "warm"
rate = 0.1
burst_s = 1000

[[limits]]
kind = "topic"
name = "cold"
rate = 0.1
burst_s = 1000
warm_up_s = 3600

[[limits]]
kind = "topic"
name = "hours-*"
rate = 0.01
burst_s = 1000

[[limits]]
kind = "topic"
name = "hours-now"
rate = 0.02
burst_s = 1000
between = "{now}"

[[limits]]
kind = "topic"
name = "hours-later"
rate = 0.02
burst_s = 1000
between = "{later}"

[[limits]]
kind = "topic"
name = "hours-today"
rate = 0.02
burst_s = 1000
days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
time_zone = "Europe/Berlin"
"""


def _hours(begin: datetime, hours: int) -> str:
    return f"{begin:%H:%M}-{begin + timedelta(hours=hours):%H:%M}"


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    now = datetime.now(UTC)
    rules = _RULES.format(now=_hours(now - timedelta(hours=2), 4), later=_hours(now + timedelta(hours=2), 4))
    with start_sluice(routes=(broker.route(),), config=rules) as sluice:
        yield sluice


def test_batch_counts_as_its_messages(client: FrameClient, broker: EmbeddedBroker, sidecar: Sluice) -> None:
    answers = client.ask(*(send("by-message", batch=_BATCH) for _ in range(25)))

    assert stored(answers) in _TEN_PASS  # 160 permits
    assert stored(answers) + len(refused(answers)) == 25
    metrics = sidecar.metrics()
    assert broker.stored("by-message") == _BATCH * stored(answers)
    assert metrics.total("sluice_messages_total", resource="by-message", verdict="pass") == _BATCH * stored(answers)
    assert metrics.total("sluice_requests_total", resource="by-message", verdict="pass") == stored(answers)


def test_batch_counts_once_for_a_rule_that_counts_requests(client: FrameClient, broker: EmbeddedBroker) -> None:
    answers = client.ask(*(send("by-request", batch=_BATCH) for _ in range(25)))

    assert stored(answers) in _TEN_PASS
    assert broker.stored("by-request") == _BATCH * stored(answers)


def test_bytes_are_those_of_whole_frames(client: FrameClient) -> None:
    requests = [send("by-byte", body=b"." * 900) for _ in range(25)]
    size = len(encode(requests[0]))

    answers = client.ask(*requests)

    # A message that overdraws the bucket passes. Paying that debt takes half a minute.
    assert stored(answers) == -(-_BYTES // size)
    assert refused(answers)[0].remark.endswith("rule topic:by-byte")


def test_refusal_by_bytes_spends_no_messages(client: FrameClient, sidecar: Sluice) -> None:
    requests = [send("by-both", body=b"." * 4000) for _ in range(8)]

    answers = client.ask(*requests)

    assert stored(answers) == 3
    assert len(refused(answers)) == 5
    explanation = sidecar.explain(kind="topic", name="by-both")
    left = {limit["limit"]["unit"]: limit["state"]["stored_permits"] for limit in explanation["limits"]}
    size = len(encode(requests[0]))
    assert 7 <= left["messages"] < 8
    assert _BYTES - 3 * size <= left["bytes"] < _BYTES - 2 * size


def test_refusal_names_topic_wait_and_rule(client: FrameClient) -> None:
    busy = refused(client.ask(*sends(12, "ten")))[0]

    assert busy.code == _SYSTEM_BUSY
    assert re.fullmatch(r"\[RateLimit\] for ten need wait:[1-9]\d*microsecs, rule topic:ten", busy.remark)


def test_refused_send_back_is_named_by_its_retry_topic(client: FrameClient) -> None:
    answers = client.ask(*(send_back("refused") for _ in range(12)))

    assert 12 - len(refused(answers)) in _TEN_PASS
    busy = refused(answers)[0]
    assert re.fullmatch(
        r"\[RateLimit\] for %RETRY%refused need wait:\d+microsecs, rule retry_group:refused", busy.remark
    )


def test_busy_code_is_the_rule_s(client: FrameClient) -> None:
    answers = client.ask(*sends(12, "flow-control"))

    assert {answer.code for answer in refused(answers)} == {_FLOW_CONTROL}
    assert refused(answers)[0].remark.endswith("rule topic:flow-control")


def test_oneway_request_is_refused_without_a_word(client: FrameClient, sidecar: Sluice) -> None:
    oneway = [send("retired", oneway=True) for _ in range(5)]

    client.write(*oneway)
    (answer,) = client.ask(behind := send("unlimited"))

    assert (answer.opaque, answer.code) == (behind.opaque, 0)
    assert sidecar.metrics().total("sluice_requests_total", resource="retired", verdict="refuse") == 5


def test_shadow_passes_and_is_counted(client: FrameClient, sidecar: Sluice) -> None:
    answers = client.ask(*sends(25, "shadowed"))

    assert stored(answers) == 25
    metrics = sidecar.metrics()
    shadowed = metrics.total("sluice_requests_total", resource="shadowed", verdict="shadow")
    assert 25 - shadowed in _TEN_PASS
    assert metrics.total("sluice_requests_total", resource="shadowed", verdict="pass") == 25 - shadowed
    assert metrics.total("sluice_rule_shadowed_total", rule="topic:shadowed") == shadowed
    assert metrics.total("sluice_rule_refused_total", rule="topic:shadowed") == 0


def test_rule_that_is_off_limits_nothing(client: FrameClient, sidecar: Sluice) -> None:
    assert stored(client.ask(*sends(25, "off"))) == 25
    assert sidecar.metrics().total("sluice_requests_total", resource="off", verdict="pass") == 25


def test_cold_limit_admits_a_third_of_a_warm_one(client: FrameClient) -> None:
    warm, cold = (client.ask(*sends(120, topic)) for topic in ("warm", "cold"))

    assert stored(warm) in range(100, 102)
    # Permits for the time of a hundred at Guava's price: n permits from cold cost 3 n - n² / 180.
    assert stored(cold) in range(36, 38)


@pytest.mark.parametrize(
    ("topic", "permits", "rule"),
    [
        ("hours-now", 20, r"topic:hours-now \d\d:\d\d-\d\d:\d\d.*"),
        ("hours-later", 10, r"topic:hours-\*"),
        ("hours-today", 20, "topic:hours-today .*Europe/Berlin"),
    ],
)
def test_rule_with_hours_wins_while_it_holds(client: FrameClient, topic: str, permits: int, rule: str) -> None:
    answers = client.ask(*sends(30, topic))

    assert stored(answers) in range(permits, permits + 2)
    assert re.fullmatch(rf".*, rule {rule}", refused(answers)[0].remark)
