"""The incident behind this project: one consumer's send-backs make the broker refuse everyone's messages."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.clients import java, run_client
from harness.rocketmq import RocketMQ
from harness.sidecar import StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_SECONDS = 12
_FAILING_MESSAGES = 1000
# The consumer handles, and so sends back, this many messages at once.
_CONSUMER_THREADS = 256
_OTHER_TOPICS = ("orders", "invoices", "shipments")
_LIMIT_PER_S = 5


def _storm(rocketmq: RocketMQ, home: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """A consumer fails every message while others send. Return the outcomes of their sends, and of its send-backs."""
    topic, group = "failing", "failing-consumer"
    rocketmq.fill(topic, _FAILING_MESSAGES)
    for other in _OTHER_TOPICS:
        rocketmq.create_topic(other)
    commands = {
        "consumer": java(
            "FailingConsumer.java",
            *(rocketmq.namesrv, group, topic, str(_FAILING_MESSAGES), str(1_000_000), str(_SECONDS)),
            *(str(_CONSUMER_THREADS), "0"),
            home=home / "consumer",
        ),
        # One attempt per message, so that every refusal by the broker shows.
        "producers": java(
            "FlatOutProducer.java",
            *(rocketmq.namesrv, "other-producers", str(_SECONDS), "10", *_OTHER_TOPICS),
            home=home / "producers",
            options=["-Dretries=0"],
        ),
    }
    with ThreadPoolExecutor() as clients:
        running = {
            name: clients.submit(run_client, command, home=home / name, seconds=_SECONDS)
            for name, command in commands.items()
        }
    others = [running["producers"].result()[topic] for topic in _OTHER_TOPICS]
    sent: dict[str, Any] = {what: sum(topic[what] for topic in others) for what in ("stored", "refused", "failed")}
    sent["remark"] = next((topic["remark"] for topic in others if topic["refused"]), None)
    return sent, {**running["consumer"].result(), "sent_back": rocketmq.stored_messages(f"%RETRY%{group}")}


def test_without_a_limit_send_backs_of_one_group_make_the_broker_refuse_other_topics(
    start_slow_rocketmq: Callable[..., RocketMQ], client_home: Path
) -> None:
    rocketmq = start_slow_rocketmq(advertised_host="127.0.0.1")

    sent, consumed = _storm(rocketmq, client_home)

    rocketmq.close()
    print(f"other topics: {sent}\nconsumer: {consumed}")
    assert sent["refused"] > 0
    assert "[TIMEOUT_CLEAN_QUEUE]" in sent["remark"]


def test_with_a_limit_for_the_group_other_topics_notice_nothing(
    slow_rocketmq: RocketMQ, start_sluice: StartSluice, client_home: Path
) -> None:
    limits = ["topic:*=unlimited", f"retry_group:*={_LIMIT_PER_S}/s"]
    with start_sluice(slow_rocketmq, limits=limits) as sluice:
        sent, consumed = _storm(slow_rocketmq, client_home)
        metrics = sluice.metrics()

    refused = metrics.total("sluice_requests_total", kind="retry_group", verdict="refuse")
    print(f"other topics: {sent}\nconsumer: {consumed}, refused by the sidecar: {refused:g}")
    assert sent["refused"] == sent["failed"] == 0, sent
    assert sent["stored"] > 0
    assert consumed["sent_back"] > 0
    assert refused > 0
