"""Each query of the Grafana dashboard returns data from a real Prometheus that scraped a real run."""

import json
import math
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple, get_args

import pytest
import yaml
from harness.api import ask
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send, sends
from harness.paths import ROOT
from harness.prometheus import Prometheus, Vector
from harness.sidecar import Sluice

from proxy.stats.snapshot import RequestVerdict

DASHBOARD: Final = json.loads((ROOT / "deploy" / "grafana" / "sluice.json").read_text(encoding="utf-8"))
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Their metrics need a slow broker, or a fleet.
NOT_HERE: Final = {"Adaptive limits", "Latency measured by adaptive limits", "Fleet", "Fleet round trips"}
QUERIES: Final = [
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
    *((each["name"], each["expr"]) for each in DASHBOARD["annotations"]["list"]),
]
QUERIES_WITH_DATA: Final = [(title, query) for title, query in QUERIES if title not in NOT_HERE]
VARIABLES: Final = {
    each["name"]: each["query"]["query"] for each in DASHBOARD["templating"]["list"] if isinstance(each["query"], dict)
}
RULES: Final = [ROOT / "deploy" / "prometheus" / name for name in ("recording.yaml", "alerts.yaml")]
RECORDED: Final = [
    rule["record"]
    for group in yaml.safe_load(RULES[0].read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
# Grafana's value, long enough for two scrapes here.
RATE_INTERVAL: Final = "1m"
# Shorter than that, and than the minute of a limit's usage.
TIMEOUT_S: Final = 40.0

SIDECAR: Final = """
[[listeners]]
name = "main"
listen = "{listen}"
broker = "{broker}"

[[limits]]
kind = "topic"
name = "orders"
rate = 2

[[limits]]
kind = "topic"
name = "payments"
rate = 1
action = "shadow"

[[limits]]
kind = "topic"
name = "mail"
rate = 20
action = "delay"
max_delay_s = 1
spool = false

[[handlers]]
name = "rate_limit"
capacity = {capacity}
options = {{max_held = 2}}
"""
PROMETHEUS: Final = """
global:
  scrape_interval: 250ms
  scrape_timeout: 250ms
  evaluation_interval: 500ms
rule_files: {rules}
scrape_configs:
  - job_name: sluice
    static_configs: [{{targets: {targets}}}]
"""


def filled_in(query: str) -> str:
    """Return a query as Grafana sends it, with all of everything chosen."""
    for name, value in {
        "$__rate_interval": RATE_INTERVAL,
        "$__interval": RATE_INTERVAL,
        "$job": ".*",
        "$instance": ".*",
        "$kind": ".*",
        "$top": "10",
    }.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


@pytest.fixture(scope="module")
def sidecars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Sluice]]:
    """Two in front of one broker: a normal one, and one whose handler has room for one batch at a time."""
    with ExitStack() as running:
        broker = running.enter_context(EmbeddedBroker())
        started = []
        for capacity in (10_000, 1):
            route = broker.route()
            config = SIDECAR.format(listen=route.listen, broker=route.broker, capacity=capacity)
            started.append(Sluice(tmp_path_factory.mktemp("sluice"), (route,), config=config, covered=False))
            running.enter_context(started[-1])
        yield started


class Scraped(NamedTuple):
    """A Prometheus that has scraped a run with data for each panel."""

    prometheus: Prometheus
    at_s: float

    def vector(self, query: str) -> Vector:
        """Return the values of a query at that moment."""
        return self.prometheus.vector(query, at_s=self.at_s)


@pytest.fixture(scope="module")
def scraped(sidecars: list[Sluice], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    directory = tmp_path_factory.mktemp("prometheus")
    for rule in RULES:
        text = rule.read_text(encoding="utf-8").replace("interval: 30s", "interval: 500ms")
        (directory / rule.name).write_text(text, encoding="utf-8")
    rules, targets = (json.dumps(each) for each in ([rule.name for rule in RULES], [each.admin for each in sidecars]))
    with Prometheus(directory, PROMETHEUS.format(rules=rules, targets=targets)) as running:
        running.wait_for("sluice_rule_set_version", lambda found: len(found) == 2)
        for sluice in sidecars:
            make_happen(sluice)
        asked = {filled_in(query) for _, query in QUERIES_WITH_DATA} | set(RECORDED)
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            at_s = time.time()
            if all(running.vector(query, at_s=at_s) for query in asked) or time.monotonic() > deadline_s:
                break
        yield Scraped(running, at_s)


def make_happen(sluice: Sluice) -> None:
    """Make it pass, refuse, hold, bypass and shadow requests, then change and break things."""
    address = sluice.routes[0].listen
    with FrameClient(address) as client:
        client.ask(*sends(10, "orders"), *sends(10, "payments"), send("orders", batch=5))
        client.ask(*sends(40, "mail"))
    with ExitStack() as clients:
        several = [clients.enter_context(FrameClient(address)) for _ in range(5)]
        # Requests during the stop arrive all at once: more than one batch.
        sluice.process.signal(signal.SIGSTOP)
        for client in several:
            client.write(send("orders"))
        sluice.process.signal(signal.SIGCONT)
        for client in several:
            client.read()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as spoilt:
        header = b"this is no header"
        spoilt.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_undecodable_total") == 1)
    assert ask(sluice, "PUT", "switches/subscription", {"limiting": False})[0] == 200
    assert ask(sluice, "PUT", "limits/topic/orders", {"rate": 3})[0] == 200


@pytest.mark.parametrize("query", [query for title, query in QUERIES if title in NOT_HERE])
def test_a_query_of_short_brokers_is_of_a_metric_that_there_is(scraped: Scraped, query: str) -> None:
    assert scraped.vector(filled_in(query)) == {}
    (metric,) = re.findall(r"\bsluice_\w+", query)
    assert f"`{metric}`" in (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("title", "query"), QUERIES_WITH_DATA)
def test_a_query_returns_data(scraped: Scraped, title: str, query: str) -> None:
    found = scraped.vector(filled_in(query))
    assert found, title
    assert not [value for value in found.values() if math.isnan(value)], title


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_has_values(scraped: Scraped, name: str) -> None:
    parsed = re.fullmatch(r"label_values\((.*), (\w+)\)", VARIABLES[name])
    assert parsed is not None
    assert {dict(labels)[parsed[2]] for labels in scraped.vector(filled_in(parsed[1]))}


@pytest.mark.parametrize("record", RECORDED)
def test_recording_rules_have_data(scraped: Scraped, record: str) -> None:
    assert scraped.vector(record)


def test_verdicts_that_have_a_colour_are_those_that_there_are(scraped: Scraped) -> None:
    coloured = {override["matcher"]["options"] for panel in PANELS for override in panel["fieldConfig"]["overrides"]}
    assert coloured == set(get_args(RequestVerdict))
    (seen,) = (query for title, query in QUERIES if title == "Requests by verdict")
    shown = {dict(labels)["verdict"] for labels in scraped.vector(filled_in(seen))}
    assert {"pass", "refuse", "shadow", "bypass"} <= shown <= coloured


def test_panels_have_descriptions_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    assert all(panel["description"] and panel["title"] for panel in PANELS)
