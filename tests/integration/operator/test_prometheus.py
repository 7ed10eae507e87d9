"""A real Prometheus scrapes running sidecars. Its queries must return the figures of the traffic sent."""

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Final

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, sends, stored
from harness.prometheus import Prometheus
from harness.sidecar import Sluice, StartSluice

pytestmark = pytest.mark.integration

_TIMEOUT_S: Final = 60.0
_RANGE_S: Final = 3600

_TOKEN: Final = "scraping-0123456789abcdef0123456789abcdef"

_SIDECAR = """
limiting = {limiting}

[[listeners]]
name = "main"
listen = "{listen}"
broker = "{broker}"

[[limits]]
kind = "topic"
name = "orders"
rate = 10
burst_s = 60

[[limits]]
kind = "topic"
name = "stopped"
rate = 0
"""

_PROMETHEUS = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: limiting
    static_configs: [{{targets: ["{limiting}"]}}]
  - job_name: switched-off
    authorization: {{credentials: "{token}"}}
    static_configs: [{{targets: ["{switched_off}"]}}]
  - job_name: without-token
    static_configs: [{{targets: ["{switched_off}"]}}]
"""


@pytest.fixture(scope="module")
def sidecars(start_sluice: StartSluice) -> Iterator[tuple[Sluice, Sluice]]:
    """Two sidecars in front of one broker: one that limits, and one with a token and without limiting."""
    with EmbeddedBroker() as broker:
        running = []
        for limiting in ("true", "false"):
            route = broker.route()
            config = _SIDECAR.format(limiting=limiting, listen=route.listen, broker=route.broker)
            if limiting == "false":
                config += f'\n[admin]\nread_token = "{_TOKEN}"\n'
            running.append(start_sluice(routes=(route,), config=config))
        first, second = running
        with first, second:
            yield first, second


@pytest.fixture(scope="module")
def prometheus(sidecars: tuple[Sluice, Sluice], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes both, and has samples from before and after the traffic."""
    limiting, switched_off = sidecars
    config = _PROMETHEUS.format(limiting=limiting.admin, switched_off=switched_off.admin, token=_TOKEN)
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), config)
    try:
        server.wait_for('sum(up{job!="without-token"})', lambda found: list(found.values()) == [2])
        server.wait_for('sluice_requests_total{resource="orders"}', lambda found: len(found) > 0)
        for sluice in sidecars:
            with FrameClient(sluice.routes[0].listen) as client:
                answers = client.ask(*sends(29, "orders"), send("orders", batch=31), *sends(4, "stopped"))
            expected = (30, 4) if sluice is limiting else (34, 0)
            assert (stored(answers), len(refused(answers))) == expected
        yield server
    finally:
        server.process.stop()


def test_requests_and_messages_are_counted_by_resource_and_verdict(prometheus: Prometheus) -> None:
    orders = 'kind="topic",resource="orders",job="limiting"'
    prometheus.wait_for_value(f'sluice_requests_total{{{orders},verdict="pass"}}', 30)
    prometheus.wait_for_value(f'sluice_messages_total{{{orders},verdict="pass"}}', 60)
    prometheus.wait_for_value(f'sluice_requests_total{{{orders},verdict="refuse"}}', 0)
    stopped = 'kind="topic",resource="stopped",job="limiting"'
    prometheus.wait_for_value(f'sluice_requests_total{{{stopped},verdict="refuse"}}', 4)
    prometheus.wait_for_value(f'sluice_requests_total{{{stopped},verdict="pass"}}', 0)
    prometheus.wait_for_value('sum(sluice_requests_total{job="limiting"})', 34)
    prometheus.wait_for_value('sum by (verdict) (sluice_requests_total{job="limiting",verdict="refuse"})', 4)


def test_a_sidecar_that_is_switched_off_reports_it_and_counts_everything_as_passed(prometheus: Prometheus) -> None:
    prometheus.wait_for_value('sluice_limiting{job="limiting"}', 1)
    prometheus.wait_for_value('sluice_limiting{job="switched-off"}', 0)
    prometheus.wait_for_value('sum(sluice_requests_total{job="switched-off",verdict="pass"})', 34)
    prometheus.wait_for_value('sum(sluice_requests_total{job="switched-off",verdict="refuse"})', 0)


def test_without_its_token_nothing_is_scraped(prometheus: Prometheus) -> None:
    prometheus.wait_for_value('up{job="without-token"}', 0)
    # On a busy machine a scrape may time out, which is another error.
    errors = prometheus.wait_for_errors(lambda found: "401" in found["without-token"])
    assert prometheus.vector('sluice_requests_total{job="without-token"}') == {}
    assert "401" in errors["without-token"]
    prometheus.wait_for_errors(lambda found: found["limiting"] == found["switched-off"] == "")


def test_the_rate_is_the_messages_per_time_between_scrapes(prometheus: Prometheus) -> None:
    series = 'sluice_requests_total{resource="orders",verdict="pass",job="limiting"}'
    prometheus.wait_for_value(f"max_over_time({series}[{_RANGE_S}s]) - min_over_time({series}[{_RANGE_S}s])", 30)
    # At the same moment, so that no scrape comes in between.
    moment = time.time()
    (samples,) = prometheus.query(f"{series}[{_RANGE_S}s] @ {moment}")
    (rate,) = prometheus.vector(f"rate({series}[{_RANGE_S}s] @ {moment})").values()
    (first_at, first), *_, (last_at, last) = samples["values"]
    sent = float(last) - float(first)
    assert sent == 30
    # Prometheus extrapolates to the ends of the range, by at most half a scrape interval each.
    assert sent / _RANGE_S <= rate <= sent / (last_at - first_at)


def test_share_used_of_a_limit_is_right(prometheus: Prometheus) -> None:
    used = 'sluice_limit_used_ratio{kind="topic",resource="orders",dimension="messages",window="60s",job="limiting"}'
    # 60 of the 600 messages that the rate allows in a minute, for as long as that minute lasted.
    prometheus.wait_for_value(f"max_over_time({used}[{_RANGE_S}s])", 60 / 600)


def test_every_metric_comes_with_help_and_type(prometheus: Prometheus) -> None:
    prometheus.wait_for('up{job="limiting"}', lambda found: list(found.values()) == [1])
    with urllib.request.urlopen(f"http://{prometheus.address}/api/v1/targets/metadata", timeout=_TIMEOUT_S) as answer:
        metadata = json.load(answer)["data"]
    # OpenMetrics names counters without the suffix.
    ours = {each["metric"]: each for each in metadata if each["metric"].startswith("sluice_")}
    assert ours["sluice_requests"]["type"] == "counter"
    assert ours["sluice_limit_used_ratio"]["type"] == "gauge"
    assert all(each["help"] for each in ours.values())
