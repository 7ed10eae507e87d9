"""Findings of an invented afternoon, for tests of what people see: two sidecars, a runaway import, hostile names."""

import math
from typing import Any, Final

import msgspec

from admin.analytics.findings import (
    Coverage,
    Culprit,
    Curve,
    Findings,
    Fleet,
    Inputs,
    LimitChange,
    Member,
    New,
    Point,
    SetAside,
    Share,
    Storm,
    Totals,
    Week,
    WeekOf,
)
from admin.common.recommendations import Backtest, Period, Recommendation, Replay, WhatIf

NOON_S: Final = 1_795_262_400
"""2026-11-21 12:00:00 UTC."""
HOSTILE: Final = """<script>alert("x")</script><img src=x onerror=alert(1)>'&\u202e"""
"""A topic's name, as a client may choose it."""
LONG: Final = "billing-" + "very-" * 40 + "long"
MAIN: Final = "orders-eu-1"
OTHER: Final = "orders-eu-2"


def curve(name: str, limit: float | None, *, instance: str = MAIN, points: int = 360, storms: int = 2) -> Curve:
    """Return the demand of a topic by the minute, with floods."""
    made = []
    for at in range(points):
        base = 120 + 60 * math.sin(at / 40) + 15 * math.sin(at * 1.7)
        flooded = any(abs(at - centre * points / (storms + 1)) < 6 for centre in range(1, storms + 1))
        demand = base + (1800 if flooded else 0)
        admitted = min(demand, limit) if limit is not None else demand
        made.append(
            Point(
                at_s=NOON_S + 60 * at,
                admitted_per_s=round(admitted, 2),
                refused_per_s=round(demand - admitted, 2),
                peak_per_s=round(demand * 1.4),
                limit_per_s=limit,
            )
        )
    return Curve(
        instance=instance,
        kind="topic",
        name=name,
        step_s=60,
        admitted=round(60 * sum(point.admitted_per_s for point in made)),
        refused=round(60 * sum(point.refused_per_s for point in made)),
        points=tuple(made),
    )


