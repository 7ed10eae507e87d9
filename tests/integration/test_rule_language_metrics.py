"""`/metrics` of rules, after frames with known outcomes."""

import subprocess
from collections.abc import Iterator

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, pull, send, sends
from harness.paths import program
from harness.sidecar import Metrics, Sluice, StartSluice

pytestmark = pytest.mark.integration

_CONFIG = """
[[listeners]]
name = "main"
listen = "{listen}"
broker = "{broker}"
exempt = ["127.0.9.1"]

[[limits]]
kind = "topic"
name = "refused"
rate = 0

[[limits]]
kind = "topic"
name = "shadowed"
rate = 0
action = "shadow"

[[limits]]
kind = "topic"
name = "held"
rate = 0.01
burst_s = 1000
max_debt_s = 3600
action = "delay"
max_delay_s = 3600

[[limits]]
kind = "producer_group"
name = "stopped"
rate = 0

[[limits]]
kind = "subscription"
name = "*"
rate = 1_000

[[limits]]
kind = "topic"
name = "used"
rate = 10
burst_s = 60
bytes_per_s = 1_000_000

[[limits]]
kind = "topic"
name = "*"
rate = 1_000
shared = true
"""


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Iterator[Sluice]:
    """A sidecar with every outcome, so that all metrics exist."""
    with EmbeddedBroker() as broker:
        route = broker.route()
        config = _CONFIG.format(listen=route.listen, broker=route.broker)
        with start_sluice(routes=(route,), config=config) as sluice:
            with FrameClient(route.listen) as client, FrameClient(route.listen, source="127.0.9.1") as exempt:
                client.ask(*sends(2, "refused"), send("refused", batch=10))
                client.ask(*sends(3, "shadowed"), send("shadowed", batch=10))
                client.ask(*sends(4, "used"), send("used", batch=26))
                client.ask(*sends(5, "used", group="stopped"))
                client.ask(pull("readers", "used", 0, most=7))
                exempt.ask(*sends(6, "refused"))
                client.ask(send("held", batch=20))
                client.write(*sends(7, "held"), free := send("free"))
                client.read_until_answered(free)
                assert sluice.metrics().total("sluice_held_requests") == 7
            sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_connections") == 0)
            yield sluice


@pytest.fixture
def metrics(sidecar: Sluice) -> Metrics:
    return sidecar.metrics()


@pytest.mark.parametrize(
    ("kind", "resource", "requests", "messages"),
    [
        ("topic", "refused", {"refuse": 3, "exempt": 6}, {"refuse": 12, "exempt": 6}),
        ("topic", "shadowed", {"shadow": 4}, {"shadow": 13}),
        ("topic", "held", {"pass": 1, "drop": 7}, {"pass": 20, "drop": 7}),
        ("topic", "used", {"pass": 5, "refuse": 5}, {"pass": 30, "refuse": 5}),
        ("subscription", "readers@used", {"pass": 1}, {"pass": 7}),
    ],
)
def test_every_request_is_counted_once_under_its_verdict(
    metrics: Metrics, kind: str, resource: str, requests: dict[str, int], messages: dict[str, int]
) -> None:
    for name, expected in (("sluice_requests_total", requests), ("sluice_messages_total", messages)):
        counted = {
            dict(labels)["verdict"]: value
            for (sample, labels), value in metrics.items()
            if sample == name and {("kind", kind), ("resource", resource)} <= labels
        }
        # These are exported even without rules.
        assert counted == {"pass": 0, "refuse": 0, "bypass": 0} | expected


def test_rules_count_refusals_shadow_refusals_and_holds(metrics: Metrics) -> None:
    def of(name: str) -> dict[str, float]:
        return {
            dict(labels)["rule"]: value for (sample, labels), value in metrics.items() if sample == name and value > 0
        }

    assert of("sluice_rule_refused_total") == {"topic:refused": 3, "producer_group:stopped": 5}
    assert of("sluice_rule_shadowed_total") == {"topic:shadowed": 4}
    assert of("sluice_rule_held_total") == {"topic:held": 7}
    assert metrics.total("sluice_held_requests") == metrics.total("sluice_held_bytes") == 0


def test_share_used_of_each_limit_is_shown_by_dimension_and_window(sidecar: Sluice) -> None:
    limit = {"kind": "topic", "resource": "used"}

    def used(metrics: Metrics, **labels: str) -> float:
        return metrics.total("sluice_limit_used_ratio", **limit, **labels)

    # 30 of the 600 messages that the rate allows in a minute. They may be in two seconds, both of which must end first.
    metrics = sidecar.wait_for_metrics(
        lambda metrics: used(metrics, dimension="messages", window="60s") == pytest.approx(30 / 600)
    )

    assert 0 < used(metrics, dimension="bytes", window="60s") < 0.001
    windows = {dict(labels)["window"] for (name, labels) in metrics if name == "sluice_limit_used_ratio"}
    assert windows == {"1s", "10s", "60s"}
    assert metrics.total("sluice_limit_used_ratio", kind="total", resource="topic:*", window="60s") > 0


def test_promtool_finds_nothing_to_complain_of(sidecar: Sluice) -> None:
    status, page = sidecar.get("/metrics")

    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, timeout=60, check=False
    )

    assert status == 200
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
