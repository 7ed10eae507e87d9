"""A report's recommendation for one resource, and whether it fits the active limit."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from admin.common.recommendations import Period, Recommendation, RecommendationsFile
from admin.config.settings import ReportSettings
from admin.edits.model import LimitEntry
from admin.rejection_log.advice import USUAL, AdviceReader, usual
from limiter.rules.resource import Resource
from proxy.common.clock import Clock

ORDERS = Resource("topic", "orders")
ADVISED = Recommendation(
    instance="broker-a",
    kind="topic",
    name="orders",
    action="raise",
    rate_per_s=500.0,
    recommended_rate_per_s=650.0,
    confidence="high",
    evidence="Asked for 620/s.",
)
IN_FORCE = LimitEntry(
    kind="topic",
    name="orders",
    limit={"rate": 500.0, "burst_s": 1.0, "action": "reject"},
    limit_text="500/s",
    rule="topic:orders",
    source="sluice.toml:12",
    exact=True,
    configured=None,
    edit=None,
    etag="e",
)


class File:
    """A ``recommendations.json`` in a report's form."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *recommendations: Recommendation, **head: Any) -> None:
        usual_head = {
            "made_at": "2026-01-02T03:00:00Z",
            "period": Period(from_s=0, until_s=60),
            "instances": ("broker-a",),
        }
        first = msgspec.json.encode(RecommendationsFile(**(usual_head | head)))
        lines = b",\n".join(map(msgspec.json.encode, recommendations))
        self.path.write_bytes(first.removesuffix(b"]}") + b"\n" + lines + b"\n]}\n")

    async def about(self, resource: Resource = ORDERS, **limit: Any) -> Any:
        entry = msgspec.structs.replace(IN_FORCE, limit=IN_FORCE.limit | limit)
        clock = Clock(utc=lambda: datetime(2026, 1, 2, 5, tzinfo=UTC))
        return await AdviceReader(self.path, "broker-a", clock, fleet="prod").about(resource, entry)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "recommendations.json")


async def test_of_a_limit_that_the_fleet_shares_the_fleet_is_advised(file: File) -> None:
    fleets = msgspec.structs.replace(ADVISED, instance="fleet prod")
    file.write(ADVISED, fleets)
    assert (await file.about(fleet=True)).recommendation == fleets
    assert (await file.about()).recommendation == ADVISED


async def test_recommendation_comes_with_the_edit_that_applies_it(file: File) -> None:
    others = [msgspec.structs.replace(ADVISED, name=f"orders{n}") for n in range(2000)]
    elsewhere = msgspec.structs.replace(ADVISED, instance="broker-b", recommended_rate_per_s=1.0)
    file.write(elsewhere, *others, ADVISED)
    found = await file.about()
    assert (found.recommendation, found.problem, found.why_not) == (ADVISED, None, "")
    assert found.edit == {
        "rate": 650.0,
        "count": "messages",
        "reason": "Asked for 620/s. Confidence: high.",
        "ttl_s": None,
    }
    assert (found.path, found.made_at, found.age_s) == (str(file.path), "2026-01-02T03:00:00Z", 7200.0)
    assert (found.from_at, found.until_at) == ("1970-01-01T00:00:00.000Z", "1970-01-01T00:01:00.000Z")


@pytest.mark.parametrize(
    ("change", "edit"),
    [
        ({"recommended_bytes_per_s": 1000.0, "recommended_rate_per_s": None}, {"bytes_per_s": 1000.0}),
        (
            {"action": "share", "fair_by": "client", "max_fair_keys": 300, "recommended_rate_per_s": None},
            {"fair_by": "client", "max_fair_keys": 300},
        ),
        ({"action": "lower", "only_with": "lower"}, {"rate": 650.0, "count": "messages"}),
    ],
)
async def test_edit_changes_only_the_recommended_fields(
    file: File, change: dict[str, Any], edit: dict[str, Any]
) -> None:
    file.write(msgspec.structs.replace(ADVISED, **change))
    found = (await file.about()).edit
    assert {key: value for key, value in found.items() if key not in {"reason", "ttl_s"}} == edit


async def test_a_limit_that_is_off_holds_again(file: File) -> None:
    file.write(msgspec.structs.replace(ADVISED, rate_per_s=None))
    assert (await file.about(action="off")).edit["action"] is None


