"""Real consumers send messages back faster than their retry group's limit allows."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.clients import cpp, java, run_client, start_client
from harness.rocketmq import RocketMQ
from harness.sidecar import Sluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_FAILURES_EACH = 2
_CONSUMING_S = 120
_SETTLING_S = 60


def test_send_backs_over_the_limit_lose_nothing_with_the_java_client(
    rocketmq: RocketMQ,
    sluice: Sluice,
    create_topic: Callable[[str], str],
    client_home: Path,
) -> None:
    topic, messages = create_topic("sent-back"), 40
    rocketmq.fill(topic, messages)
    group = f"consumer-of-{topic}"
    consume = java(
        "FailingConsumer.java",
        *(rocketmq.namesrv, group, topic, str(messages), str(_FAILURES_EACH), str(_CONSUMING_S), "40", "0"),
        home=client_home,
    )

    report = run_client(consume, home=client_home, seconds=_CONSUMING_S)

    assert report["taken"] == messages, report
    # Most send-backs passed, at once or held, and came again through the broker. Of forty at once, some would have
    # waited too long: the client kept those.
    assert report["through_broker"] > 0, report
    assert report["by_client"] > 0, report
    metrics = sluice.metrics()
    passed = metrics.total("sluice_requests_total", kind="retry_group", resource=group, verdict="pass")
    assert rocketmq.stored_messages(f"%RETRY%{group}") == passed > 0
    assert metrics.total("sluice_requests_total", kind="retry_group", resource=group, verdict="refuse") > 0
    assert metrics.total("sluice_rule_held_total", rule="retry_group:*") > 0
    assert metrics.total("sluice_bypassed_total") == 0


def test_send_backs_that_are_held_lose_nothing_where_refused_ones_are_lost(
    rocketmq: RocketMQ,
    sluice: Sluice,
    create_topic: Callable[[str], str],
    client_home: Path,
) -> None:
    # The limit is 5/s and a request is held for up to 2 s, so eight at a time never wait too long.
    messages, threads = 40, 8
    topic = create_topic("lost")
    rocketmq.fill(topic, messages)
    groups = [f"held-{topic}", f"refused-{topic}"]

    def decided(group: str, verdict: str) -> int:
        return int(sluice.metrics().total("sluice_requests_total", kind="retry_group", resource=group, verdict=verdict))

    def settled(group: str) -> bool:
        """Whether everything is acknowledged, and the send-backs in time are visible."""
        return rocketmq.acknowledged_messages(group, topic) == messages and _sent_back(rocketmq, group) == decided(
            group, "pass"
        )

    with ExitStack() as consumers:
        for group in groups:
            command = cpp("rejecting_consumer.py", rocketmq.namesrv, group, topic, str(threads))
            consumers.enter_context(start_client(command, home=client_home / group))
        _wait_until(lambda: all(settled(group) for group in groups))

    kept = {group: _sent_back(rocketmq, group) for group in groups}
    print(f"of {messages} messages, all acknowledged, the broker has for redelivery: {kept}")
    held, refused = groups
    assert decided(held, "pass") == messages == kept[held]
    assert decided(held, "refuse") == 0
    # This client commits the offset of messages it could not send back: the broker will never deliver them again.
    assert decided(refused, "refuse") == messages - kept[refused] > 0


def _sent_back(rocketmq: RocketMQ, group: str) -> int:
    return rocketmq.stored_messages(f"%RETRY%{group}")


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SETTLING_S
    while not done():
        assert time.monotonic() < deadline, "the consumers did not come to an end"
        time.sleep(0.2)
