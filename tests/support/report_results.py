"""Results of an invented afternoon, for tests of the page and the summary: two sidecars, a flood, hostile names."""

import math
from typing import Any, Final

NOON_S: Final = 1_795_262_400
HOSTILE: Final = """<script>alert("x")</script><img src=x onerror=alert(1)>'&\u202e"""
"""A client's choice of a topic's name."""
LONG: Final = "billing-" + "very-" * 40 + "long"
MAIN: Final = "orders-eu-1"
OTHER: Final = "orders-eu-2"
Row = dict[str, Any]


def curve(name: str, limit: float | None, *, instance: str = MAIN, points: int = 360, storms: int = 2) -> Row:
    """Return the demand of a topic by the minute, with floods."""
    made = []
    for at in range(points):
        base = 120 + 60 * math.sin(at / 40) + 15 * math.sin(at * 1.7)
        flooded = any(abs(at - centre * points / (storms + 1)) < 6 for centre in range(1, storms + 1))
        demand = base + (1800 if flooded else 0)
        admitted = min(demand, limit) if limit is not None else demand
        made.append(point(NOON_S + 60 * at, admitted, demand - admitted, round(demand * 1.4), limit))
    return {
        "instance": instance, "kind": "topic", "name": name, "step_s": 60, "points": made, "shadowed": 0,
        "admitted": round(60 * sum(each["admitted_per_s"] for each in made)),
        "refused": round(60 * sum(each["refused_per_s"] for each in made)),
    }  # fmt: skip


def point(at_s: int, admitted: float, refused: float, peak: float, limit: float | None) -> Row:
    return {
        "at_s": at_s, "admitted_per_s": admitted, "refused_per_s": refused, "shadowed_per_s": 0.0,
        "peak_per_s": peak, "limit_per_s": limit, "count": "messages",
    }  # fmt: skip


