from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from admin.edits.fleet_log import FleetLog
from admin.wire import MAX_EDITS, PROBLEM
from proxy.control import FleetError


def fields(answer: Any) -> list[str]:
    assert answer.headers["content-type"] == PROBLEM
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["title"]
    return [each["field"] for each in body["errors"]]


async def test_an_edit_answers_the_change_and_is_in_force(served: Any) -> None:
    answer = await served.put("limits/topic/orders", {"rate": 10, "reason": "why", "ttl_s": 60})
    assert answer.status_code == 200
    change = answer.json()
    assert (change["id"], change["by"], change["target"]) == (1, "alice", "limits/topic/orders")
    assert (change["old"]["rate"], change["new"]["rate"], change["reason"]) == (500, 10, "why")
    assert change["expires_at"]
    entry = (await served.get("limits/topic/orders")).json()
    assert (entry["limit"]["rate"], entry["edit"]["change_id"], entry["configured"]["limit"]["rate"]) == (10, 1, 500)
    assert served.data_path.applied[-1].version == served.edits.rule_set.version


async def test_a_limit_is_patched_and_answered_as_it_now_is(served: Any) -> None:
    await served.put("limits/topic/orders", {"rate": 10, "burst_s": 5, "ttl_s": 60})
    answer = await served.ask("PATCH", "limits/topic/orders", json={"rate": 20, "reason": "why"})
    assert answer.status_code == 200
    written = answer.json()
    assert (written["limit"]["limit"]["rate"], written["limit"]["limit"]["burst_s"]) == (20, 5)
    assert written["expires_at"] == written["before"]["expires_at"]
    assert written["limit"]["etag"] == answer.headers["etag"].strip('"')
    assert (await served.ask("PATCH", "limits/topic/orders?dry_run=1", json={"rate": 1})).json()["limit"] is None
    for nothing in ({"reason": "why"}, {"rates": 5}):
        assert (await served.ask("PATCH", "limits/topic/orders", json=nothing)).status_code == 400


@pytest.mark.parametrize("name", ["a/b", "/a", "a%2Fb", "../x", "ä€😀", "a b", "a?b", "a#b", "a+b", '"<i>'])
async def test_a_name_may_have_any_characters(served: Any, name: str) -> None:
    path = f"limits/topic/{quote(name, safe='')}"
    answer = await served.put(path, {"rate": 10})
    if answer.status_code == 400:
        assert fields(answer) == ["name"]
        return
    assert answer.json()["target"] == f"limits/topic/{name}"
    assert (await served.get(path)).json()["name"] == name


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("limits/topic/", 400, ["name"]),
        ("limits/topic/a%01b", 400, ["name"]),
        ("limits/topi/orders", 404, []),
        ("limits/topic", 404, []),
        ("limits", 405, []),
    ],
)
async def test_an_invalid_name_is_a_problem(served: Any, path: str, status: int, field: list[str]) -> None:
    answer = await served.put(path, {"rate": 1})
    assert answer.status_code == status
    assert field == [each for each in fields(answer) if each in field]
    assert served.edits.limits() is served.edits.limits()
    assert all(entry.edit is None for entry in served.edits.limits())


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"rate": -1}, "rate", "must be a non-negative number"),
        ({"rat": 1}, "rat", 'did you mean "rate"?'),
        ({"rate": 1, "ttl_s": 0}, "ttl_s", "more than 0"),
        ({"rate": 1, "ttl_s": 1e300}, "ttl_s", "at most"),
        ({"rate": 1, "ttl_s": True}, "ttl_s", "must be a number"),
        ({"rate": 1, "reason": 5}, "reason", "must be text in quotes; found 5"),
        ({"rate": 1, "reason": "x" * 1001}, "reason", "at most 1000 characters"),
        ({"rate": 1, "break_s": 9}, "break_s", "is longer than burst_s"),
        ({"rate": 1, "kind": "topic"}, "kind", "because it is part of the path"),
        ({"rate": 1, "between": "25:00-26:00"}, "between", "25:00"),
        ({}, "rate", "no limit is set; allowed: rate or bytes_per_s"),
    ],
)
async def test_invalid_limit_names_the_field(served: Any, body: dict[str, Any], field: str, said: str) -> None:
    answer = await served.put("limits/topic/orders", body)
    assert answer.status_code in (400, 404)
    assert fields(answer) == [field]
    assert said in answer.json()["errors"][0]["detail"]
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b'{"rate": NaN}',
        b'{"rate": 1e999}',
        b'{"reason": "\\ud800"}',
        b"\xff",
        b"[" * 100_000,
        b'{"rate": ' + b"9" * 5000 + b"}",
    ],
)
async def test_a_body_other_than_an_object_is_a_problem(served: Any, body: bytes) -> None:
    answer = await served.ask("PUT", "limits/topic/orders", content=body)
    assert answer.status_code == 400
    assert "the body must be a JSON object" in answer.json()["detail"]


