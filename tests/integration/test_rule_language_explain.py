"""`sluice limits explain` and its page, for a running sidecar after some traffic."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, sends, stored
from harness.sidecar import Sluice, StartSluice, run_sluice

from admin.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.long]

_CONFIG = """
[[listeners]]
name = "main"
listen = "{main}"
broker = "{broker}"
scope = "orders-broker"
exempt = ["127.0.9.0/24"]

[[listeners]]
name = "vip"
listen = "{vip}"
broker = "{broker}"
scope = "orders-broker"

[[limits]]
kind = "topic"
name = "orders"
rate = 0.02
burst_s = 1000
bytes_per_s = 1_000_000
fair_by = "producer_group"

[[limits]]
kind = "topic"
name = "ord*"
rate = 0.05
burst_s = 1000
shared = true
action = "shadow"

[[limits]]
kind = "client"
name = "127.0.0.0/24"
rate = 0.01
burst_s = 1000

[[limits]]
kind = "producer_group"
name = "billing"
rate = 0.03
burst_s = 1000
action = "delay"
max_delay_s = 3600
busy_code = 215

[[limits]]
kind = "producer_group"
name = "paused"
rate = 1
action = "off"

[[limits]]
kind = "listener"
name = "orders-broker"
rate = 100

[[limits]]
kind = "subscription"
name = "billing@orders"
rate = 10

[[limits]]
kind = "topic"
name = "audit"
rate = "unlimited"

[[limits]]
kind = "topic"
name = "held"
rate = 0.01
burst_s = 1000
max_debt_s = 3600
action = "delay"
max_delay_s = 3600
"""


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Iterator[Sluice]:
    with EmbeddedBroker() as broker:
        routes = tuple(broker.route() for _ in range(2))
        config = _CONFIG.format(main=routes[0].listen, vip=routes[1].listen, broker=broker.address)
        with start_sluice(routes=routes, config=config) as sluice:
            yield sluice


def _blocks(text: str) -> dict[str, list[str]]:
    """Return the text about each limit, by heading."""
    blocks = (block.splitlines() for block in text.strip().split("\n\n"))
    return {heading: details for heading, *details in blocks}


def test_the_text_has_limits_in_order_with_reasons_and_state(sidecar: Sluice, tmp_path: Path) -> None:
    with FrameClient(sidecar.routes[0].listen) as client:
        answers = client.ask(*sends(14, "orders", group="billing"))
    assert (stored(answers), len(refused(answers))) in {(10, 4), (11, 3)}

    caller = ("--client", "127.0.0.1", "--producer-group", "billing", "--listener", "vip")
    done = run_sluice("limits", "explain", "topic", "orders", *caller, "--admin", sidecar.admin, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    question, *limits = _blocks(done.stdout).items()
    assert question == ("topic orders, client 127.0.0.1, producer group billing, listener scope orders-broker", [])
    headings = [heading for heading, _ in limits]
    assert headings == [
        "1. topic orders: 0.02 messages per second, burst 1000 s, shared fairly by producer group",
        "2. topic orders: 1000000 bytes per second, burst 1 s, shared fairly by producer group",
        "3. total topic:ord*: 0.05 messages per second, burst 1000 s",
        "4. client 127.0.0.1: 0.01 messages per second, burst 1000 s",
        "5. producer group billing: 0.03 messages per second, burst 1000 s",
        "6. listener orders-broker: 100 messages per second, burst 1 s",
    ]
    by_number = {heading[0]: "\n".join(details) for heading, details in limits}
    assert "exact name" in by_number["1"]
    assert re.search(r"share  of billing: [\d.]+ messages owed, admits what others leave unused", by_number["1"])
    assert re.search(r"now +(9|10)(\.\d+)? messages available", by_number["1"])
    assert "bytes available" in by_number["2"]
    assert "total: pattern" in by_number["3"]
    assert "passes, and is counted" in by_number["3"]
    assert "network 127.0.0.0/24" in by_number["4"]
    assert re.search(r"now +admits again in \d+", by_number["4"]) or "available" in by_number["4"]
    assert re.search(r"last refused [\d.]+ s ago", by_number["4"])
    assert "held for up to 3600 s, then refused with code 215" in by_number["5"]
    assert re.search(r"now +(19|20)(\.\d+)? messages available; nothing refused so far", by_number["5"])
    assert "sluice.toml:52)" in by_number["6"]


def test_json_is_the_apis_answer(sidecar: Sluice, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("topic", "orders-too", "--producer-group", "paused", "--json")

    assert main(["limits", "explain", *words, "--admin", sidecar.admin]) == 0

    explanation = json.loads(capsys.readouterr().out)
    page = sidecar.explain(kind="topic", name="orders-too", producer_group="paused")
    for limit in (*explanation["limits"], *page["limits"]):
        # These change between two reads.
        del limit["state"], limit["usage"]
        limit["details"] = [each for each in limit["details"] if each["name"] != "now"]
    assert explanation == page
    assert [limit["rule"]["name"] for limit in page["limits"]] == ["total:topic:ord*", "listener:orders-broker"]
    assert page["limits"][0]["limit"]["rate_per_s"] == 0.05
    assert [(rule["rule"]["name"], rule["why"]) for rule in page["unapplied"]] == [
        ("producer_group:paused", "exact name; action off"),
    ]
