"""Demands of several callers, their limit, and a report's advice from the record of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from admin.analytics.advice import Advice, advise
from admin.analytics.demand import LIMIT_COLUMNS, WHO, Collector, Demand, Known, Limit, Minutes
from admin.analytics.options import Options
from limiter.buckets.fair import FairLimiter
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, Rule

DAY_S: Final = 86_400
START_S: Final = 1_763_942_400
"""2025-11-24 00:00 UTC, a Monday."""
Seconds = NDArray[np.int64]
"""Messages by second."""
LANGUAGES: Final = pa.map_(pa.string(), pa.struct({"requests": pa.int64(), "refused": pa.int64()}))
_OPTIONS: Final = Options()
OUTCOMES: Final = ("admitted", "shadowed", "bypassed", "exempt", "refused", "dropped", "held", "repeated")


@dataclass
class Recorded:
    """The outcomes of each caller's messages, by second since ``START_S``.

    ``limits``: with the second in which each became active. ``rule``: the refusing one, empty for the limit's own.
    ``identified``: messages have ids. ``language``: of clients whose messages have no ids.
    """

    limits: Sequence[tuple[int, Limit]]
    admitted: Mapping[str, Seconds]
    refused: Mapping[str, Seconds]
    rule: str = ""
    languages: Mapping[str, float] = field(default_factory=dict)
    identified: float = 0.0
    gap_s: int = 30
    attempts: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> int:
        return len(next(iter(self.admitted.values())))

    @property
    def limit(self) -> Limit:
        return self.limits[-1][1]

    def demand(
        self, *, lost_records: int = 0, day_s: Mapping[int, int] | None = None, twice: str = ""
    ) -> tuple[Demand, Minutes]:
        """Return the demand in a report."""
        collector = Collector(("a", "topic", "orders"), self.attempts)
        batch = self.minutes()
        for begin in range(0, batch.num_rows, 1000):
            collector.take(batch.slice(begin, 1000))
        if day_s is None:
            days = range(-(-self.seconds // DAY_S))
            day_s = {START_S // DAY_S + day: min(DAY_S, self.seconds - day * DAY_S) for day in days}
        known = Known(self.seconds, lost_records, 0, day_s, START_S + self.seconds, twice)
        return collector.demand(known, self.storms()), collector.minutes

    def advice(self, options: Options = _OPTIONS, **known: Any) -> Advice:
        """Return the advice in a report."""
        return advise(*self.demand(**known), options)

    def minutes(self) -> pa.RecordBatch:
        """Return rows of the table ``minutes``."""
        admitted, refused = (
            sum(each.values(), np.zeros(self.seconds, np.int64)) for each in (self.admitted, self.refused)
        )
        asked = admitted + refused
        at = np.flatnonzero(asked)
        minute, begins = np.unique(at // 60, return_index=True)
        offsets = pa.array([*begins.tolist(), len(at)], pa.int32())
        clients = np.zeros(len(minute), np.int64)
        for name in self.admitted:
            its = np.add.reduceat((self.admitted[name] + self.refused[name])[at], begins) if len(at) else clients
            clients += its > 0
        its_admitted, its_refused = (np.add.reduceat(each[at], begins) for each in (admitted, refused))

        def lists(values: Seconds) -> pa.Array:
            return pa.ListArray.from_arrays(offsets, pa.array(values, pa.int64()))

        empty = pa.ListArray.from_arrays(pa.array([0] * (len(minute) + 1), pa.int32()), pa.array([], pa.int64()))
        nothing = np.zeros(len(minute), np.int64)
        amounts = {f"{outcome}_{what}": nothing for outcome in OUTCOMES for what in ("requests", "messages")}
        is_shadow = self.limit.action == "shadow"
        for what in ("requests", "messages"):
            amounts[f"admitted_{what}"] = its_admitted
            amounts[f"{'shadowed' if is_shadow else 'refused'}_{what}"] = its_refused
        places = np.searchsorted([since_s for since_s, _ in self.limits], minute * 60 + 59, "right") - 1
        limits = [asdict(self.limits[place][1]) for place in places.tolist()]
        languages = [
            [
                (name, {"requests": int(part * one), "refused": int(part * other)})
                for name, part in self.languages.items()
            ]
            for one, other in zip(its_admitted + its_refused, its_refused, strict=True)
        ]
        of_second = (asked if is_shadow else admitted)[at], (0 * refused if is_shadow else refused)[at]
        return pa.RecordBatch.from_pydict(
            amounts
            | {name: [each[name] for each in limits] for name in LIMIT_COLUMNS}
            | {
                "minute_s": START_S + minute * 60,
                "identified": np.floor(its_refused * self.identified).astype(np.int64),
                "busy_answers": its_refused,
                "languages": pa.array(languages, LANGUAGES),
                "clients": clients,
                "second": lists(at % 60),
                "second_admitted": lists(of_second[0]),
                "second_refused": lists(of_second[1]),
                "second_requests": lists(asked[at]),
                "second_bytes": lists(asked[at] * 100),
                "second_repeated": empty,
                "second_shadowed": lists(refused[at]) if is_shadow else empty,
                "rate_per_s": pa.array([each["rate_per_s"] for each in limits], pa.float64()),
                "bytes_per_s": pa.array([each["bytes_per_s"] for each in limits], pa.float64()),
            }
        )  # fmt: skip

    def storms(self) -> list[dict[str, Any]]:
        """Return rows of the table ``storms``."""
        refused = sum(self.refused.values(), np.zeros(self.seconds, np.int64))
        at = np.flatnonzero(refused)
        storms = np.split(at, np.flatnonzero(np.diff(at) > self.gap_s) + 1) if len(at) else []
        return [self._storm(seconds, refused) for seconds in storms]

    def _storm(self, seconds: Seconds, refused: Seconds) -> dict[str, Any]:
        total = int(refused[seconds].sum())
        found = []
        for name, each in self.refused.items():
            its = each[seconds]
            pairs = float((its * (its - 1) / np.maximum(1, refused[seconds] - 1)).sum())
            found.append((-int(its.sum()), name, pairs))
        found = sorted(each for each in found if each[0])
        rule = self.rule or self.limit.rule
        row: dict[str, Any] = {
            "start_s": START_S + int(seconds[0]),
            "end_s": START_S + int(seconds[-1]) + 1,
            "messages": total,
            "rules": [{"name": rule, "messages": total, "share": 1.0}],
        }
        for who in WHO:
            its = found if who == "client" else [(-total, "", 0.0)]
            row[f"{who}s"] = [{"name": name, "messages": -less, "share": -less / total} for less, name, _ in its[:10]]
            row[f"{who}_then"] = [-pairs / less for less, _, pairs in its[:10]]
            row[f"{who}_count"] = len(its)
        return row


def limited(rate: float | None, **fields: Any) -> Limit:
    """Return a topic's own limit, with its default breaker."""
    return Limit("topic:orders", rate, break_s=1.0, **fields)