@pytest.mark.parametrize("of", ["limits/topic/orders", "limits/topic/*", "limits/total/topic%3Abulk-*"])
async def test_conditions_hold_for_every_sort_of_limit(served: Any, of: str) -> None:
    etag = (await served.get(of)).headers["etag"]
    body = {"rate": 10}
    for tags in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        answer = await served.get(of, headers={"If-None-Match": tags})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await served.put(of, body, headers={"If-Match": "*"})).status_code == 412
    assert (await served.put(of, body, headers={"If-Match": f"W/{etag}"})).status_code == 412
    assert (await served.put(of, body, headers={"If-None-Match": etag})).status_code == 412
    assert (await served.put(of, body, headers={"If-Match": f'"other" , {etag},'})).status_code == 200
    assert (await served.put(of, body, headers={"If-None-Match": "*"})).status_code == 412
    assert (await served.put(of, {"rate": 11}, headers={"If-Match": "*"})).status_code == 200
    stale = await served.ask("DELETE", of, headers={"If-Match": etag})
    assert (stale.status_code, stale.headers["etag"]) == (412, (await served.get(of)).headers["etag"])
    assert "alice changed it" in stale.json()["detail"]
    assert (await served.ask("DELETE", of, headers={"If-Match": "*"})).status_code == 200
    assert (await served.put(of, body, headers={"If-None-Match": "*"})).status_code == 200


@pytest.mark.parametrize("value", ["", "abc", '"abc', '"a" "b"', '*, "a"', "W/", ","])
async def test_a_condition_that_cannot_be_read_is_a_problem(served: Any, value: str) -> None:
    answer = await served.put("limits/topic/orders", {"rate": 10}, headers={"If-Match": value})
    assert answer.status_code == 400
    assert fields(answer) == ["if-match"]


async def test_a_batch_is_done_whole(served: Any) -> None:
    edits = [
        {"type": "set_limit", "kind": "topic", "name": "orders", "limit": {"rate": 10}, "reason": "its own"},
        {"type": "set_switch", "kind": "retry_group", "limiting": False},
        {"type": "unset_limit", "kind": "topic", "name": "orders"},
    ]
    answer = await served.ask("POST", "limits:batch", json={"edits": edits, "reason": "all"})
    assert answer.status_code == 200
    assert [(each["action"], each["reason"]) for each in answer.json()["changes"]] == [
        ("set", "its own"),
        ("set", "all"),
        ("unset", "all"),
    ]


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ({"type": "set_limit", "kind": "topic", "name": "x", "limit": {"rate": "x"}}, "edits.1.rate"),
        ({"type": "set_limit", "kind": "topi", "name": "x", "limit": {"rate": 1}}, "edits.1.kind"),
        ({"type": "set_limit", "kind": "topic", "name": "", "limit": {"rate": 1}}, "edits.1.name"),
        ({"type": "set_limit", "kind": "topic", "name": "x"}, "edits.1.limit"),
        ({"type": "set_limit", "kind": "topic", "name": 5, "limit": {}}, "edits.1.name"),
        ({"type": "set_limit", "kind": "topic", "name": "x", "limit": {}, "resaon": "x"}, "edits.1.resaon"),
        ({"type": "set_switch", "kind": "all", "limiting": 1}, "edits.1.limiting"),
        ({"type": "set_switch", "kind": "all", "limiting": False, "ttl_s": -1}, "edits.1.ttl_s"),
        ({"type": "st_limit"}, "edits.1.type"),
        ({}, "edits.1.type"),
        (5, "edits.1"),
    ],
)
async def test_a_batch_with_one_fault_changes_nothing(served: Any, edit: Any, field: str) -> None:
    good = {"type": "set_limit", "kind": "topic", "name": "orders", "limit": {"rate": 10}}
    answer = await served.ask("POST", "limits:batch", json={"edits": [good, edit]})
    assert answer.status_code == 400
    assert fields(answer) == [field]
    assert answer.json()["errors"][0]["edit"] == 1
    assert (await served.get("limits/topic/orders")).json()["edit"] is None


@pytest.mark.parametrize("edits", [None, [], "x", [{}] * 10_001])
async def test_a_batch_has_edits(served: Any, edits: Any) -> None:
    answer = await served.ask("POST", "limits:batch", json={} if edits is None else {"edits": edits})
    assert (answer.status_code, fields(answer)) == (400, ["edits"])


