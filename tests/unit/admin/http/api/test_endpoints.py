"""Switches, audit, connections, rules, explain, state."""

from typing import Any

import msgspec
import pytest

from admin.wire import PROBLEM, ConnectionPage, sentences
from proxy.stats.question import Explanation, Question
from proxy.stats.snapshot import ClientDescription, ConnectionState


def connection(number: int, **how: Any) -> ConnectionState:
    given: dict[str, Any] = {
        "id": number,
        "listener": "main",
        "peer": f"10.0.0.{number}:4000",
        "client": ClientDescription(f"client-{number}", "JAVA", "V5"),
        "exempt": False,
        "bytes_total": {"client": 10 * number, "broker": 5},
        "requests_total": number,
        "refused_total": 0,
        "in_flight": 0,
        "resources": ("topic:orders",) if number % 2 else (),
    }
    return ConnectionState(**(given | how))


async def test_limiting_is_switched_off_and_back(served: Any) -> None:
    listed = (await served.get("switches")).json()["switches"]
    assert listed[0]["kind"] == "all"
    answer = await served.put("switches/all", {"limiting": False, "reason": "fire", "ttl_s": 60})
    assert (answer.status_code, answer.json()["target"]) == (200, "switches/all")
    state = (await served.get("state")).json()
    assert (state["limiting"], "all" in state["off"]) == (False, True)
    assert state["edits"] == {
        "standing": 1,
        "expiring_next": {"target": "switches/all", "expires_at": answer.json()["expires_at"]},
    }
    stale = await served.put("switches/all", {"limiting": True}, headers={"If-Match": f'"{listed[0]["etag"]}"'})
    assert stale.status_code == 412
    assert (await served.ask("DELETE", "switches/all?reason=over")).json()["reason"] == "over"
    assert (await served.get("state")).json()["limiting"] is True
    assert (await served.ask("DELETE", "switches/all")).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "limiting"), ({"limiting": 0}, "limiting"), ({"limiting": False, "ttl": 1}, "ttl"), ([], "")],
)
async def test_a_wrong_switch_is_a_problem(served: Any, body: Any, field: str) -> None:
    answer = await served.put("switches/all", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


async def test_the_audit_trail_is_read_in_pages(served: Any) -> None:
    for rate in range(5):
        await served.put("limits/topic/orders", {"rate": rate})
    first = (await served.get("audit?limit=2")).json()
    assert ([each["id"] for each in first["changes"]], first["next"]) == ([5, 4], 4)
    second = (await served.get(f"audit?limit=3&before={first['next']}")).json()
    assert ([each["id"] for each in second["changes"]], second["next"]) == ([3, 2, 1], None)
    assert (await served.get("audit?target=limits/retry_group/")).json()["changes"] == []
    assert len((await served.get("audit?by=alice")).json()["changes"]) == 5
    assert (await served.get("audit/3")).json()["new"]["rate"] == 2
    assert (await served.get("audit/9")).status_code == 404
    assert (await served.get("audit/0")).status_code == 400


async def test_a_change_is_undone_unless_a_later_one_conflicts(served: Any) -> None:
    await served.put("limits/topic/orders", {"rate": 1})
    await served.put("limits/topic/orders", {"rate": 2})
    blocked = await served.ask("POST", "audit/1/revert", json={"reason": "x"})
    assert (blocked.status_code, blocked.headers["content-type"]) == (409, PROBLEM)
    assert "2" in blocked.json()["detail"]
    tried = await served.ask("POST", "audit/2/revert?dry_run=1")
    assert (tried.status_code, tried.json()["id"]) == (200, 0)
    assert (await served.ask("POST", "audit/2/revert")).json()["reverts"] == 2
    assert (await served.get("limits/topic/orders")).json()["limit"]["rate"] == 1
    forced = await served.ask("POST", "audit/1/revert", json={"force": True})
    assert forced.status_code == 200
    assert (await served.ask("POST", "audit/99/revert", json={})).status_code == 404
    assert (await served.ask("POST", "audit/1/revert", json={"force": 1})).status_code == 400


async def test_connections_are_searched_sorted_and_paged(served: Any) -> None:
    served.data_path.connections_now = tuple(connection(number) for number in range(1, 6))
    page = msgspec.json.decode(
        (await served.get("connections?sort=id&order=desc&limit=2")).content, type=ConnectionPage
    )
    assert ([row.id for row in page.rows], page.total) == ([5, 4], 5)
    assert page.rows[0].bytes_per_s is None
    for search, found in (("10.0.0.3", [3]), ("CLIENT-4", [4]), ("topic:orders", [1, 3, 5]), ("nobody", [])):
        rows = (await served.get("connections", params={"search": search})).json()["rows"]
        assert [row["id"] for row in rows] == found


async def test_a_connection_is_closed_once(served: Any) -> None:
    served.data_path.connections_now = (connection(1),)
    answer = await served.ask("DELETE", "connections/1?reason=runaway")
    assert answer.json() == {"id": 1, "closed": True}
    assert served.data_path.closed == [(1, "alice: runaway")]
    served.data_path.connections_now = ()
    assert (await served.ask("DELETE", "connections/1")).status_code == 404
    assert (await served.ask("DELETE", "connections/x")).status_code == 400


async def test_rules_are_listed_as_they_are_tried(served: Any) -> None:
    body = (await served.get("rules?kind=topic")).json()
    names = [row["rule"] for row in body["rows"]]
    assert names.index("topic:orders") < names.index("topic:audit-*") < names.index("topic:*")
    timed = [row for row in body["rows"] if row["hours"]]
    assert [row["pattern"] for row in timed] == ["orders"]
    page = (await served.get("rules?offset=1&limit=1")).json()
    assert [row["position"] for row in page["rows"]] == [1]


async def test_an_explanation_reads_back(served: Any, explanation: Explanation) -> None:
    served.data_path.explanation = explanation
    answer = await served.get("explain?kind=topic&name=a%20%26%C3%A9&client=10.1.2.3")
    assert msgspec.json.decode(answer.content, type=Explanation) == sentences.explained(explanation, live=True)
    assert served.data_path.asked == [Question("topic", "a &é", "10.1.2.3")]


async def test_missing_resources_and_impossible_edits_are_problems(served: Any) -> None:
    gone = await served.get("nothing")
    assert (gone.status_code, gone.headers["content-type"]) == (404, PROBLEM)
    wrong = await served.ask("POST", "limits/topic/orders")
    assert (wrong.status_code, wrong.headers["content-type"]) == (405, PROBLEM)
    assert wrong.headers["allow"] == "DELETE, GET, HEAD, PATCH, PUT"