def shadowed(curve: Curve) -> Curve:
    """Return a curve of which a limit in shadow would have refused a tenth."""
    points = [msgspec.structs.replace(each, shadowed_per_s=each.admitted_per_s / 10) for each in curve.points]
    return msgspec.structs.replace(curve, points=tuple(points), shadowed=curve.admitted // 10)


def storm(name: str, start: int, length: int, messages: int, **how: Any) -> Storm:
    """Return a storm that begins so many seconds after noon."""
    return Storm(
        instance=how.pop("instance", MAIN),
        kind=how.pop("kind", "topic"),
        name=name,
        start_s=NOON_S + start,
        end_s=NOON_S + start + length,
        requests=how.pop("requests", messages),
        messages=messages,
        size_bytes=messages * 410,
        peak_per_s=max(1, 14 * messages // max(1, 10 * length)),
        peak_at_s=NOON_S + start + length // 3,
        rules=(f"topic:{name[:20]}",),
        clients=(
            Share(name="10.20.0.7", messages=messages * 7 // 10, share=0.7),
            Share(name="10.20.0.8", messages=messages * 3 // 10, share=0.3),
        ),
        client_count=2,
        producer_groups=(Share(name="nightly-import", messages=messages, share=1.0),),
        producer_group_count=1,
        **how,
    )


def what_if(*rates: float) -> tuple[WhatIf, ...]:
    """Return what limits of these rates would have refused: the less, the higher."""
    shares = [0.2 / (1 + at) for at in range(len(rates))]
    return tuple(
        WhatIf(rate_per_s=rate, refused_share=share, refused_share_uncorrected=share * 1.5)
        for rate, share in zip(rates, shares, strict=True)
    )


def of_queues() -> Findings:
    """Return what a report might have found of RabbitMQ: users and products, and no producer groups."""
    named = storm("orders", 7_020, 640, 1_000, kind="queue")
    nobody = (Share(name="", messages=1_000, share=1.0),)
    users = (
        Share(name="nightly-import", messages=900, share=0.9),
        Share(name="billing", messages=100, share=0.1),
    )
    of_orders = Culprit(
        instance=MAIN, kind="queue", name="orders", client="10.20.0.7", user="nightly-import", product="pika 1.4.4",
        requests=700, messages=700, share=0.7,
    )  # fmt: skip
    return findings(
        instance_count=1,
        fleets=(),
        week=None,
        new_resources=(),
        new_clients=(),
        storms=(msgspec.structs.replace(named, users=users, user_count=2, producer_groups=nobody),),
        culprits=(of_orders, msgspec.structs.replace(of_orders, client="10.20.0.9", user="", product="")),
    )


def findings(**changes: Any) -> Findings:
    """Return what a report might have found; keywords replace fields."""
    curves = (
        curve("orders", 300.0),
        curve(HOSTILE, 80.0, points=120, storms=1),
        shadowed(curve(LONG, None, points=60, instance=OTHER)),
    )
    storms = (
        storm("orders", 7_020, 640, 1_152_331),
        storm("orders", 14_220, 701, 944_210),
        storm(HOSTILE, 3_000, 95, 88_120),
        storm(LONG, 20_000, 12, 4_301, instance=OTHER, is_open=True),
        storm("billing@orders", 900, 1, 17, kind="subscription"),
        storm("payments", 9_000, 1_800, 88_000, shadow=True),
    )
    culprits = (
        Culprit(
            instance=MAIN, kind="topic", name="orders", client="10.20.0.7", producer_group="nightly-import",
            requests=1_200_000, messages=1_467_579, size_bytes=601_707_390, share=0.7,
        ),
        Culprit(
            instance=MAIN, kind="topic", name="orders", client="10.20.0.8", producer_group="nightly-import",
            requests=600_000, messages=628_962, size_bytes=257_874_420, share=0.3,
        ),
        Culprit(
            instance=MAIN, kind="topic", name=HOSTILE, client="2001:db8::17", producer_group=HOSTILE,
            requests=88_120, messages=88_120, size_bytes=36_129_200, share=1.0,
        ),
    )  # fmt: skip
    recommendations = (
        Recommendation(
            instance=MAIN, kind="topic", name="orders", action="raise", rule="topic:orders", rate_per_s=300.0,
            recommended_rate_per_s=450.0, confidence="high",
            evidence="p99 of demand over 6 hours is 370/s; the limit of 300/s refused 14.1% in 2 storms",
            backtest=Backtest(
                current=Replay(refused_messages=2_096_541, refused_share=0.141),
                recommended=Replay(refused_messages=310_000, refused_share=0.021),
                recommended_uncorrected=Replay(refused_messages=610_000, refused_share=0.04),
                logged=Replay(refused_messages=2_096_541, refused_share=0.14),
            ),
            retries="assumed", what_if=what_if(300.0, 400.0, 450.0, 900.0),
        ),
        Recommendation(
            instance=MAIN, kind="topic", name=HOSTILE, action="lower", rule="topic:*", rate_per_s=2000.0,
            recommended_rate_per_s=90.0, confidence="medium", only_with="lower",
            what_if=what_if(45.0, 90.0), evidence=f"busiest second of {HOSTILE}: 75 messages",
            backtest=Backtest(
                current=Replay(refused_messages=0, refused_share=0.0),
                recommended=Replay(refused_messages=0, refused_share=0.0),
            ),
        ),
        Recommendation(
            instance=OTHER, kind="topic", name=LONG, action="new", recommended_rate_per_s=220.0,
            confidence="low", evidence="no limit; p99 of demand over one hour is 183/s",
        ),
        Recommendation(
            instance=OTHER, kind="topic", name="payments", action="share", rate_per_s=500.0, confidence="medium",
            evidence="p99 of demand over 6 hours is 410/s, and one client of two asked for most of it",
            fair_by="client", retries="measured",
            backtest=Backtest(
                others_current=Replay(refused_messages=40, refused_share=0.03),
                others=Replay(refused_messages=0, refused_share=0.0),
            ),
        ),
        Recommendation(
            instance=OTHER, kind="topic", name="retired-*", action="unused", rate_per_s=10.0, confidence="high",
            evidence="nobody asked for it in 6 hours",
        ),
    )  # fmt: skip
    made: dict[str, Any] = {
        "made_at": "2026-11-21T18:05:00Z",
        "out": "sluice-report",
        "tables": "sluice-report",
        "period": Period(from_s=NOON_S, until_s=NOON_S + 6 * 3600),
        "inputs": Inputs(
            logs=("/var/lib/sluice/10.0.0.1-10911/rejections",),
            files=361,
            size_bytes=48_312_004,
            records=203_911,
            duplicates=120,
            bad_lines=2,
            skipped_files=1,
            set_aside=(
                SetAside(file="/logs/rejections-a-000004.jsonl", reason="no JSON", lines=1, example='{"v":1,"inst'),
                SetAside(file="/logs/rejections-b-000001.jsonl", reason="version 2", lines=1, example='{"v":2}'),
                SetAside(file="/logs/gone.jsonl", reason="vanished"),
            ),
        ),
        "totals": Totals(
            resources=212,
            refused_resources=4,
            admitted=11_204_551,
            refused=2_188_979,
            shadowed=88_000,
            storms=5,
            open_storms=1,
            shadow_storms=1,
            recommendations={"raise": 1, "lower": 1, "new": 1, "share": 1, "keep": 206, "unused": 2},
            offered={"lower": 1},
            gap_minutes=22,
            lost_records=17,
            other=3,
            bypassed_requests=12,
            limiting_off_minutes=4,
        ),
        "coverage": (
            Coverage(instance=MAIN, from_s=NOON_S, until_s=NOON_S + 6 * 3600, minutes=360, versions=("0.1.0",)),
            Coverage(
                instance=OTHER,
                from_s=NOON_S,
                until_s=NOON_S + 6 * 3600,
                minutes=338,
                gap_minutes=22,
                lost_records=17,
                other=3,
                bypassed_requests=12,
                limiting_off_minutes=4,
                versions=("0.1.0", "0.2.0"),
            ),
        ),
        "instance_count": 2,
        "storms": storms,
        "culprits": culprits,
        "curves": curves,
        "recommendations": recommendations,
        "fleets": (
            Fleet(
                kind="topic",
                name="orders",
                need_per_s=600.0,
                limit_per_s=900.0,
                member_count=2,
                members=(
                    Member(instance=MAIN, need_per_s=450.0, limit_per_s=300.0, share=0.75),
                    Member(instance=OTHER, need_per_s=150.0, limit_per_s=600.0, share=0.25),
                ),
            ),
        ),
        "week": Week(
            from_s=NOON_S - 7 * 86_400,
            until_s=NOON_S,
            before_from_s=NOON_S - 14 * 86_400,
            before_until_s=NOON_S - 7 * 86_400,
            resources=(
                WeekOf(
                    instance=MAIN,
                    kind="topic",
                    name=HOSTILE,
                    messages=112,
                    refused=12,
                    messages_before=100,
                    refused_before=0,
                ),
            ),
        ),
        "new_resources": (New(instance=OTHER, kind="topic", name=LONG, since_s=NOON_S + 60, messages=4_301),),
        "new_clients": (
            New(
                instance=MAIN,
                kind="topic",
                name="orders",
                client="10.20.0.8",
                producer_group=HOSTILE,
                since_s=NOON_S + 7_020,
                messages=628_962,
            ),
        ),
        "limit_changes": (
            LimitChange(
                instance=MAIN,
                at_s=NOON_S + 15_000,
                change_id=17,
                action="set",
                kind="topic",
                name="orders",
                rate_before_per_s=200.0,
                rate_after_per_s=300.0,
                by="ada",
                reason="they need a bit more",
            ),
        ),
    }
    return Findings(**{**made, **changes})