async def test_the_drift_is_the_list_of_edits(served: Any) -> None:
    before = await served.get("diff")
    assert before.json()["total"] == 0
    for name in ("a", "b", "c"):
        await served.put(f"limits/topic/{name}", {"rate": 1})
    await served.put("switches/topic", {"limiting": False})
    answer = await served.get("diff?offset=1&limit=1", headers={"If-None-Match": before.headers["etag"]})
    assert (answer.json()["total"], len(answer.json()["limits"])) == (3, 1)
    assert [each["kind"] for each in answer.json()["switches"]] == ["topic"]


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ("limti=3", "limti", 'did you mean "limit"?'),
        ("limit=501", "limit", "at most 500"),
        ("limit=x", "limit", "whole number"),
        ("offset=-1", "offset", "at least 0"),
        ("sort=a&sort=b", "sort", "more than once"),
        ("sort=x", "sort", '"name"'),
        ("filter=x", "filter", '"edited"'),
        ("order=up", "order", '"desc"'),
        ("history=maybe", "history", "true or false"),
        ("search=" + "x" * 256, "search", "255"),
    ],
)
async def test_a_wrong_query_is_a_problem_that_names_the_parameter(
    served: Any, query: str, field: str, said: str
) -> None:
    for path in ("limits", "events"):
        answer = await served.get(f"{path}?{query}")
        assert (answer.status_code, fields(answer)) == (400, [field])
        assert said in answer.json()["errors"][0]["detail"]


async def test_a_write_returns_the_tag_of_its_result(served: Any) -> None:
    first = await served.put("limits/topic/orders", {"rate": 10})
    assert first.headers["etag"] == (await served.get("limits/topic/orders")).headers["etag"]
    second = await served.put("limits/topic/orders", {"rate": 11}, headers={"If-Match": first.headers["etag"]})
    assert second.status_code == 200
    dry = await served.put("limits/topic/orders?dry_run=1", {"rate": 12})
    assert dry.headers["etag"] == second.headers["etag"]
    gone = await served.ask("DELETE", "limits/topic/orders")
    assert gone.headers["etag"] == (await served.get("limits/topic/orders")).headers["etag"]
    off = await served.put("switches/topic", {"limiting": False})
    assert off.headers["etag"] == (await served.get("switches/topic")).headers["etag"]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "limits/topic/orders:reset"), ("DELETE", "limits/topic/orders"), ("POST", "reload")]
)
async def test_an_unexpected_body_is_refused(served: Any, method: str, path: str) -> None:
    answer = await served.ask(method, path, json={"reason": "why"})
    assert answer.status_code == 400
    assert fields(answer) == ["body"]
    assert "no body" in answer.json()["detail"]
    assert await served.edits.audit() == ()


async def test_of_thousands_of_unknown_keys_some_are_listed(served: Any) -> None:
    answer = await served.put("limits/topic/orders", {f"key{number}": 0 for number in range(5000)})
    assert (answer.status_code, len(fields(answer))) == (400, 20)


async def test_a_batch_can_expect_the_tag_of_all_limits(served: Any) -> None:
    etag = (await served.get("limits")).headers["etag"]
    edits = {"edits": [{"type": "set_limit", "kind": "topic", "name": "orders", "limit": {"rate": 10}}]}
    assert (await served.ask("POST", "limits:batch", json=edits, headers={"If-Match": etag})).status_code == 200
    stale = await served.ask("POST", "limits:batch", json=edits, headers={"If-Match": etag})
    assert stale.status_code == 412
    assert (await served.ask("POST", "limits:batch", json=edits, headers={"If-Match": "*"})).status_code == 200


async def test_a_batch_of_more_values_than_edits_can_have_is_not_taken_apart(served: Any) -> None:
    body = '{"edits": [' + "0," * (MAX_EDITS * 40 + 1) + "0]}"
    answer = await served.ask("POST", "limits:batch", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "or more values than" in answer.text


async def test_an_edit_for_the_fleet_needs_a_fleet_and_its_redis(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = await served.put("limits/topic/orders?fleet=1", {"rate": 10})
    assert alone.status_code == 400
    assert "omit fleet=1" in alone.json()["detail"]

    async def read() -> None:
        raise FleetError("connection refused; start Redis, or correct fleet.url")

    monkeypatch.setattr(served.data_path, "read_fleet_edits", read)
    served.edits._fleet_log = FleetLog("f", "a")
    for method, path, body in (
        ("PUT", "limits/topic/orders", {"rate": 10}),
        ("PATCH", "limits/topic/orders", {"rate": 10}),
        ("POST", "limits:batch", {"edits": [{"type": "set_switch", "kind": "all", "limiting": False}]}),
        ("PUT", "switches/all", {"limiting": False}),
    ):
        answer = await served.ask(method, f"{path}?fleet=1", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (503, PROBLEM)
        assert "start Redis, or correct fleet.url; nothing was changed" in answer.json()["detail"]
    assert (await served.put("limits/topic/orders?fleet=1&volatile=1", {"rate": 10})).status_code == 400
    assert (await served.put("limits/topic/orders?fleet=1&dry_run=1", {"rate": 10})).status_code == 200
    assert await served.edits.audit() == ()


async def test_a_reset_of_a_fleets_limit_is_refused_with_what_to_do_instead(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = served.edits.limit("topic", "orders")
    fleets = msgspec.structs.replace(entry, limit=entry.limit | {"fleet": True})
    monkeypatch.setattr(served.edits, "limit", lambda *_: fleets)
    answer = await served.ask("POST", "limits/topic/orders:reset")
    assert answer.status_code == 409
    assert "raise the limit temporarily with fleet=1 (--fleet) and ttl_s (--ttl)" in answer.json()["detail"]
