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
from admin.stats.metrics import Family, counter, gauge, scrape
from limiter.compiled import VERSION
from limiter.counting.accounts import Usage
from proxy.stats.snapshot import ResourceCounts

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


# One metric of each part of the snapshot in ``conftest``.
LINES = """\
sluice_requests_total{kind="topic",resource="orders",verdict="pass"} 10.0
sluice_requests_total{kind="topic",resource="orders",verdict="shadow"} 4.0
sluice_requests_total{kind="retry_group",resource="_other",verdict="refuse"} 0.0
sluice_messages_total{kind="topic",resource="orders",verdict="bypass"} 1.0
sluice_messages_total{kind="retry_group",resource="_other",verdict="drop"} 1.0
sluice_bypassed_total{handler="rate_limit",reason="late"} 4.0
sluice_rule_refused_total{rule="topic:orders"} 3.0
sluice_rule_shadowed_total{rule="topic:orders"} 4.0
sluice_rule_held_total{rule="retry_group:*"} 9.0
sluice_held_requests 8.0
sluice_held_bytes 4096.0
sluice_hold_refused_total{bound="max_held"} 6.0
sluice_limit_used_ratio{dimension="messages",kind="topic",resource="orders",window="10s"} 0.8
sluice_limit_per_second{dimension="messages",kind="topic",origin="built-in",resource="log-*"} +Inf
sluice_limit_per_second{dimension="bytes",kind="topic",origin="edit",resource="orders"} 4.194304e+06
sluice_connections{listener="main"} 12.0
sluice_listening{listener="main"} 1.0
sluice_broker_backup{listener="main"} 0.0
sluice_connections_opened_total{listener="main"} 20.0
sluice_connections_closed_total{listener="main",reason="bad_frame"} 1.0
sluice_frames_total{source="client"} 1000.0
sluice_bytes_total{source="broker"} 99000.0
sluice_undecodable_total{parser="lenient"} 2.0
sluice_executor_depth{handler="rate_limit"} 6.0
sluice_executor_capacity{handler="rate_limit"} 10000.0
sluice_executor_late_lanes{handler="rate_limit"} 1.0
sluice_live_limiters 33.0
sluice_limiters_evicted_total 44.0
sluice_limiters_overflowed_total 55.0
sluice_rule_set_version 7.0
sluice_limiting 1.0
sluice_draining 0.0
sluice_log_lines_dropped_total 2.0
sluice_alarm{scarce="memory"} 0.0
sluice_alarms_total{scarce="disk"} 2.0
sluice_alarm_seconds_total{scarce="disk"} 1.5
sluice_loop_busy_ratio 0.25
sluice_stages{kind="connection",state="flow"} 3.0
sluice_connection_state_seconds_total{state="flow"} 2.5
sluice_bottleneck_connections{cause="disk"} 3.0
sluice_confirms_total{kind="queue",resource="a/b",way="persisted"} 30.0
sluice_confirms_pending{kind="queue",resource="a/b"} 5.0
sluice_confirms_after_consume{kind="queue",resource="a/b"} 0.0
sluice_spool_queues 1.0
sluice_spool_messages{place="delta"} 7.0
sluice_spool_disk_limit_bytes 64.0
sluice_spool_stopped 0.0
sluice_spool_lost_total 1.0
"""


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_every_part_of_the_snapshot_is_there(
    data_path: Any, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.stats.metrics.dropped_lines", lambda: 2)
    pieces, _ = await scrape(data_path, accept)
    text = b"".join(pieces).decode()
    assert set(LINES.splitlines()) - set(text.splitlines()) == set()
    # Rare outcomes appear once they occurred.
    assert 'resource="orders",verdict="exempt"' not in text


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


async def test_the_build_and_the_process_are_there_too(data_path: Any) -> None:
    found = await samples(data_path)
    ((_, labels),) = [key for key in found if key[0] == "sluice_build_info"]
    assert {("version", sluice_version()), ("compiled_extension", VERSION)} < set(labels)
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
async def test_a_name_contains_no_terminal_sequences_and_stays_distinct(data_path: Any, name: str, value: str) -> None:
    counts = data_path.snapshot_now.resources["topic", "orders"]
    data_path.snapshot_now = msgspec.structs.replace(data_path.snapshot_now, resources={("topic", name): counts})
    for accept in ("", OPENMETRICS):
        pieces, _ = await scrape(data_path, accept)
        assert b"".join(pieces).decode().replace("\n", "").isprintable()
    found = await samples(data_path)
    assert found["sluice_requests_total", (("kind", "topic"), ("resource", value), ("verdict", "pass"))] == 10


@pytest.mark.parametrize("accept", ["", OPENMETRICS, "text/plain; version=1.0.0; escaping=allow-utf-8"])
async def test_output_equals_the_librarys(data_path: Any, accept: str, monkeypatch: pytest.MonkeyPatch) -> None:
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

    text = b"".join((await scrape(data_path, accept, extra()))[0])
    parsed = list((parse_openmetrics if accept.startswith("application") else parse_text)(text.decode()))

    class ByTheLibrary(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from parsed

    assert text.split(b"\n") == choose_encoder(accept)[0](ByTheLibrary()).split(b"\n")
    samples = {family.name: family.samples for family in parsed}
    found = {(sample.name, *sample.labels.values()): sample.value for each in samples.values() for sample in each}
    shown = [printable(name.replace("\\", "\\\\")) for name in names]
    assert [found["sluice_requests_total", "topic", name, "pass"] for name in shown] == [
        resources["topic", name].requests["pass"] for name in names
    ]
    assert [found["sluice_limit_used_ratio", "bytes", "topic", name, "1s"] for name in shown] == [
        usage["topic", name, "bytes"].last_1s for name in names
    ]


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "text/plain;version=1e9;", "text/plain;version"]
)
async def test_invalid_version_is_tolerated(data_path: Any, accept: str) -> None:
    _, content_type = await scrape(data_path, accept)
    assert content_type.startswith("text/plain")
