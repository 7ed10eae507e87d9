import json
from collections.abc import Callable
from typing import Any

import pytest

from admin.client.api import by_flag
from admin.wire import FieldProblem

Make = Callable[..., dict[str, Any]]
Sluice = Callable[..., Any]


def row(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "key": f"topic/{name}",
        "kind": "topic",
        "name": name,
        "limit_text": "500/s",
        "limit": {},
        "rule": f"topic:{name}",
        "source": "sluice.toml:3",
        "exact": True,
        "configured": None,
        "edit": None,
        "etag": "e",
        "own": True,
        "live": {
            "passed_per_s": 12.04,
            "refused_per_s": 3.0,
            "used_ratio": 0.97,
            "limited": True,
            "wait_s": 0.25,
        },
    } | fields


class TestList:
    def test_shows_limits_and_rates(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /limits"] = (200, {"rows": [row("orders"), row("quiet", live=None)], "total": 340})
        ran = sluice("limits", "list", "--limit", "2")
        assert [" ".join(line.split()) for line in ran.out.splitlines()] == [
            "kind resource limit passed/s refused/s used wait rule",
            "topic orders 500/s 12 3 97% 0.2 s topic:orders",
            "topic quiet 500/s topic:quiet",
            "",
            "2 of 340; --limit N or --all shows more",
        ]

    def test_shows_shadow_refusals_and_the_refusing_rule(self, api: Any, sluice: Sluice) -> None:
        live = {"passed_per_s": 9.0, "refused_per_s": 0.0, "shadowed_per_s": 4.0, "would_refuse": True}
        shadow = row("dark", live=live, limit={"rate": 5, "action": "shadow"})
        by = {"passed_per_s": 1, "refused_per_s": 2, "limited": True, "refused_by": "total:topic:log-*"}
        log = row("log-1", live=by, limit={"rate": 5, "action": "reject"})
        total = row("topic:log-*", kind="total", live={"refused_per_s": 2}, limit={"rate": 5})
        api.answers["GET /limits"] = (200, {"rows": [shadow, log, total], "total": 3})
        assert [" ".join(line.split()) for line in sluice("limits", "list").out.splitlines()] == [
            "kind resource limit action passed/s refused/s would refuse/s rule refused by",
            "topic dark 500/s shadow 9 0 4 topic:dark",
            "topic log-1 500/s 1 2 topic:log-1 total:topic:log-*",
            "total topic:log-* 500/s 2 topic:topic:log-*",
        ]

    def test_requests_the_wanted_data(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /limits"] = (200, {"rows": [], "total": 0})
        wanted = ["--kind", "topic", "--search", "or", "--filter", "near", "--sort", "used", "--desc", "--limit", "7"]
        ran = sluice("limits", "list", *wanted)
        assert ran.out == "Nothing matches.\n"
        assert api.asked[0].query == {
            "kind": "topic",
            "search": "or",
            "filter": "near",
            "sort": "used",
            "order": "desc",
            "history": "0",
            "limit": "7",
        }

    def test_all_as_json_is_one_list(self, api: Any, sluice: Sluice) -> None:
        def answer(request: Any) -> Any:
            return 200, {
                "rows": [row(request.query.get("offset", "0"))] * min(500, 501 - int(request.query.get("offset", "0"))),
                "total": 501,
                "etag": "e",
            }

        api.answers["GET /limits"] = answer
        body = json.loads(sluice("limits", "list", "--all", "--json").out)
        assert [each["name"] for each in body["rows"]] == ["0"] * 500 + ["500"]
        assert body["etag"] == "e"

    def test_a_name_gives_the_terminal_no_orders(self, api: Any, sluice: Sluice) -> None:
        api.answers["GET /limits"] = (200, {"rows": [row("a\x1b[2J\nb")], "total": 1})
        out = sluice("limits", "list").out
        assert "a\\x1b[2J\\nb" in out
        assert "\x1b" not in out


class TestGet:
    def test_of_a_shared_rule_is_its_total(self, api: Any, sluice: Sluice, entry: Make) -> None:
        api.answers["GET /limits/total/topic:log-%2A"] = (200, entry())
        assert sluice("limits", "get", "topic", "log-*", "--shared").exit_code == 0


class TestSet:
    def test_sends_the_whole_limit(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["PATCH /limits/topic/orders"] = (200, change())
        ran = sluice(
            *(
                "limits",
                "set",
                "topic",
                "orders",
                "1000/s",
                "--burst-s",
                "2",
                "--fair-by",
                "client",
                "--busy-code",
                "215",
            ),
            *("--days", "mon,tue", "--between", "22:00-06:00", "--reason", "a launch", "--ttl", "15m", "--volatile"),
            *("--if-match", "abc", "--allow-under-limit"),
        )
        assert ran.exit_code == 0, ran.err
        (asked,) = api.asked
        assert asked.body == {
            "rate": 1000.0,
            "burst_s": 2.0,
            "fair_by": "client",
            "busy_code": 215,
            "days": ["mon", "tue"],
            "between": "22:00-06:00",
            "allow_under_limit": True,
            "reason": "a launch",
            "ttl_s": 900.0,
        }
        assert asked.query == {"volatile": "1"}
        assert asked.headers["if-match"] == '"abc"'
        assert ran.out.splitlines() == [
            "topic orders: 500/s → 1000/s",
            "   change 17 by ada; `sluice audit revert 17` undoes it",
        ]

    def test_for_the_fleet_it_is_made_at_all_members(self, api: Any, sluice: Sluice, change: Make) -> None:
        details = ["overrides the edit by bob on b, which was made at the same time"]
        api.answers["PATCH /limits/topic/orders"] = (200, change(member="a", details=details))
        ran = sluice("limits", "set", "topic", "orders", "800", "--fleet")
        (asked,) = api.asked
        assert (asked.query, asked.body) == ({"fleet": "1"}, {"rate": 800.0})
        assert ran.out.splitlines() == [
            "topic orders: 500/s → 1000/s",
            "   overrides the edit by bob on b, which was made at the same time",
            "   change 17 by ada, on all members of the fleet; `sluice audit revert 17` undoes it",
        ]

    def test_the_field_has_a_flag_of_another_name(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["PATCH /limits/topic/orders"] = (200, change())
        assert sluice("limits", "set", "topic", "orders", "800", "--fleet-limit").exit_code == 0
        (asked,) = api.asked
        assert (asked.query, asked.body) == ({}, {"rate": 800.0, "fleet": True})
        assert by_flag(FieldProblem("fleet", "needs [fleet]")) == "--fleet-limit: needs [fleet]"

    @pytest.mark.parametrize(
        ("given", "command"),
        [
            (("orders",), "queue orders 500"),
            (("orders", "500"), "queue orders 500"),
            (("orders", "unlimited"), "queue orders unlimited"),
            (("orders", "5/s", "--ttl", "5m"), "queue orders 5/s"),
            (("exchange:orders", "500"), "exchange orders 500"),
            (("unknown", "500"), "topic unknown 500"),
            (("topic", "500"), "topic NAME 500"),
            (("topic", "orders"), "topic orders 500"),
            (("topic", "orders", "--reason", "x"), "topic orders 500"),
        ],
    )
    def test_names_the_missing_part_and_changes_nothing(
        self, api: Any, sluice: Sluice, given: tuple[str, ...], command: str
    ) -> None:
        rows = [] if given[0] == "unknown" else [row("orders", kind="queue")]
        api.answers["GET /limits"] = (200, {"rows": rows, "total": 1, "kinds": ["topic", "queue", "exchange"]})
        ran = sluice("limits", "set", *given)
        assert ran.exit_code == 2
        assert ran.err.endswith(f"; did you mean `sluice limits set {command}`?\n")
        assert [asked.method for asked in api.asked] == ["GET"]

    @pytest.mark.parametrize(
        ("name", "old", "meant"),
        [
            ("ordres", None, "orders"),
            ("orders", None, ""),
            ("ordres", {"rate": 5.0}, ""),
            ("ordr*", None, ""),
            ("nothing", None, ""),
            ("quite", None, ""),
        ],
    )
    def test_a_new_limit_of_a_name_without_traffic_names_the_near_one_that_has_some(  # noqa: PLR0917 - a table
        self, api: Any, sluice: Sluice, change: Make, name: str, old: Any, meant: str
    ) -> None:
        api.answers[f"PATCH /limits/topic/{name.replace('*', '%2A')}"] = (200, change(f"limits/topic/{name}", old=old))
        api.answers["GET /limits"] = (200, {"rows": [row("orders"), row("quiet", live=None)], "total": 2})
        ran = sluice("limits", "set", "topic", name, "5")
        assert ran.exit_code == 0
        line = f"There is no traffic for topic {name} yet. Did you mean {meant}?"
        assert (line in ran.out.splitlines()) is bool(meant)
        assert ("no traffic" in ran.out) is bool(meant)

    def test_puts_the_whole_limit_on_request(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["PUT /limits/topic/orders"] = (200, change())
        assert sluice("limits", "set", "topic", "orders", "5", "--replace").exit_code == 0
        assert api.asked[0].body == {"rate": 5.0}
        ran = sluice("limits", "set", "topic", "orders", "5", "--replace", "--without", "bytes_per_s")
        assert (ran.exit_code, ran.err.split(",")[0]) == (2, "sluice: --without cannot be combined with --replace")

    def test_removes_fields_and_the_end(self, api: Any, sluice: Sluice, change: Make) -> None:
        api.answers["PATCH /limits/topic/orders"] = (200, change())
        sluice("limits", "set", "topic", "orders", "--without", "bytes_per_s, fair_by", "--ttl", "never")
        assert api.asked[0].body == {"bytes_per_s": None, "fair_by": None, "ttl_s": None}

    @pytest.mark.parametrize(
        ("given", "without", "field"),
        [(["100"], "rate", "rate"), (["--burst-s", "0"], "fair_by, burst_s", "burst_s")],
    )
    def test_refuses_a_field_that_is_set_and_removed(
        self, api: Any, sluice: Sluice, given: list[str], without: str, field: str
    ) -> None:
        ran = sluice("limits", "set", "topic", "orders", *given, "--without", without)
        assert (ran.exit_code, api.asked) == (2, [])
        assert ran.err == f"sluice: --without {field}: {field} is also set; give only one of them\n"

    @pytest.mark.parametrize(
        ("expires_at", "said"),
        [
            (None, "   permanent; the previous edit would have expired "),
            ("2100-01-01T00:00:00.000Z", "   until "),
        ],
    )
    def test_shows_the_edits_new_end(
        self, api: Any, sluice: Sluice, change: Make, expires_at: str | None, said: str
    ) -> None:
        before = {"change_id": 3, "at": "2026-01-01T00:00:00.000Z", "by": "ada", "address": "", "reason": ""}
        before["expires_at"] = "2100-01-01T00:00:00.000Z"
        api.answers["PATCH /limits/topic/orders"] = (200, change(before=before, expires_at=expires_at))
        line = sluice("limits", "set", "topic", "orders", "5").out.splitlines()[1]
        assert line.startswith(said)
        assert line.endswith(", as before; use --ttl never to make it permanent") is (expires_at is not None)


@pytest.mark.parametrize("command", ["get", "reset", "unset", "explain"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("orders", "KIND is missing; did you mean `sluice limits {} queue orders`?"),
        ("exchange:orders", "KIND is missing; did you mean `sluice limits {} exchange orders`?"),
        ("topic", "NAME is missing; did you mean `sluice limits {} topic NAME`?"),
    ],
)
def test_a_missing_kind_or_name_is_reported_with_the_whole_command(
    api: Any, sluice: Sluice, command: str, given: str, said: str
) -> None:
    page = {"rows": [row("orders", kind="queue")], "total": 1, "kinds": ["topic", "queue", "exchange"]}
    api.answers["GET /limits"] = (200, page)
    ran = sluice("limits", command, given)
    assert (ran.exit_code, ran.err) == (2, f"sluice: {said.format(command)}\n")
    assert api.writes() == []


class TestUnset:
    def test_lets_all_be_as_configured_at_once(self, api: Any, sluice: Sluice, change: Make) -> None:
        names = [f"t{at}" for at in range(25)]
        api.answers["GET /limits"] = (200, {"rows": [row(name) for name in names], "total": 25, "etag": "all"})
        changes = [change(f"limits/topic/{name}", id=100 + at) for at, name in enumerate(names)]
        api.answers["POST /limits:batch"] = (200, {"changes": changes})
        lines = sluice("limits", "unset", "--all", "--reason", "over").out.splitlines()
        assert api.asked[0].query["filter"] == "edited"
        (written,) = api.writes()
        assert written.headers["if-match"] == '"all"'
        assert written.body["edits"][0] == {"type": "unset_limit", "kind": "topic", "name": "t0"}
        assert (len(written.body["edits"]), written.body["reason"]) == (25, "over")
        assert len(lines) == 22
        assert lines[0] == "topic t0: 500/s → 1000/s"
        assert lines[-2:] == ["and 5 more", "undid 25 edits: change 100 to 124 by ada"]
        assert sluice("limits", "unset", "--all", "--dry-run").out.splitlines()[-1] == "would undo 25 edits"

    @pytest.mark.parametrize(
        ("tokens", "line"),
        [
            ([], "KIND is missing; give KIND and NAME, or --all"),
            (["topic", "a", "--all"], "give either KIND and NAME or --all, not both"),
        ],
    )
    def test_of_an_unnamed_resource_is_refused(self, sluice: Sluice, tokens: list[str], line: str) -> None:
        ran = sluice("limits", "unset", *tokens)
        assert (ran.exit_code, ran.err) == (2, f"sluice: {line}\n")
