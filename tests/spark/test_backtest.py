"""The backtest, through Spark, against the real limiter that gets the same requests one by one."""

import random
from collections.abc import Iterator

import pytest
from minute_rows import MONDAY_S, Asked, Limit, frame, minute
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import tables
from admin.analytics.backtest import backtest
from admin.analytics.retries import with_corrected
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, Rule

MINUTES = 4
WITHIN = 0.02
SHAPES = ("steady", "bursty", "poisson", "storms")
TIMES = (0.5, 1.0, 2.0, 10.0)
LIMITS = (Limit("r", 20.0), Limit("r", 50.0, break_s=0.0), Limit("r", 20.0, burst_s=5.0, break_s=5.0))
BATCH = 4


def name_of(shape: str, times: float, limit: int) -> str:
    return f"{shape} {times:g} {limit}"


def per_second(shape: str, times: float, rate: float, rng: random.Random) -> list[int]:
    """Messages of each second; in whole batches."""
    found = []
    for at in range(MINUTES * 60):
        per_s = {
            "steady": times * rate,
            "bursty": times * rate * rng.choice((0.2, 0.5, 1, 3)),
            "poisson": max(0.0, rng.gauss(times * rate, (times * rate * BATCH) ** 0.5)),
            # The first half is quiet, so that minutes are left out.
            "storms": times * rate if at >= MINUTES * 30 and at % 20 < 8 else 0.2 * rate,
        }[shape]
        found.append(int(per_s / BATCH + rng.random()) * BATCH)
    return found


def one_by_one(messages: list[int], limit: Limit) -> Iterator[bool]:
    """Whether the real limiter admits each request."""
    rule = Rule("topic", "x", limit.rate_per_s, burst_s=limit.burst_s, break_s=limit.break_s)
    limiter = Limiter(Resource("topic", "x"), rule, 0)
    for at_s, count in enumerate(messages):
        requests = count // BATCH
        for index in range(requests):
            now_ns = at_s * NS_PER_S + (2 * index + 1) * NS_PER_S // (2 * requests)
            yield limiter.acquire(now_ns, (BATCH,)).admitted == 1


@pytest.fixture(scope="module")
def cases() -> dict[str, tuple[list[int], Limit]]:
    rng = random.Random(7)
    return {
        name_of(shape, times, index): (per_second(shape, times, limit.rate_per_s or 0, rng), limit)
        for shape in SHAPES
        for times in TIMES
        for index, limit in enumerate(LIMITS)
    }


@pytest.fixture(scope="module")
def replayed(spark: SparkSession, cases: dict[str, tuple[list[int], Limit]]) -> dict[str, Row]:
    """All cases in one job; recommended is twice the limit."""
    rows = []
    for name, (messages, limit) in cases.items():
        for at in range(MINUTES):
            seconds = {
                offset: Asked(count, 0, count // BATCH)
                for offset, count in enumerate(messages[at * 60 : at * 60 + 60])
                if count
            }
            if seconds:
                rows.append(minute(name, MONDAY_S + 60 * at, seconds, limit))
    minutes = frame(spark, tables.MINUTES, rows)
    advice = (
        minutes.groupBy(*tables.RESOURCE_KEY)
        .agg(F.max_by(F.struct(*tables.LIMIT_KEY), "minute_s").alias("limit"))
        .withColumn("recommended_rate_per_s", F.col("limit.rate_per_s") * 2)
        .withColumn("recommended_bytes_per_s", F.lit(None).cast("double"))
    )
    return {row["name"]: row for row in backtest(with_corrected(minutes), advice).collect()}


@pytest.mark.parametrize("limit", range(len(LIMITS)))
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_refuses_what_the_real_limiter_refuses(
    cases: dict[str, tuple[list[int], Limit]], replayed: dict[str, Row], shape: str, times: float, limit: int
) -> None:
    name = name_of(shape, times, limit)
    messages, of = cases[name]
    asked = sum(messages)
    row = replayed.get(name)
    doubled = Limit("r", (of.rate_per_s or 0) * 2, burst_s=of.burst_s, break_s=of.break_s)
    for column, each in (("current_refused", of), ("recommended_refused", doubled)):
        real = BATCH * sum(not admitted for admitted in one_by_one(messages, each))
        # What can be refused nothing is not replayed at all.
        simulated = 0 if row is None else row[column]
        assert abs(simulated - real) <= WITHIN * asked, (column, simulated, real, asked)


def test_minutes_that_cannot_be_refused_are_left_out(
    cases: dict[str, tuple[list[int], Limit]], replayed: dict[str, Row]
) -> None:
    quiet = [name for name, (messages, of) in cases.items() if max(messages) <= 0.9 * (of.rate_per_s or 0)]
    assert quiet
    assert not set(quiet) & set(replayed)