def storm(name: str, start: int, length: int, messages: int, **fields: Any) -> Row:
    """Return a storm that begins this many seconds after noon."""
    return {
        "instance": MAIN, "kind": "topic", "name": name, "shadow": False, "is_open": False, "sidecars": 1,
        "flood_s": NOON_S + start, "flood_messages": messages, "start_s": NOON_S + start,
        "end_s": NOON_S + start + length, "requests": messages, "messages": messages,
        "size_bytes": messages * 410, "refused_seconds": length,
        "peak_per_s": max(1, 14 * messages // max(1, 10 * length)),
        "peak_at_s": NOON_S + start + length // 3, "wait_max_us": 0, "rules": [f"topic:{name[:20]}"],
        "clients": shares(messages, ("10.20.0.7", 0.7), ("10.20.0.8", 0.3)), "client_count": 2,
        "users": shares(messages, ("", 1.0)), "user_count": 0,
        "producer_groups": shares(messages, ("nightly-import", 1.0)), "producer_group_count": 1,
    } | fields  # fmt: skip


def flood(name: str, messages: int, *instances: str) -> list[Row]:
    """Return the storms of a flood that begins at noon, of a minute each, at a sidecar ten seconds after another."""
    return [
        storm(name, 10 * at, 60, messages, instance=instance, sidecars=len(instances), flood_s=NOON_S,
            flood_messages=messages * len(instances))
        for at, instance in enumerate(instances)
    ]  # fmt: skip


def shares(messages: int, *of: tuple[str, float]) -> list[Row]:
    """Return senders with their shares of the messages."""
    return [{"name": name, "messages": round(messages * share), "share": share} for name, share in of]


def culprit(name: str, client: str, messages: int, share: float, **fields: Any) -> Row:
    """Return a refused caller."""
    return {
        "instance": MAIN, "kind": "topic", "name": name, "client": client, "user": "", "product": "",
        "producer_group": "nightly-import", "requests": messages, "messages": messages, "size_bytes": messages * 410,
        "share": share,
    } | fields  # fmt: skip


def replay(refused_messages: int, refused_share: float) -> Row:
    """Return a limit's refusals in a replay."""
    return {"refused_messages": refused_messages, "refused_share": refused_share}


def advice(name: str, action: str, rate: float | None, new_rate: float | None = None, **fields: Any) -> Row:
    """Return a recommendation. Keywords replace fields, and those of the backtest."""
    sides = ("current", "recommended", "recommended_uncorrected", "others_current", "others", "logged", "model_error")
    return {
        "instance": MAIN, "kind": "topic", "name": name, "action": action, "rule": f"topic:{name}", "count": "messages",
        "rate_per_s": rate, "recommended_rate_per_s": new_rate, "bytes_per_s": None,
        "recommended_bytes_per_s": None, "confidence": "low", "evidence": "", "details": "", "only_with": "",
        "fair_by": None, "max_fair_keys": None, "retries": "none", "what_if": [],
        "backtest": {side: fields.pop(side, None) for side in sides},
    } | fields  # fmt: skip


def what_if(*rates: float) -> list[Row]:
    """Return the shares that limits of these rates would refuse."""
    return [
        {"rate_per_s": rate, "refused_share": 0.2 / at, "refused_share_uncorrected": 0.3 / at}
        for at, rate in enumerate(rates, start=1)
    ]


def coverage(instance: str, **fields: Any) -> Row:
    """Return the records of a sidecar: six hours from noon."""
    return {
        "instance": instance, "from_s": NOON_S, "until_s": NOON_S + 21_600, "newest_s": NOON_S + 21_599,
        "minutes": 360, "gap_minutes": 0, "missing_minutes": 0, "lost_records": 0, "other": 0, "bypassed_requests": 0,
        "limiting_off_minutes": 0, "versions": ["0.1.0"],
    } | fields  # fmt: skip


def totals(**fields: Any) -> Row:
    """Return totals. All others are zero."""
    names = (
        "resources", "refused_resources", "admitted", "refused", "held", "shadowed", "gap_minutes", "missing_minutes",
        "lost_records", "other", "bypassed_requests", "limiting_off_minutes", "storms", "open_storms", "shadow_storms",
    )  # fmt: skip
    return dict.fromkeys(names, 0) | {"recommendations": {}, "offered": {}} | fields


def inputs(**fields: Any) -> Row:
    """Return the inputs. All others are empty."""
    names = ("files", "size_bytes", "records", "duplicates", "bad_lines", "skipped_files", "outside_files")
    return dict.fromkeys(names, 0) | {"logs": ["logs"], "set_aside": []} | fields


def empty() -> Row:
    """Return the results of a log without records."""
    lists = (
        "coverage", "clocks", "recorded_twice", "storms", "callers", "culprits", "curves", "recommendations", "tried",
        "fleets", "new_resources", "new_clients", "limit_changes", "killed",
    )  # fmt: skip
    return {name: [] for name in lists} | {
        "attempts": {"JAVA": 3, "GO": 1},
        "version": 2, "made_at": "2026-11-21T18:05:00Z", "out": "sluice-report", "tables": "sluice-report",
        "period": {"from": None, "until": None}, "inputs": inputs(), "totals": totals(), "instance_count": 0,
        "storm_gap_s": 30, "week": None,
    }  # fmt: skip


def of_queues() -> Row:
    """Return results of RabbitMQ: users and products, and no producer groups."""
    users = shares(1_000, ("nightly-import", 0.9), ("billing", 0.1))
    its = storm(
        "orders", 7_020, 640, 1_000, kind="queue", users=users, user_count=2, producer_groups=shares(1_000, ("", 1.0))
    )
    names = {"kind": "queue", "producer_group": ""}
    culprits = [
        culprit("orders", "10.20.0.7", 700, 0.7, user="nightly-import", product="pika 1.4.4", **names),
        culprit("orders", "10.20.0.9", 300, 0.3, **names),
    ]
    return results(
        instance_count=1, fleets=[], week=None, new_resources=[], new_clients=[], storms=[its], culprits=culprits
    )


def results(**changes: Any) -> Row:
    """Return a report's results. Keywords replace fields."""
    shadowed = curve(LONG, None, points=60, instance=OTHER)
    for each in shadowed["points"]:
        each["shadowed_per_s"] = each["admitted_per_s"] / 10
    shadowed["shadowed"] = shadowed["admitted"] // 10
    recommendations = [
        advice("orders", "raise", 300.0, 450.0, confidence="high", retries="assumed",
            evidence="p99 of demand over 6 hours is 370/s; the limit of 300/s refused 14.1% in 2 storms",
            details="All that is known of orders.", what_if=what_if(300.0, 400.0, 450.0, 900.0),
            current=replay(2_096_541, 0.141), recommended=replay(310_000, 0.021),
            recommended_uncorrected=replay(610_000, 0.04), logged=replay(2_096_541, 0.14)),
        advice(HOSTILE, "lower", 2000.0, 90.0, confidence="medium", only_with="lower", what_if=what_if(45.0, 90.0),
            evidence=f"busiest second of {HOSTILE}: 75 messages", current=replay(0, 0.0), recommended=replay(0, 0.0)),
        advice(LONG, "new", None, 220.0, instance=OTHER, evidence="no limit; p99 of demand over one hour is 183/s"),
        advice("payments", "share", 500.0, instance=OTHER, confidence="medium", fair_by="client", retries="measured",
            evidence="p99 of demand over 6 hours is 410/s, and one client of two has most of it",
            others_current=replay(40, 0.03), others=replay(0, 0.0)),
        advice("retired-*", "unused", 10.0, instance=OTHER, confidence="high", evidence="no demand in 6 hours"),
    ]  # fmt: skip
    aside = [
        {"file": "/logs/rejections-a-000004.jsonl", "reason": "no JSON", "lines": 1, "example": '{"v":1,"inst'},
        {"file": "/logs/rejections-b-000001.jsonl", "reason": "version 2", "lines": 1, "example": '{"v":2}'},
        {"file": "/logs/gone.jsonl", "reason": "vanished", "lines": 0, "example": ""},
    ]
    unknown = {"gap_minutes": 22, "lost_records": 17, "other": 3, "bypassed_requests": 12, "limiting_off_minutes": 4}
    named = {"instance": MAIN, "kind": "topic"}
    made: Row = {
        "period": {"from": NOON_S, "until": NOON_S + 6 * 3600},
        "inputs": inputs(logs=["/var/lib/sluice/10.0.0.1-10911/rejections"], files=361, size_bytes=48_312_004,
            records=203_911, duplicates=120, bad_lines=2, skipped_files=1, set_aside=aside),
        "totals": totals(resources=212, refused_resources=4, admitted=11_204_551, refused=2_188_979, shadowed=88_000,
            storms=5, open_storms=1, shadow_storms=1, offered={"lower": 1}, **unknown,
            recommendations={"raise": 1, "lower": 1, "new": 1, "share": 1, "keep": 206, "unused": 2}),
        "coverage": [coverage(MAIN), coverage(OTHER, minutes=338, versions=["0.1.0", "0.2.0"], **unknown)],
        "instance_count": 2,
        "storms": [
            storm("orders", 7_020, 640, 1_152_331),
            storm("orders", 14_220, 701, 944_210),
            storm(HOSTILE, 3_000, 95, 88_120),
            storm(LONG, 20_000, 12, 4_301, instance=OTHER, is_open=True),
            storm("billing@orders", 900, 1, 17, kind="subscription"),
            storm("payments", 9_000, 1_800, 88_000, shadow=True),
        ],
        "callers": [
            culprit("orders", "10.20.0.7", 1_467_579, 0.67, resources=1),
            culprit(HOSTILE, "2001:db8::17", 88_120, 0.04, resources=1, producer_group=HOSTILE),
        ],
        "culprits": [
            culprit("orders", "10.20.0.7", 1_467_579, 0.7),
            culprit("orders", "10.20.0.8", 628_962, 0.3, requests=600_000),
            culprit(HOSTILE, "2001:db8::17", 88_120, 1.0, producer_group=HOSTILE),
        ],
        "curves": [curve("orders", 300.0), curve(HOSTILE, 80.0, points=120, storms=1), shadowed],
        "recommendations": recommendations,
        "fleets": [
            {"kind": "topic", "name": "orders", "need_per_s": 600.0, "limit_per_s": 900.0, "member_count": 2,
                "members": [
                    {"instance": MAIN, "need_per_s": 450.0, "limit_per_s": 300.0, "share": 0.75},
                    {"instance": OTHER, "need_per_s": 150.0, "limit_per_s": 600.0, "share": 0.25},
                ]},
        ],
        "week": {
            "from_s": NOON_S - 7 * 86_400, "until_s": NOON_S,
            "before_from_s": NOON_S - 14 * 86_400, "before_until_s": NOON_S - 7 * 86_400,
            "resources": [
                {**named, "name": HOSTILE, "messages": 112, "refused": 12, "messages_before": 100, "refused_before": 0}
            ],
        },
        "new_resources": [{**named, "instance": OTHER, "name": LONG, "since_s": NOON_S + 60, "messages": 4_301}],
        "new_clients": [
            {**named, "name": "orders", "client": "10.20.0.8", "user": "", "product": "", "producer_group": HOSTILE,
                "since_s": NOON_S + 7_020, "messages": 628_962}
        ],
        "limit_changes": [
            {**named, "name": "orders", "at_s": NOON_S + 15_000, "change_id": 17, "action": "set",
                "rate_before_per_s": 200.0, "rate_after_per_s": 300.0, "fair_by_before": None,
                "fair_by_after": None, "by": "ada", "reason": "they need a bit more"}
        ],
    }  # fmt: skip
    return empty() | made | changes
