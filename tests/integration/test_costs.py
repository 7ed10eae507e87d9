"""What a rule counts: messages, however they are packed, requests, or bytes; with a real producer flat out."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import java, run_client
from harness.rocketmq import RocketMQ
from harness.sidecar import Sluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_SENDING_S = 10
_BATCH = 16
_BODY_BYTES = 4096
# What the broker reads of a Java client's send besides the body: two length words and a JSON header, whose length
# depends on the names in it. A tenth of that is a hundredth of the whole.
_FRAMING_BYTES = 375


def _admitted(per_s: float, seconds: float) -> range:
    """What a limit admits, give or take a tenth: the rate times the seconds, and a burst of one second.

    Of that burst some may not have been spent at the end, because the breaker was open.
    """
    return range(int(per_s * seconds * 0.9), int(per_s * (seconds + 1) * 1.1) + 1)


def test_limits_count_messages_requests_or_bytes(
    rocketmq: RocketMQ, sluice: Sluice, create_topic: Callable[[str], str], client_home: Path
) -> None:
    by_message, by_request, by_byte = (create_topic(prefix) for prefix in ("batches", "requests", "bytes"))
    batches_of = {by_message: (_BATCH, 128), by_request: (_BATCH, 128), by_byte: (1, _BODY_BYTES)}
    command = java(
        "BatchProducer.java",
        *(rocketmq.namesrv, "producer-of-batches", str(_SENDING_S)),
        *(str(word) for topic, packing in batches_of.items() for word in (topic, *packing)),
        home=client_home,
    )

    report = run_client(command, home=client_home, seconds=_SENDING_S)

    metrics = sluice.metrics()
    stored = {topic: rocketmq.stored_messages(topic) for topic in batches_of}
    seconds = {topic: report[topic]["millis"] / 1000 for topic in batches_of}
    print(f"stored {stored}\nas the client says {report}")
    assert stored[by_message] in _admitted(160, seconds[by_message])
    assert stored[by_request] in _admitted(10 * _BATCH, seconds[by_request])
    assert stored[by_byte] in _admitted(100_000 / (_BODY_BYTES + _FRAMING_BYTES), seconds[by_byte])
    for topic, (batch, _) in batches_of.items():
        labels = {"kind": "topic", "resource": topic}
        assert (
            stored[topic] == report[topic]["stored"] == metrics.total("sluice_messages_total", verdict="pass", **labels)
        )
        assert stored[topic] == batch * metrics.total("sluice_requests_total", verdict="pass", **labels)
        assert report[topic]["failed"] == 0, report
        assert report[topic]["refused"] > 0
        rule = re.escape(f"topic:{topic.rpartition('-')[0]}-*")
        assert re.search(rf"\[RateLimit\] for {topic} need wait:\d+microsecs, rule {rule}", report[topic]["remark"])
