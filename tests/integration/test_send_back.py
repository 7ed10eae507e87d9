"""A real consumer sends messages back faster than its retry group's limit allows."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import java, run_client
from harness.rocketmq import RocketMQ
from harness.sidecar import Sluice

pytestmark = pytest.mark.integration

_MESSAGES = 40
_FAILURES_EACH = 2
_CONSUMING_S = 120


def test_refused_send_backs_lose_nothing_with_the_java_client(
    rocketmq: RocketMQ,
    sluice: Sluice,
    create_topic: Callable[[str], str],
    client_home: Path,
) -> None:
    topic = create_topic("sent-back")
    group = f"consumer-of-{topic}"
    produce = java(
        "KeyedProducer.java", rocketmq.namesrv, f"producer-of-{topic}", topic, str(_MESSAGES), home=client_home
    )
    consume = java(
        "FailingConsumer.java",
        *(rocketmq.namesrv, group, topic, str(_MESSAGES), str(_FAILURES_EACH), str(_CONSUMING_S)),
        home=client_home,
    )

    run_client(produce, home=client_home, seconds=0)
    report = run_client(consume, home=client_home, seconds=_CONSUMING_S)

    assert report["taken"] == _MESSAGES, report
    # Some send-backs were within the limit and came again through the broker; the client kept the refused ones.
    assert report["through_broker"] > 0, report
    assert report["by_client"] > 0, report
    metrics = sluice.metrics()
    passed = metrics.total("sluice_requests_total", kind="retry_group", resource=group, verdict="pass")
    assert rocketmq.stored_messages(f"%RETRY%{group}") == passed > 0
    assert metrics.total("sluice_requests_total", kind="retry_group", resource=group, verdict="refuse") > 0
    assert metrics.total("sluice_bypassed_total") == 0
