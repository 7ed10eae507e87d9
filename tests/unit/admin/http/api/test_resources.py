"""One resource: its history, the report's recommendation, its row and its connections."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from served_api import as_author, mount

from admin.common.recommendations import Recommendation, RecommendationsFile
from admin.http.api import application
from admin.rejection_log.advice import AdviceReader
from admin.rejection_log.history import HistoryReader
from admin.rejection_log.records import RejectionRecord, line_of
from admin.wire import ResourceAdvice, ResourceHistory

ODD = "vhost/%2F?a=b [x]"


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


@pytest.fixture
async def client(served: Any, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The API with a log folder with a refusal of an odd name, and a report about it."""
    record = RejectionRecord(
        v=1,
        instance="me",
        run="0a1b2c3d4e5f",
        n=1,
        at_s=int(time.time()) - 5,
        kind="topic",
        name=ODD,
        client="10.0.0.9",
        rule="topic:*",
        verdict="refuse",
        requests=2,
        messages=3,
        bytes=4,
    )
    (tmp_path / "rejections-me-0a1b2c3d4e5f-000001.jsonl").write_bytes(line_of(record))
    advised = Recommendation(
        instance="me",
        kind="topic",
        name=ODD,
        action="raise",
        rate_per_s=1000.0,
        recommended_rate_per_s=1500.0,
        evidence="Busy.",
    )
    head = msgspec.json.encode(RecommendationsFile(made_at="2026-01-02T03:04:05Z", instances=("me",)))
    path = tmp_path / "recommendations.json"
    path.write_bytes(head.removesuffix(b"]}") + b"\n" + msgspec.json.encode(advised) + b"\n]}\n")
    services = replace(served.services, history=HistoryReader(tmp_path), advice=AdviceReader(path, "me"))
    transport = httpx2.ASGITransport(as_author(mount(application(services))))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost/api/v1/", trust_env=False) as client:
        yield client


async def test_the_past_of_any_name_is_read(client: httpx2.AsyncClient) -> None:
    answer = await client.get(f"history/topic/{quoted(ODD)}?seconds=60")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    history = msgspec.json.decode(answer.content, type=ResourceHistory)
    assert (history.kind, history.name, len(history.passed)) == ("topic", ODD, 60)
    assert [(each.client, each.messages_refused) for each in history.clients] == [("10.0.0.9", 3)]
    assert msgspec.json.decode((await client.get("history/topic/other")).content, type=ResourceHistory).clients == ()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("history/topic/orders?seconds=59", "seconds"),
        ("history/topic/orders?seconds=3601", "seconds"),
        ("history/tpoic/orders", "kind"),
        ("history/topic/", "name"),
        ("advice/tpoic/orders", "kind"),
        ("advice/topic/", "name"),
    ],
)
async def test_invalid_query_names_its_field(client: httpx2.AsyncClient, path: str, field: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == [field]


async def test_advice_is_put_in_force_by_its_own_edit(served: Any, client: httpx2.AsyncClient) -> None:
    advice = msgspec.json.decode((await client.get(f"advice/topic/{quoted(ODD)}")).content, type=ResourceAdvice)
    assert (advice.why_not, advice.problem) == ("", None)
    name = quoted(ODD.replace("[", "[[]").replace("?", "[?]"))
    written = await client.patch(f"limits/topic/{name}", json=advice.edit)
    assert written.status_code == 200, written.text
    assert (written.json()["new"]["rate"], written.json()["reason"]) == (1500, "Busy. Confidence: low.")
    assert written.json()["limit"]["exact"]
    again = (await client.get(f"advice/topic/{quoted(ODD)}")).json()
    assert (again["edit"], again["why_not"]) == (None, "already active")


async def test_without_a_log_or_a_report_the_answers_say_so(served: Any) -> None:
    history = (await served.get("history/topic/orders")).json()
    assert history["problem"] == "the rejection log is off, so there is no history"
    advice = (await served.get("advice/topic/orders")).json()
    assert (advice["recommendation"], advice["path"]) == (None, None)
    assert advice["problem"].startswith("recommendations are off")
