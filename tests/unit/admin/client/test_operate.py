import json
from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., dict[str, Any]]
Sluice = Callable[..., Any]


def switch(kind: str, *, limiting: bool = True, edit: Any = None) -> dict[str, Any]:
    return {"kind": kind, "limiting": limiting, "configured": True, "edit": edit, "etag": "e"}


class TestSwitch:
    def test_shows_what_is_off(self, api: Any, sluice: Sluice, entry: Make) -> None:
        off = switch("topic", limiting=False, edit=entry()["edit"] | {"limiting": False})
        api.answers["GET /switches"] = (200, {"switches": [switch("all"), off]})
        lines = sluice("switch").out.splitlines()
        assert lines[1].split() == ["all", "on", "on"]
        assert lines[2].split()[:5] == ["topic", "OFF", "on", "change", "17"]

    def test_switches_everything_off_for_a_while(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["PUT /switches/all"] = (
            200,
            change("switches/all", old={"limiting": True}, new={"limiting": False}),
        )
        ran = sluice("switch", "off", "--reason", "incident", "--ttl", "10m")
        assert api.asked[0].body == {"limiting": False, "reason": "incident", "ttl_s": 600.0}
        assert ran.out.startswith("switch all: on → off\n")

    def test_switches_one_kind_on(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["PUT /switches/topic"] = (200, change("switches/topic", old=None, new={"limiting": True}))
        assert sluice("switch", "on", "--kind", "topic").exit_code == 0
        assert api.asked[0].body == {"limiting": True, "reason": ""}

    def test_of_an_unknown_kind_names_the_flag(self, api: Any, sluice: Sluice, problem: Any) -> None:
        api.answers["PUT /switches/x"] = problem(404, "no", {"field": "kind", "detail": 'no kind "x"; there are all'})
        ran = sluice("switch", "off", "--kind", "x")
        assert (ran.exit_code, ran.err) == (2, 'sluice: no kind "x"; there are all\n')

    def test_reset_lets_all_stand_as_configured(self, api: Any, sluice: Sluice, entry: Make, change: Make) -> None:
        off = switch("all", limiting=False, edit=entry()["edit"])
        api.answers["GET /switches"] = (200, {"switches": [off, switch("topic")]})
        api.answers["POST /limits:batch"] = (200, {"changes": [change("switches/all")]})
        assert sluice("switch", "reset").exit_code == 0
        assert api.writes()[0].body == {"edits": [{"type": "unset_switch", "kind": "all"}]}

    def test_reset_of_nothing_is_exit_code_5(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /switches"] = (200, {"switches": [switch("all")]})
        assert sluice("switch", "reset").exit_code == 5

    def test_reset_of_one_kind(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["DELETE /switches/topic"] = (200, change("switches/topic"))
        assert sluice("switch", "reset", "--kind", "topic", "--dry-run").exit_code == 0
        assert api.asked[0].query == {"dry_run": "1"}


class TestReload:
    def test_says_what_changed_and_what_did_not(self, api: Any, sluice: Sluice, change: Make) -> None:
        report = {
            "change": change("configuration", action="reload"),
            "changed": ["topic:orders = 500/s"],
            "needs_restart": ["listeners"],
            "warnings": ["doubtful"],
            "hidden": ["topic:mail = 5/s"],
        }
        api.answers["POST /reload"] = (200, report)
        assert sluice("reload").out.splitlines() == [
            "changed: topic:orders = 500/s",
            "needs a restart: listeners",
            "hidden by an edit: topic:mail = 5/s",
            "warning: doubtful",
            "change 17 by ada",
        ]

    def test_of_the_same_says_so(self, api: Any, sluice: Sluice) -> None:
        api.answers["POST /reload"] = (200, {"change": None})
        assert sluice("reload", "--dry-run").out == "nothing would change\n"
        assert api.asked[0].query == {"dry_run": "1"}

    def test_of_what_is_wrong_says_each_fault(self, api: Any, sluice: Sluice, problem: Any) -> None:
        faults = [{"field": "", "detail": "sluice.toml:3: rate = -1: must be"}]
        api.answers["POST /reload"] = problem(409, "the configuration is wrong; nothing was changed", *faults)
        ran = sluice("reload")
        assert ran.exit_code == 2
        assert ran.err.splitlines() == [
            "sluice: the configuration is wrong; nothing was changed",
            "sluice: sluice.toml:3: rate = -1: must be",
        ]


class TestAudit:
    def test_says_who_changed_what(self, api: Any, sluice: Sluice, change: Make) -> None:
        undone = change(id=18, action="revert", reverts=17, reason="too much")
        api.answers["GET /audit"] = (200, {"changes": [undone, change()], "next": None})
        lines = sluice("audit", "--target", "limits/", "--by", "ada").out.splitlines()
        assert lines[1].startswith("18   2026-11-2")
        assert "revert of 17   topic orders   500/s → 1000/s   too much" in lines[1]
        assert api.asked[0].query == {"target": "limits/", "by": "ada", "limit": "100"}

    def test_pages_until_it_has_enough(self, api: Any, sluice: Sluice, change: Make) -> None:
        def answer(request: Any) -> Any:
            first, most = int(request.query.get("before", 2001)) - 1, int(request.query["limit"])
            return 200, {"changes": [change(id=first - at) for at in range(most)], "next": first - most + 1}

        api.answers["GET /audit"] = answer
        body = json.loads(sluice("audit", "--limit", "700", "--json").out)
        assert [each["id"] for each in body["changes"]] == list(range(2000, 1300, -1))

    def test_of_nothing_says_so(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /audit"] = (200, {"changes": [], "next": None})
        assert sluice("audit").out == "Nothing has been changed.\n"

    def test_revert_undoes_one(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["POST /audit/17/revert"] = (200, change(id=18, action="revert", reverts=17))
        ran = sluice("audit", "revert", "17", "--reason", "too much", "--force")
        assert api.asked[0].body == {"reason": "too much", "force": True}
        assert "`sluice audit revert 18` undoes it" in ran.out

    def test_revert_of_what_was_changed_since_is_exit_code_3(self, api: Any, sluice: Sluice, problem: Any) -> None:
        api.answers["POST /audit/17/revert"] = problem(409, "change 19 changed it since; force reverts all the same")
        ran = sluice("audit", "revert", "17")
        assert (ran.exit_code, ran.err) == (3, "sluice: change 19 changed it since; force reverts all the same\n")


CONNECTION = {
    "id": 3,
    "listener": "main",
    "peer": "10.0.0.1:5",
    "client": {"id": "orders@1", "language": "JAVA", "version": "5.3.0"},
    "exempt": False,
    "requests_total": 10,
    "refused_total": 2,
    "in_flight": 1,
    "resources": ["topic:orders"],
    "more_resources": 2,
    "age_s": 61.0,
}


class TestConnections:
    @pytest.mark.parametrize("command", [["connections"], ["connections", "list"]])
    def test_are_listed(self, api: Any, sluice: Sluice, command: list[str]) -> None:
        api.answers["GET /connections"] = (200, {"rows": [CONNECTION], "total": 1})
        lines = sluice(*command, "--search", "orders", "--sort", "age", "--desc").out.splitlines()
        assert " ".join(lines[1].split()) == (
            "3 10.0.0.1:5 orders@1 JAVA 5.3.0 main 1 min 1 s 10 2 1 topic:orders and 2 more"
        )
        assert api.asked[0].query["order"] == "desc"

    def test_of_nobody_says_so(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /connections"] = (200, {"rows": [], "total": 0})
        assert sluice("connections").out == "Nobody is connected.\n"

    def test_can_be_closed(self, api: Any, sluice: Sluice) -> None:
        api.answers["DELETE /connections/3"] = (200, {"id": 3, "closed": True})
        assert sluice("connections", "close", "3", "--reason", "floods").out == "connection 3 is closed\n"
        assert api.asked[0].query == {"reason": "floods"}

    def test_that_are_not_there_are_exit_code_5(self, api: Any, sluice: Sluice, problem: Any) -> None:
        api.answers["DELETE /connections/3"] = problem(404, "there is no connection 3")
        assert sluice("connections", "close", "3").exit_code == 5


def test_state_says_what_an_operator_looks_for(api: Any, sluice: Sluice) -> None:
    api.answers["GET /state"] = (
        200,
        {
            "version": "0.1.0",
            "uptime_s": 90,
            "limiting": True,
            "off": ["topic"],
            "draining": False,
            "listeners": [
                {
                    "name": "main",
                    "listen": "127.0.0.2:1",
                    "broker": "127.0.0.1:1",
                    "connections": 4,
                    "reachable": False,
                    "error": "refused",
                }
            ],
            "totals": {"connections": 9, "connections_open": 4},
            "rates": {"messages_per_s": {"passed": 10.0, "refused": 2.5}},
            "bypassed": {
                "total": 5,
                "per_s_last_60s": 0.0,
                "by": [{"handler": "rate_limit", "reason": "late", "total": 5}],
            },
            "persistence": {"directory": None, "error": "disk full", "set_aside": ["edits.journal.damaged-1"]},
            "edits": {
                "standing": 2,
                "expiring_next": {"target": "limits/topic/a", "expires_at": "2026-11-21T20:00:00Z"},
            },
            "warnings": ["doubtful"],
        },
    )
    lines = sluice("state").out.splitlines()
    assert lines[0] == f"Sluice 0.1.0 at {api.url}, up for 1 min 30 s"
    assert lines[1:5] == [
        "limiting     on, OFF for topic",
        "messages/s   10 passed, 2.5 refused",
        "connections  4 open, 9 since the start",
        "listener     main: 127.0.0.2:1 -> 127.0.0.1:1 (NOT REACHABLE: refused), 4 open",
    ]
    assert lines[5] == "bypassed     5 requests since the start (rate_limit late 5)"
    assert lines[6].startswith("edits        2 stand; topic a ends ")
    assert lines[7:] == [
        "kept in      memory: edits are lost at the restart; disk full",
        "set aside    edits.journal.damaged-1",
        "warning      doubtful",
    ]
