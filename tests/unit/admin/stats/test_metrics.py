import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from admin.common.tables import printable
from admin.common.version import sluice_version
from admin.stats.metrics import Family, counter, families, gauge, scrape
from proxy.stats.snapshot import ResourceCounts, Usage

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def samples(data_path: Any, accept: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    pieces, _ = await scrape(data_path, accept)
    body = b"".join(pieces)
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
    monkeypatch.setattr("admin.stats.metrics.dropped_lines", lambda: 2)
    found = await samples(data_path, accept)
    ours = {
        key: value
        for key, value in found.items()
        if key[0].startswith("sluice_") and key[0] != "sluice_build_info" and "_seconds_" not in key[0]
    }
    orders = (("kind", "topic"), ("resource", "orders"))
    other = (("kind", "retry_group"), ("resource", "_other"))
    handler = (("handler", "rate_limit"),)
    unwritten = (("kind", "topic"), ("origin", "built-in"), ("resource", "log-*"))
    configured, edited = (
        (("kind", "topic"), ("origin", origin), ("resource", "orders")) for origin in ("configuration", "edit")
    )
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
        ("sluice_read_ahead_bytes", ()): 0,
        ("sluice_held_bytes", ()): 4096,
        ("sluice_hold_refused_total", (("bound", "max_held"),)): 6,
        ("sluice_limit_used_ratio", (("dimension", "messages"), *orders, ("window", "1s"))): 1.0,
        ("sluice_limit_used_ratio", (("dimension", "messages"), *orders, ("window", "10s"))): 0.8,
        ("sluice_limit_used_ratio", (("dimension", "messages"), *orders, ("window", "60s"))): 0.25,
        ("sluice_bypassed_total", (*handler, ("reason", "late"))): 4,
        ("sluice_bypassed_total", (*handler, ("reason", "full"))): 5,
        ("sluice_connections", (("listener", "main"),)): 12,
        ("sluice_listening", (("listener", "main"),)): 1,
        ("sluice_broker_backup", (("listener", "main"),)): 0,
        ("sluice_connections_opened_total", (("listener", "main"),)): 20,
        ("sluice_connections_closed_total", (("listener", "main"), ("reason", "bad_frame"))): 1,
        ("sluice_connections_closed_total", (("listener", "main"), ("reason", "client_closed"))): 7,
        ("sluice_frames_total", (("source", "client"),)): 1000,
        ("sluice_frames_total", (("source", "broker"),)): 990,
        ("sluice_bytes_total", (("source", "client"),)): 536_000,
        ("sluice_bytes_total", (("source", "broker"),)): 99_000,
        ("sluice_limit_per_second", (("dimension", "messages"), *unwritten)): math.inf,
        ("sluice_limit_per_second", (("dimension", "messages"), *configured)): 500,
        ("sluice_limit_per_second", (("dimension", "bytes"), *edited)): 4_194_304,
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
        ("sluice_alarm", (("scarce", "memory"),)): 0,
        ("sluice_alarm", (("scarce", "disk"),)): 0,
        ("sluice_alarms_total", (("scarce", "memory"),)): 0,
        ("sluice_alarms_total", (("scarce", "disk"),)): 2,
        ("sluice_loop_busy_ratio", ()): 0.25,
        **{
            ("sluice_confirms_total", (("kind", "queue"), ("resource", "a/b"), ("way", way))): count
            for way, count in (("after_consume", 10), ("broker", 20), ("persisted", 30), ("nacked", 40))
        },
        ("sluice_confirms_pending", (("kind", "queue"), ("resource", "a/b"))): 5,
        ("sluice_confirms_after_consume", (("kind", "queue"), ("resource", "a/b"))): 0,
        ("sluice_stages", (("kind", "connection"), ("state", "flow"))): 3,
        ("sluice_bottleneck_connections", (("cause", "disk"),)): 3,
        ("sluice_spool_queues", ()): 1,
        ("sluice_spool_messages", (("place", "delta"),)): 7,
        ("sluice_spool_memory_bytes", ()): 0,
        ("sluice_spool_memory_limit_bytes", ()): 32,
        ("sluice_spool_disk_bytes", ()): 0,
        ("sluice_spool_disk_limit_bytes", ()): 64,
        ("sluice_spool_stopped", ()): 0,
        **{
            (f"sluice_spool_{what}_total", ()): 1 if what == "lost" else 0
            for what in ("stops", "in", "recovered", "out", "dropped", "written", "read", "lost", "expired", "too_old")
        },
    }
    assert found["sluice_connection_state_seconds_total", (("state", "flow"),)] == 2.5
    assert found["sluice_alarm_seconds_total", (("scarce", "disk"),)] == 1.5


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_durations_are_histograms_in_seconds(data_path: Any, accept: str) -> None:
    found = await samples(data_path, accept)

    def at_most(name: str, bound: str) -> float:
        return found[f"{name}_bucket", (("le", bound),)]

    name = "sluice_processing_seconds"
    assert [at_most(name, bound) for bound in ("5e-05", "0.0001", "10.0", "+Inf")] == [3, 5, 5, 6]
    assert (found[f"{name}_count", ()], found[f"{name}_sum", ()]) == (6, 12.5)
    name = "sluice_held_seconds"
    assert [at_most(name, bound) for bound in ("0.25", "0.5", "+Inf")] == [0, 4, 4]
    name = "sluice_broker_round_trip_seconds"
    assert (at_most(name, "+Inf"), found[f"{name}_sum", ()]) == (0, 0)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ('a"b', 'a"b'),
        ("a\\b", "a\\\\b"),
        ("a\nb", "a\\nb"),
        ("a\x1b[2J\x07b", "a\\x1b[2J\\x07b"),
        ("a\\x1bb", "a\\\\x1bb"),
        ("a\x9bb\u202eb", "a\\x9bb\\u202eb"),
        ("a\ud800b", "a\\ud800b"),
        ("Größe 订单", "Größe 订单"),
    ],
)
async def test_a_name_gives_no_terminal_orders_and_is_told_from_all_others(
    data_path: Any, name: str, value: str
) -> None:
    counts = data_path.snapshot_now.resources["topic", "orders"]
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, resources={("topic", name): counts})
    for accept in ("", OPENMETRICS):
        pieces, _ = await scrape(data_path, accept)
        assert b"".join(pieces).decode().replace("\n", "").isprintable()
    found = await samples(data_path)
    assert found["sluice_requests_total", (("kind", "topic"), ("resource", value), ("verdict", "pass"))] == 10


