from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from admin.metrics import scrape
from admin.version import sluice_version

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def samples(data_path: Any, accept: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = await scrape(data_path, accept)
    parse = parse_openmetrics if accept else parse_text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_every_counter_of_the_snapshot_is_there(
    data_path: Any, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.metrics.dropped_lines", lambda: 2)
    found = await samples(data_path, accept)
    ours = {
        key: value for key, value in found.items() if key[0].startswith("sluice_") and key[0] != "sluice_build_info"
    }
    orders = (("kind", "topic"), ("resource", "orders"))
    other = (("kind", "retry_group"), ("resource", "_other"))
    handler = (("handler", "rate_limit"),)
    assert ours == {
        ("sluice_requests_total", (*orders, ("verdict", "pass"))): 10,
        ("sluice_requests_total", (*orders, ("verdict", "refuse"))): 3,
        ("sluice_requests_total", (*orders, ("verdict", "bypass"))): 1,
        ("sluice_requests_total", (*orders, ("verdict", "shadow"))): 4,
        ("sluice_requests_total", (*other, ("verdict", "pass"))): 2,
        ("sluice_requests_total", (*other, ("verdict", "refuse"))): 0,
        ("sluice_requests_total", (*other, ("verdict", "bypass"))): 0,
        ("sluice_requests_total", (*other, ("verdict", "drop"))): 1,
        ("sluice_messages_total", (*orders, ("verdict", "pass"))): 160,
        ("sluice_messages_total", (*orders, ("verdict", "refuse"))): 48,
        ("sluice_messages_total", (*orders, ("verdict", "bypass"))): 1,
        ("sluice_messages_total", (*orders, ("verdict", "shadow"))): 64,
        ("sluice_messages_total", (*other, ("verdict", "pass"))): 2,
        ("sluice_messages_total", (*other, ("verdict", "refuse"))): 0,
        ("sluice_messages_total", (*other, ("verdict", "bypass"))): 0,
        ("sluice_messages_total", (*other, ("verdict", "drop"))): 1,
        ("sluice_rule_refused_total", (("rule", "topic:orders"),)): 3,
        ("sluice_rule_refused_total", (("rule", "retry_group:*"),)): 0,
        ("sluice_rule_shadowed_total", (("rule", "topic:orders"),)): 4,
        ("sluice_rule_shadowed_total", (("rule", "retry_group:*"),)): 0,
        ("sluice_rule_held_total", (("rule", "topic:orders"),)): 0,
        ("sluice_rule_held_total", (("rule", "retry_group:*"),)): 9,
        ("sluice_held_requests", ()): 8,
        ("sluice_held_bytes", ()): 4096,
        ("sluice_hold_refused_total", (("bound", "max_held"),)): 6,
        ("sluice_limit_used_ratio", (("dimension", "messages"), *orders, ("window", "1s"))): 1.0,
        ("sluice_limit_used_ratio", (("dimension", "messages"), *orders, ("window", "10s"))): 0.8,
        ("sluice_limit_used_ratio", (("dimension", "messages"), *orders, ("window", "60s"))): 0.25,
        ("sluice_bypassed_total", (*handler, ("reason", "late"))): 4,
        ("sluice_bypassed_total", (*handler, ("reason", "full"))): 5,
        ("sluice_connections", (("listener", "main"),)): 12,
        ("sluice_connections_opened_total", ()): 20,
        ("sluice_connections_closed_total", (("reason", "bad_frame"),)): 1,
        ("sluice_connections_closed_total", (("reason", "client_closed"),)): 7,
        ("sluice_frames_total", (("direction", "client"),)): 1000,
        ("sluice_frames_total", (("direction", "broker"),)): 990,
        ("sluice_bytes_total", (("direction", "client"),)): 536_000,
        ("sluice_bytes_total", (("direction", "broker"),)): 99_000,
        ("sluice_undecodable_total", (("parser", "lenient"),)): 2,
        ("sluice_undecodable_total", (("parser", "none"),)): 1,
        ("sluice_executor_depth", handler): 6,
        ("sluice_executor_capacity", handler): 10_000,
        ("sluice_executor_late_lanes", handler): 1,
        ("sluice_live_limiters", ()): 33,
        ("sluice_limiters_evicted_total", ()): 44,
        ("sluice_limiters_overflowed_total", ()): 55,
        ("sluice_rule_set_version", ()): 7,
        ("sluice_limiting", ()): 1,
        ("sluice_draining", ()): 0,
        ("sluice_log_lines_dropped_total", ()): 2,
    }


async def test_switches_are_shown_as_zero_and_one(data_path: Any) -> None:
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, limiting=False, draining=True)
    found = await samples(data_path)
    assert found["sluice_limiting", ()] == 0
    assert found["sluice_draining", ()] == 1


async def test_the_build_and_the_process_are_there_too(data_path: Any) -> None:
    found = await samples(data_path)
    ((_, labels),) = [key for key in found if key[0] == "sluice_build_info"]
    assert ("version", sluice_version()) in labels
    assert found["process_resident_memory_bytes", ()] > 0


async def test_a_resource_name_that_needs_escaping_survives(data_path: Any) -> None:
    counts = data_path.snapshot_now.resources["topic", "orders"]
    strange = 'a"b\\c\nd'
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, resources={("topic", strange): counts})
    found = await samples(data_path)
    assert found["sluice_requests_total", (("kind", "topic"), ("resource", strange), ("verdict", "pass"))] == 10


async def test_the_accept_header_chooses_the_format(data_path: Any) -> None:
    _, text = await scrape(data_path, "*/*")
    body, openmetrics = await scrape(data_path, OPENMETRICS)
    assert text.startswith("text/plain")
    assert openmetrics.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