@pytest.mark.parametrize(
    ("advised", "limit", "why"),
    [
        ({}, {"rate": 400.0}, "the limit is now 400/s, but was 500/s in the report"),
        ({}, {"count": "requests"}, "the limit has changed and now counts requests"),
        ({}, {"rate": 650.0}, "already active"),
        ({}, {"exempt": True}, "exempt, so it is never limited"),
        ({}, {"between": "02:00-03:00"}, "its limit applies only during certain hours; change it in the configuration"),
        ({"action": "keep"}, {}, "no change is recommended"),
        ({"action": "unused"}, {}, "never used; unset it if it is not needed"),
        ({"recommended_rate_per_s": None}, {}, "no rate is recommended"),
        (
            {"recommended_rate_per_s": 0.0},
            {},
            "a rate of 0 refuses everything; if that is intended, set it with `sluice limits set`",
        ),
    ],
)
async def test_a_recommendation_for_another_limit_is_explained_and_offers_no_edit(
    file: File, advised: dict[str, Any], limit: dict[str, Any], why: str
) -> None:
    file.write(msgspec.structs.replace(ADVISED, **advised))
    found = await file.about(**limit)
    assert (found.edit, found.why_not) == (None, why)
    assert found.recommendation is not None


async def test_a_report_without_it_or_of_others_is_named(file: File) -> None:
    file.write(msgspec.structs.replace(ADVISED, name="other"))
    found = await file.about()
    assert (found.recommendation, found.problem, found.made_at) == (None, None, "2026-01-02T03:00:00Z")
    file.write(ADVISED, instances=("a", "b", "c", "d"))
    found = await file.about(Resource("topic", "none"))
    assert found.problem == f"{file.path} was made for a, b, c and 1 more, not for broker-a"


async def test_invalid_report_is_a_problem_with_a_remedy(file: File, tmp_path: Path) -> None:
    async def problem() -> str:
        text: str = (await file.about()).problem
        return text.removeprefix(f"{file.path}: ")

    assert await problem() == (
        f"there is no report yet: {file.path} does not exist; create it with `sluice report --out {tmp_path}`"
    )
    file.path.write_text("[1]\n")
    assert await problem() == "not a recommendations.json made by `sluice report`; run `sluice report` again"
    file.write(msgspec.structs.replace(ADVISED, recommended_rate_per_s=-5.0))
    assert await problem() == "not a recommendations.json made by `sluice report`; run `sluice report` again"
    file.write(ADVISED, period=Period(from_s=0, until_s=10**12))
    assert await problem() == "not a recommendations.json made by `sluice report`; run `sluice report` again"
    file.write(ADVISED, version=2)
    assert await problem() == "found version 2, expected 1; run `sluice report` again"
    file.write()
    file.path.write_bytes(file.path.read_bytes() + b'{"kind":"topic","name":"orders"}\n')
    assert await problem() == "not a recommendations.json made by `sluice report`; run `sluice report` again"
    file.path.unlink()
    file.path.mkdir()
    assert await problem() == "this is a folder; give the path of the recommendations.json in it"
    file.path.rmdir()
    os.mkfifo(file.path)
    assert await problem() == "not a regular file"


async def test_a_disk_that_does_not_answer_is_reported(
    file: File, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def hangs(*_: Any, **__: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio.to_thread, "run_sync", hangs)
    assert (await file.about()).problem == f"{file.path}: the disk has not responded for 15 s"


async def test_without_a_search_the_answer_has_the_reason() -> None:
    assert (await AdviceReader().about(ORDERS, IN_FORCE)).problem == (
        'recommendations are off: report.recommendations = "off"'
    )
    path, why = usual(ReportSettings(), None)
    assert (await AdviceReader(path, why=why).about(ORDERS, IN_FORCE)).problem == (
        "there is no state directory, so there is no default report; set report.recommendations"
    )


def test_it_is_searched_at_the_configured_path_or_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert usual(ReportSettings(), Path("/state")) == (Path("/state/report/recommendations.json"), "")
    assert Path("/state") / USUAL == Path("/state/report/recommendations.json")
    given = ReportSettings(recommendations="out/recommendations.json")
    assert usual(given, Path("/state")) == (tmp_path / "out" / "recommendations.json", "")
    assert usual(ReportSettings(recommendations="off"), Path("/state")) == (None, "")