async def test_the_accept_header_chooses_the_format(data_path: Any) -> None:
    _, text = await scrape(data_path, "*/*")
    pieces, openmetrics = await scrape(data_path, OPENMETRICS)
    assert text.startswith("text/plain")
    assert openmetrics.startswith("application/openmetrics-text")
    assert pieces[-1].endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["", OPENMETRICS, "text/plain; version=1.0.0; escaping=allow-utf-8"])
async def test_what_is_written_is_what_the_library_writes(
    data_path: Any, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.stats.metrics.ProcessCollector", lambda registry: CollectorRegistry())
    names = [*map(str, range(100)), "# HELP", "a\n# TYPE x", "\r# EOF", "\\n", 'a"b', "", " ", "ü{}", "²"]
    numbers = [0, 7, 999_999, 1_000_000, 123_456_789, 10**15 + 1, 10**16, 10**22]
    resources = {
        ("topic", name): ResourceCounts(
            {"pass": numbers[at % 8], "refuse": 0, "bypass": at, "shadow": at % 3, "exempt": 0, "drop": 0},
            {"pass": numbers[at % 7], "refuse": 1, "bypass": 0, "shadow": 0, "exempt": at % 2, "drop": 0},
        )
        for at, name in enumerate(names)
    }
    floats = [0.0, 1.0, 1 / 3, 1e-7, 999_999.5, 1e6, 1234567.25, 1e17, math.inf, 2.0]
    usage = {
        ("topic", name, "bytes"): Usage(floats[at % 10], floats[at % 9], floats[at % 7])
        for at, name in enumerate(names)
    }
    data_path.snapshot_now = msgspec.structs.replace(
        data_path.snapshot_now, resources=resources, usage=usage, off_kinds=("topic",)
    )

    def extra() -> list[Family]:
        return [
            counter("sluice_edits", "Edits.", ("action", "by"), [(("set", 'a"b'), 3), (("unset", "c"), 4)]),
            gauge("sluice_none", "Nothing.", (), []),
            gauge("sluice_below", "Below 0.", (), [((), -1.5)]),
        ]

    # What the lines say is read back, and written anew by the library.
    parsed = parse_text(b"".join((await scrape(data_path, "", extra()))[0]).decode())
    samples = {family.name: family.samples for family in parsed}

    class ByTheLibrary(Collector):
        def collect(self) -> Iterator[Metric]:
            for metric, _ in (*families(data_path.snapshot_now), *extra()):
                metric.samples = samples[metric.name] if metric.type != "info" else metric.samples
                yield metric

    pieces, _ = await scrape(data_path, accept, extra())
    assert b"".join(pieces).split(b"\n") == choose_encoder(accept)[0](ByTheLibrary()).split(b"\n")
    found = {(sample.name, *sample.labels.values()): sample.value for each in samples.values() for sample in each}
    shown = [printable(name.replace("\\", "\\\\")) for name in names]
    assert [found["sluice_requests_total", "topic", name, "pass"] for name in shown] == [
        resources["topic", name].requests["pass"] for name in names
    ]
    assert [found["sluice_limit_used_ratio", "bytes", "topic", name, "1s"] for name in shown] == [
        usage["topic", name, "bytes"].last_1s for name in names
    ]


async def test_kinds_that_are_switched_off_are_named(data_path: Any) -> None:
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, off_kinds=("retry_group", "topic"))
    found = await samples(data_path)
    assert found["sluice_limiting_kind", (("kind", "topic"),)] == 0
    assert found["sluice_limiting_kind", (("kind", "retry_group"),)] == 0
    assert found["sluice_limiting", ()] == 1


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "text/plain;version=1e9;", "text/plain;version"]
)
async def test_a_version_that_is_none_is_not_taken_amiss(data_path: Any, accept: str) -> None:
    _, content_type = await scrape(data_path, accept)
    assert content_type.startswith("text/plain")
