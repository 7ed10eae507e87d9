"""Unchanged clients of each language at the limit of a real broker's sidecar: stored messages, reported refusals."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.clients import cpp, java, node, run_client
from harness.embedded import EmbeddedBroker
from harness.rocketmq import RocketMQ
from harness.sidecar import Metrics, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone]

_SENDING_S = 6
# Messages to the unlimited topic before the seconds begin, as client and broker are slow at first.
_WARM_UP = 500
# 50 permits a second for six seconds, from a full bucket, and at most one burst more. A slow client on a busy machine
# sends fewer. Half would be another limit.
_STORED_AT_THE_LIMIT = range(200, 361)


def _java_json(*arguments: str, home: Path) -> list[str]:
    return java("FlatOutProducer.java", *arguments, home=home)


def _java_binary(*arguments: str, home: Path) -> list[str]:
    return java("FlatOutProducer.java", *arguments, home=home, options=["-Drocketmq.serialize.type=ROCKETMQ"])


def _cpp(*arguments: str, home: Path) -> list[str]:
    del home
    return cpp("flat_out_producer.py", *arguments)


def _node(*arguments: str, home: Path) -> list[str]:
    del home
    return node("flat_out_producer.js", *arguments)


@pytest.fixture(
    params=[_java_json, *(pytest.param(client, marks=[pytest.mark.long]) for client in (_java_binary, _cpp, _node))],
    ids=["java-json", "java-binary", "cpp", "node"],
)
def client(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    return request.param


def _names_the_code(counts: dict[str, Any]) -> bool:
    return "refused" in counts


def _refusals(counts: dict[str, Any], topic: str) -> int:
    """Return how often the client was told of a refusal, after a check of the texts."""
    if not _names_the_code(counts):
        assert "No route info" in counts["failure"]
        return counts["failed"]
    assert counts["failed"] == 0, counts
    assert counts["code"] == 2
    assert re.search(rf"\[RateLimit\] for {topic} need wait:\d+microsecs, rule topic:limited-\*", counts["remark"])
    return counts["refused"]


def test_limited_topic_holds_its_limit_and_the_other_topic_loses_nothing(
    client: Callable[..., list[str]],
    rocketmq: RocketMQ,
    sluice: Sluice,
    create_topic: Callable[[str], str],
    client_home: Path,
) -> None:
    limited, unlimited = create_topic("limited"), create_topic("unlimited")
    arguments = (rocketmq.namesrv, f"producer-of-{limited}", str(_SENDING_S), str(_WARM_UP), limited, unlimited)
    repeated_before = sluice.metrics().total("sluice_repeated_requests_total")

    report = run_client(client(*arguments, home=client_home), home=client_home, seconds=_SENDING_S)

    metrics = sluice.metrics()

    def decided(topic: str, verdict: str) -> float:
        return metrics.total("sluice_requests_total", kind="topic", resource=topic, verdict=verdict)

    stored = rocketmq.stored_messages(limited)
    assert stored in _STORED_AT_THE_LIMIT, report
    assert stored == report[limited]["stored"] == decided(limited, "pass"), report
    refusals = _refusals(report[limited], limited)
    assert refusals > 0
    assert decided(limited, "refuse") > 0
    repeated = metrics.total("sluice_repeated_requests_total") - repeated_before
    if client in (_java_json, _java_binary):
        # Each call is one request and its repeats.
        assert repeated == decided(limited, "pass") + decided(limited, "refuse") - stored - refusals > 0, report
    else:
        # Node's client does not retry, and C++ gives each attempt another id.
        assert repeated == 0, report
    # Everything that reached the sidecar was stored, and the client was told.
    assert rocketmq.stored_messages(unlimited) == report[unlimited]["stored"] == decided(unlimited, "pass") > 0, report
    assert decided(unlimited, "refuse") == 0
    assert metrics.total("sluice_bypassed_total") == 0
    if _names_the_code(report[unlimited]):
        assert report[unlimited]["failed"] == report[unlimited]["refused"] == 0, report


# Of the Java client 5.5.0, by call: the number of requests of one call, and the errors from the outermost to the cause.
_GIVEN_UP = ("MQClientException", 2)
_WRAPPED = ("MQClientException", -1)
_ANSWER = ("MQBrokerException", 2)
_JAVA_CALLS = {
    "sync": (3, [_GIVEN_UP, _ANSWER]),
    "sync-ordered": (1, [_ANSWER]),
    "async": (1, [_ANSWER]),
    "batch": (3, [_GIVEN_UP, _ANSWER]),
    "async-batch": (1, [_ANSWER]),
    "transaction": (3, [_WRAPPED, _GIVEN_UP, _ANSWER]),
    "request": (1, [_WRAPPED, _ANSWER]),
    "async-request": (1, [_ANSWER]),
    "oneway": (1, []),
}


def test_the_log_counts_a_java_clients_repeats(
    broker: EmbeddedBroker, start_sluice: StartSluice, client_home: Path, tmp_path: Path
) -> None:
    config = '[[limits]]\nkind = "topic"\nname = "refused-*"\nrate = 0\n'
    route = broker.route()
    sluice = start_sluice(routes=(route,), config=f'{config}[rejection_log]\ndir = "{tmp_path}/log"\n')
    broker.advertise(route.listen)
    for call in _JAVA_CALLS:
        broker.create_topic(f"refused-{call}")
    command = java("RefusedCalls.java", broker.namesrv, "producer-of-refused", "refused-", home=client_home)
    run_client(command, home=client_home, seconds=0)
    # A oneway send has no answer to wait for.
    sluice.wait_for_metrics(
        lambda metrics: metrics.total("sluice_requests_total", resource="refused-oneway", verdict="refuse") > 0
    )
    assert sluice.stop() == 0

    found: dict[str, Counter[str]] = {}
    for file in sorted((tmp_path / "log").glob("rejections-*.jsonl")):
        for record in map(json.loads, file.read_text().splitlines()):
            if record["type"] == "traffic" and record["name"].startswith("refused-"):
                requests, messages, _ = record.get("repeated", [0, 0, 0])
                assert sum(record.get("second_repeated", ())) == messages
                told = {"refused": record["refused"][0], "identified": record["identified"]}
                of = found.setdefault(record["name"].removeprefix("refused-"), Counter())
                of.update(told | {"repeated": requests, "messages": messages})
    assert found == {
        call: {
            "refused": count,
            "identified": count,
            "repeated": count - 1,
            "messages": (count - 1) * (3 if "batch" in call else 1),
        }
        for call, (count, _) in _JAVA_CALLS.items()
    }


def test_java_client_shows_a_refusal_as_documented(rocketmq: RocketMQ, sluice: Sluice, client_home: Path) -> None:
    for call in _JAVA_CALLS:
        rocketmq.create_topic(f"refused-{call}")
    command = java("RefusedCalls.java", rocketmq.namesrv, "producer-of-refused", "refused-", home=client_home)

    report = run_client(command, home=client_home, seconds=0)

    def requests(metrics: Metrics) -> dict[str, float]:
        return {
            call: metrics.total("sluice_requests_total", kind="topic", resource=f"refused-{call}", verdict="refuse")
            for call in _JAVA_CALLS
        }

    expected = {call: count for call, (count, _) in _JAVA_CALLS.items()}
    # A oneway send has no answer to wait for.
    sluice.wait_for_metrics(lambda metrics: requests(metrics) == expected)
    for call, (_, errors) in _JAVA_CALLS.items():
        seen = report[call]["errors"]
        # A request wakes its caller before it stores the cause, which is sometimes missing.
        told = errors[:1] if call == "request" and len(seen) == 1 else errors
        assert [(error["class"], error["code"]) for error in seen] == told, (call, seen)
        for error in seen:
            wanted = error["class"] == "MQBrokerException"
            assert (f"[RateLimit] for refused-{call} need wait:" in error["message"]) is wanted, (call, seen)
