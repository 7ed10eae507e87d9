"""Logs and the advice that a careful engineer would give for them, written before the report saw the logs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from demands import DAY_S, START_S, Recorded, Seconds, arriving, flowing, limited, met

from admin.analytics.advice import MAX_NAME, unused
from admin.analytics.demand import Known
from admin.analytics.options import Options, Try
from admin.analytics.replay import others_of
from limiter.rules.rule import NS_PER_S

HOUR_S = 3600
MAX_EVIDENCE = 240
"""Two lines of the page."""


def steady(per_s: float, days: float = 7) -> Seconds:
    return np.full(int(days * DAY_S), per_s, np.int64)


def at_night(per_s: int, lasts_s: int, base: int = 0, *, days: int = 7, nights: Sequence[int] | None = None) -> Seconds:
    """Return a demand that rises every night at two, or in some nights."""
    found = steady(base, days)
    for day in range(days) if nights is None else nights:
        found[day * DAY_S + 2 * HOUR_S :][:lasts_s] = per_s
    return found


def between(per_s: int, begin_s: int, end_s: int, days: float = 7) -> Seconds:
    found = steady(0, days)
    found[begin_s:end_s] = per_s
    return found


def growing(per_s: int, per_day: float, days: int = 14) -> Seconds:
    return np.repeat((per_s * (1 + per_day) ** np.arange(days)).astype(np.int64), DAY_S)


def log(limit: Any, days: float = 7, *, how: dict[str, Any] | None = None, **callers: Seconds) -> Recorded:
    return flowing(limit, callers, int(days * DAY_S), **(how or {}))


class Case(NamedTuple):
    """A log and the right advice. ``says`` and ``never`` are words of the evidence and the details."""

    log: Callable[[], Recorded]
    action: str
    per_s: float | None
    only_with: str = ""
    confidence: str = "high"
    says: Sequence[str] = ()
    never: Sequence[str] = ("grows", "shrinks", "usiest hour")
    known: Mapping[str, Any] = MappingProxyType({})


BY_CLIENT = {"rule": "client:10.0.0.9", "at_most": 100}
BY_BROKER = BY_CLIENT | {"rule": "adaptive listener:*"}
EDITED = [(0, limited(150.0)), (2 * DAY_S - 6 * HOUR_S, limited(300.0))]
CASES = {
    "a limit below the demand": Case(
        lambda: log(limited(100.0), web=at_night(100, 0, 50), job=at_night(150, 6 * HOUR_S)), "raise", 240,
        says=["p99 of demand over 7 d is 200/s, and the limit of 100/s refused"]),
    "a limit far above the demand": Case(
        lambda: log(limited(1000.0), web=steady(100)), "lower", 120, "lower", says=["of 1,000/s refused nothing"]),
    "a day is the least to lower by": Case(
        lambda: log(limited(1000.0), 0.9, web=steady(100, 0.9)), "keep", 1000, confidence="low",
        says=["21 h 36 min under this limit is not long enough to lower it"]),
    "the limit of a pattern": Case(
        lambda: log(replace(limited(1000.0), rule="topic:*"), web=steady(100)), "keep", 1000,
        says=["the limit belongs to a pattern"]),
    "a limit about right": Case(lambda: log(limited(130.0), web=steady(100)), "keep", 130),
    "a limit that is near": Case(
        lambda: log(limited(105.0), web=steady(100)), "raise", 120, says=["87/s would have refused 13"]),
    "a limit of 0": Case(lambda: log(limited(0.0), web=steady(1)), "keep", 0, says=["A limit of 0 is not changed"]),
    "no limit": Case(lambda: log(limited(None), web=steady(100)), "keep", None),
    "a limit that is off": Case(
        lambda: log(limited(10.0, action="off"), web=steady(100), how={"rule": "x", "at_most": 1e9}), "keep", None,
        says=["Its limit is off"]),
    # 84 000 of 36 million messages, in 0.035 % of the time: the limit does its job.
    "a flood of 30 s every night, with nobody else": Case(
        lambda: log(limited(200.0), web=steady(60), night=at_night(3000, 30)), "raise", 3100, "raise", "medium",
        says=["Client night sent 98% of the refused messages", "in <0.1% of the recorded time", "contact the owner"]),
    "a flood of 30 s every night, with others": Case(
        lambda: log(limited(200.0), a=steady(20), b=steady(20), c=steady(20), night=at_night(3000, 30)),
        "share", 200, "", "medium",
        says=["Client night sent 98.1% of the refused messages: with", "none of any other caller's messages"]),
    "a flood of 30 s in one night": Case(
        lambda: log(limited(190.0), web=steady(150), night=at_night(3000, 30, nights=[3])), "keep", 190, "", "medium",
        says=["Client night sent 95.3% of the refused messages", "which is what the limit is for"]),
    "a job of 20 minutes every night": Case(
        lambda: log(limited(100.0), web=steady(40), night=at_night(160, 20 * 60)), "raise", 240),
    "the same beside other callers": Case(
        lambda: log(limited(100.0), a=steady(20), b=steady(10), c=steady(10), night=at_night(110, 20 * 60)),
        "raise", 180, says=["Client night sent 75% of the refused messages"]),
    "fair shares, and a flood that lasts all week": Case(
        lambda: log(limited(100.0, fair_by="client"), a=steady(30), b=steady(30), flood=steady(300)), "raise", 440,
        "raise", says=["Client flood sent 83.7% of the refused messages with fair shares: contact the owner"]),
    "a flood that lasts all week, with others": Case(
        lambda: log(limited(200.0), a=steady(12), b=steady(12), c=steady(12), d=steady(12), flood=steady(500)), "share",
        200, says=["of any other caller's messages", "Admitting all demand would take 660/s"]),
    "a runaway for 20 hours": Case(
        lambda: log(limited(200.0), web=steady(60), loop=between(2000, 4 * DAY_S, 4 * DAY_S + 20 * HOUR_S)),
        "keep", 200, confidence="medium", says=["Client loop sent 97", "which is what the limit is for"]),
    "30 seconds every night by many clients": Case(
        lambda: log(limited(200.0), web=steady(60), **{f"cron{at}": at_night(60, 30) for at in range(20)}), "raise",
        1300, "raise", "medium", says=["Up to 21 clients sent", "on 7 of 7 days"]),
    "a batch of two hours a week": Case(
        lambda: log(limited(200.0), 28, web=steady(50, 28), batch=at_night(550, 7200, days=28, nights=[2, 9, 16, 23])),
        "raise", 600, "raise", "medium", says=["Client batch sent", "on 4 of 28 days"]),
    "a launch of five hours by many clients": Case(
        lambda: log(limited(200.0), **{f"c{at}": at_night(20, 5 * HOUR_S, 5, nights=[4]) for at in range(20)}),
        "raise", 480, "", "medium"),
    "two minutes that are a flood": Case(
        lambda: log(limited(200.0), 120 / DAY_S, night=between(9000, 30, 120, 120 / DAY_S)), "keep", 200,
        confidence="low", says=["Not enough time without refusals to tell demand from a flood"]),
    "two minutes of fair shares": Case(
        lambda: log(limited(200.0, fair_by="client"), 120 / DAY_S, a=steady(40, 120 / DAY_S),
            night=between(9000, 30, 120, 120 / DAY_S)), "keep", 200, confidence="low",
        says=["Client night sent 99", "with fair shares: contact the owner"]),
    "an hour that ends in a flood": Case(
        lambda: log(limited(200.0), 1 / 24, a=steady(100, 1 / 24), b=between(900, 3000, 3600, 1 / 24)), "keep", 200,
        confidence="low"),
    "a topic that was renamed": Case(
        lambda: log(limited(100.0), 14, web=between(80, 0, 9 * DAY_S + 18 * HOUR_S, 14)), "keep", 100,
        says=["No demand since 2025-12-03 18:00 UTC"]),
    "its successor": Case(
        lambda: log(limited(100.0), 14, web=between(80, 9 * DAY_S + 18 * HOUR_S, 14 * DAY_S, 14)), "keep", 100),
    "growth": Case(
        lambda: log(limited(200.0), 14, web=growing(100, 0.04)), "raise", 260, never=["shrinks"],
        says=["Daily demand grows by", "a week's growth is added"]),
    "a limit that was raised in a storm": Case(
        lambda: log(EDITED, 2, a=steady(40, 2), b=steady(40, 2), c=between(170, 41 * HOUR_S, 43 * HOUR_S, 2)),
        "keep", 300, confidence="low",
        says=["limit of 300/s since 2025-11-25 18:00 refused nothing", "The previous limit of 150/s refused 2.8%"]),
    "a client's own limit": Case(
        lambda: log(limited(None), a=steady(50), b=at_night(90, HOUR_S), how=BY_CLIENT),
        "keep", None, says=["but rule client:10.0.0.9 refused 982,800 messages: check that limit"]),
    "a broker at capacity": Case(
        lambda: log(limited(160.0), a=steady(50), b=at_night(90, HOUR_S), how=BY_BROKER),
        "keep", 160,
        says=["the broker was at capacity: rule adaptive listener:* refused 982,800 messages; a higher"],
        never=["check that limit"]),
    "a client's own limit besides a topic's": Case(
        lambda: log(limited(160.0), a=steady(50), b=at_night(90, HOUR_S), how=BY_CLIENT),
        "keep", 160, says=["and the limit is 160/s; rule client:10.0.0.9 refused 982,800 messages: check that limit"]),
    "a shadow limit": Case(
        lambda: log(limited(100.0, action="shadow"), web=at_night(100, 0, 50), job=at_night(150, 6 * HOUR_S)),
        "raise", 240, says=["limit of 100/s would have refused"]),
    "a limit edited after another rule refused": Case(
        lambda: log(EDITED, 2, a=steady(50, 2), b=at_night(90, HOUR_S, days=2), how=BY_CLIENT), "keep", 300,
        confidence="low", says=["refused 280,800 messages: check that limit"], never=["100%", "previous limit"]),
    "records that are lost": Case(
        lambda: log(limited(1000.0), web=steady(100)), "lower", 120, "lower", "medium",
        says=["7 records of the log were lost"], known={"lost_records": 7}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_advice(case: Case) -> None:
    found = case.log().advice(**case.known).recommendation
    recommended = found.rate_per_s if found.action == "keep" else found.recommended_rate_per_s
    assert (found.action, recommended, found.only_with) == (case.action, case.per_s, case.only_with)
    said = f"{found.evidence} {found.details}"
    assert [words for words in case.says if words.lower() not in said.lower()] == []
    assert [words for words in case.never if words in said] == []
    assert found.confidence == case.confidence
    assert len(found.evidence) <= MAX_EVIDENCE


def test_a_limit_is_raised_to_the_demand_without_the_retries_that_are_assumed() -> None:
    # Three attempts of 150/s, of which 100/s are admitted.
    recorded = log(limited(100.0), 2, web=steady(377, 2))
    found = replace(recorded, languages={"JAVA": 1.0}, attempts={"JAVA": 3}).advice().recommendation
    assert (found.action, found.recommended_rate_per_s, found.retries) == ("raise", 200, "assumed")
    assert "(377/s with retries, assumed)" in found.evidence
    # Other rates refuse as much as the replays of the current and the recommended limit.
    shares, test = {each.rate_per_s: each.refused_share for each in found.what_if}, found.backtest
    assert test.current is not None
    assert test.recommended is not None
    assert (shares[100], shares[200]) == (test.current.refused_share, test.recommended.refused_share)
    assert shares[100] == pytest.approx(0.73, abs=0.01)


@pytest.mark.parametrize(
    ("name", "action", "only_with"),
    [
        ("a limit below the demand", "raise", "raise"), ("a limit far above the demand", "lower", "lower"),
        ("a flood that lasts all week, with others", "raise", "raise"),
    ],
)  # fmt: skip
def test_no_limit_of_a_sidecar_is_changed_by_default_if_its_minutes_count_twice(
    name: str, action: str, only_with: str
) -> None:
    found = CASES[name].log().advice(twice="its clock was set back").recommendation
    assert (found.action, found.only_with, found.confidence) == (action, only_with, "low")
    assert found.evidence == "Its clock was set back."
    assert "p99 of demand" in found.details
    assert "clock" not in found.details


def test_a_topic_without_demand_for_days_needs_nothing() -> None:
    old, new = CASES["a topic that was renamed"].log().advice(), CASES["its successor"].log().advice()
    assert (old.need_per_s, new.need_per_s) == (0.0, 96.0)


def test_refusals_before_an_edit_do_not_count_against_the_new_limit() -> None:
    found = CASES["a limit that was raised in a storm"].log().advice().recommendation.backtest
    assert found.logged is not None
    assert (found.logged.refused_messages, found.model_error) == (0, 0.0)


def test_long_names_and_control_characters_do_not_break_the_evidence() -> None:
    names = {f"{'x' * 300}\x1b[2J{each}": steady(20) for each in range(3)}
    night = {f"\n{'y' * 300}": at_night(3000, 30)}
    for callers in (names | night, {"web": steady(60), **night}):
        found = flowing(limited(200.0), callers, 7 * DAY_S).advice().recommendation
        assert found.evidence.isprintable()
        assert "y" * (MAX_NAME - 3) in found.evidence
        assert len(found.evidence) <= MAX_EVIDENCE + MAX_NAME


def test_refusals_of_other_rates() -> None:
    tries = (Try("topic", "orders", 150.0), Try("topic", "other", 7.0), Try("group", "orders", 9.0))
    found = CASES["a limit below the demand"].log().advice(Options(tries=tries)).recommendation
    shares = {each.rate_per_s: each.refused_share for each in found.what_if}
    assert list(shares) == [100, 150, 240, 270, 300, 360, 480, 720]
    assert shares[100] > shares[150] > shares[240] == 0
    # A limit that should stay and refused nothing needs no advice.
    assert CASES["a limit about right"].log().advice().recommendation.what_if == ()


def test_a_limit_that_had_no_demand() -> None:
    found = unused(("a", "topic", "orders"), limited(5.0), Known(8 * DAY_S))
    assert (found.action, found.rate_per_s, found.confidence) == ("unused", 5.0, "high")
    assert found.evidence == "No demand in 8 d of logs."
    assert unused(("a", "topic", "orders"), limited(5.0), Known(8 * DAY_S, 1)).confidence == "low"


# Predictions against the real limiter: the refused share under the advice, and once it is applied.

SECONDS = 150
POINT = 0.01


def now_and_then(per_s: float, every_s: int, lasts_s: int, first_s: int = 0) -> Callable[[int], float]:
    return lambda at_s: per_s if (at_s - first_s) % every_s < lasts_s else 0.0


DEMANDS: dict[str, tuple[float, dict[str, Any], str]] = {
    "a flood beside small callers": (100, {"flood": 300, **dict.fromkeys("abcde", 4)}, "share"),
    "one of the others is above its share": (100, {"flood": 100, "big": 50, "a": 13, "b": 13}, "no share"),
    "two floods": (100, {"flood": 150, "other": 90, **dict.fromkeys("abc", 4)}, "no share"),
    "all others are near their share": (100, {"flood": 300, **dict.fromkeys("abcd", 18)}, "share"),
    "others take turns": (
        100, {"flood": 170, "a": now_and_then(40, 40, 20), "b": now_and_then(40, 40, 20, 20), "c": 2}, "no share"),
    "others come in short bursts": (
        100, {"flood": 200, "a": now_and_then(50, 30, 2), "b": now_and_then(50, 30, 2, 9), "c": 4}, "no share"),
    "many tiny callers": (100, {"flood": 300, **{f"t{at}": 0.2 for at in range(100)}}, "share"),
    "a flood that comes and goes": (100, {"flood": now_and_then(450, 50, 15), "a": 30, "b": 25, "c": 10}, "share"),
    "fifteen callers of all sizes": (130, {"flood": 270, **{f"c{at}": at for at in range(1, 15)}}, "share"),
    "a small limit": (20, {"flood": 60, "a": 4.5, "b": 2, "c": 1}, "share"),
}  # fmt: skip


def test_a_storm_whose_minutes_are_lost_does_not_hide_the_others() -> None:
    rate, callers, _ = DEMANDS["all others are near their share"]
    demand, minutes = met(limited(rate), arriving(callers, SECONDS, seed=1), SECONDS).demand()
    lost = {**demand.storms.rows[0], "start_s": START_S - 90, "end_s": START_S - 60, "messages": 10**9}
    more = replace(demand, storms=replace(demand.storms, rows=[lost, *demand.storms.rows]))
    assert others_of(more, minutes) == others_of(demand, minutes) is not None


def lost_by(of: Recorded, name: str, at: Seconds, but: float) -> float:
    """Return a caller's losses beyond the prediction. One message is ignored."""
    refused, admitted = (int(its[name][at].sum()) for its in (of.refused, of.admitted))
    return max(0.0, refused - 1 - but * (refused + admitted)) / max(1, refused + admitted)