def flowing(
    limits: Limit | Sequence[tuple[int, Limit]], callers: Mapping[str, Any], seconds: int, **how: Any
) -> Recorded:
    """Apply a limit to long demands, as messages by second. It refuses the excess over its rate, in proportion."""
    limits = [(0, limits)] if isinstance(limits, Limit) else limits
    asked = {name: np.broadcast_to(np.asarray(each, np.int64), seconds) for name, each in callers.items()}
    total = sum(asked.values(), np.zeros(seconds, np.int64))
    rate = np.full(seconds, np.inf)
    for since_s, limit in limits:
        rate[since_s:] = np.inf if limit.rate_per_s is None or how.get("rule") else limit.rate_per_s
    if how.get("rule"):
        rate[:] = how.pop("at_most")
    over = np.maximum(0.0, 1 - rate / np.maximum(1, total))
    refused = {name: np.floor(each * over).astype(np.int64) for name, each in asked.items()}
    return Recorded(limits, {name: each - refused[name] for name, each in asked.items()}, refused, **how)


Arrivals = list[tuple[int, str]]
"""Time in nanoseconds, and caller."""


def arriving(callers: Mapping[str, float | Callable[[int], float]], seconds: int, seed: int) -> Arrivals:
    """Let callers send at random times, with these mean rates."""
    rng = np.random.default_rng(seed)
    found: Arrivals = []
    for name, rate in callers.items():
        for at_s in range(seconds):
            count = int(rng.poisson(rate(at_s) if callable(rate) else rate))
            found += [(at_s * NS_PER_S + int(offset * NS_PER_S), name) for offset in rng.random(count)]
    return sorted(found)


def met(limit: Limit, arrivals: Arrivals, seconds: int) -> Recorded:
    """Apply the real limiter to arrivals, with fair shares if the limit has them."""
    resource = Resource("topic", "orders")
    rule = Rule(
        *resource,
        limit.rate_per_s,
        burst_s=limit.burst_s,
        break_s=limit.break_s,
        fair_by=limit.fair_by,
        max_fair_keys=256,
    )
    one, fair = Limiter(resource, rule, 0), FairLimiter(resource, rule, 0)
    names = sorted({name for _, name in arrivals})
    admitted, refused = ({name: np.zeros(seconds, np.int64) for name in names} for _ in range(2))
    for now_ns, name in arrivals:
        gate = fair.share(name, now_ns) if limit.fair_by else one
        if gate.check(now_ns, (1,)).admitted:
            gate.commit(now_ns, (1,))
            admitted[name][now_ns // NS_PER_S] += 1
        else:
            gate.refuse(now_ns)
            refused[name][now_ns // NS_PER_S] += 1
    return Recorded([(0, limit)], admitted, refused)