@pytest.mark.parametrize("name", DEMANDS)
def test_fair_shares_keep_the_others_guarantee(name: str) -> None:
    rate, callers, expected = DEMANDS[name]
    arrivals = arriving(callers, SECONDS, seed=1)
    now = met(limited(rate), arrivals, SECONDS)
    found = now.advice().recommendation
    assert (found.action == "share") is (expected == "share")
    if found.action == "share":
        assert (found.fair_by, found.recommended_rate_per_s) == ("client", rate)
        # More callers than a limit distinguishes by default need more shares.
        assert found.max_fair_keys == (101 if name == "many tiny callers" else None)
        then = met(limited(rate, fair_by="client"), arrivals, SECONDS)
        said, said_now = found.backtest.others, found.backtest.others_current
        assert said is not None
        assert said_now is not None
        storms = np.concatenate([np.arange(row["start_s"], row["end_s"]) - START_S for row in now.storms()])
        others = [name for name in now.refused if name != "flood"]
        for at in (storms, np.arange(SECONDS)):
            assert max(lost_by(then, name, at, said.refused_share) for name in others) <= POINT
        assert said.refused_share <= said_now.refused_share


@pytest.mark.parametrize("seed", range(10))
def test_a_raised_limit_refuses_as_predicted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    means = rng.uniform(5, 30, 6)
    calm = arriving({f"c{at}": mean * 0.4 for at, mean in enumerate(means)}, 900, seed)
    busy = arriving({f"c{at}": mean for at, mean in enumerate(means)}, 300, seed)
    arrivals = [*calm, *((at_ns + 900 * NS_PER_S, name) for at_ns, name in busy)]
    limit = limited(float(round(means.sum() * rng.uniform(0.5, 0.9))), burst_s=float(rng.choice([1.0, 2.0, 3.0])))
    found = met(limit, arrivals, 1200).advice().recommendation
    assert found.action == "raise"
    then = met(replace(limit, rate_per_s=found.recommended_rate_per_s), arrivals, 1200)
    assert found.backtest.recommended is not None
    total = sum(its.sum() for its in then.refused.values()) / len(arrivals)
    assert total == pytest.approx(found.backtest.recommended.refused_share, abs=POINT)
