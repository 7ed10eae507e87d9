"""``sluice limits apply`` and ``export``: files of limits, and recommendations of a report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin.common.recommendations import Backtest, Recommendation, RecommendationsFile, Replay

Make = Callable[..., dict[str, Any]]
Sluice = Callable[..., Any]
Recommend = Callable[..., str]
NOTHING_EDITED = (200, {"rows": [], "total": 0, "etag": "all"})
LIMITS = """\
limiting = true

[[limits]]
kind = "topic"
name = "orders"
rate = 500

[[limits]]
kind = "topic"
name = "log-*"
rate = 5000
shared = true

[defaults.topic]
rate = 2000
burst_s = 2

[spool]
target_s = 3
"""
EVIDENCE = "p99 of demand over 7 days is 430/s, and the limit of 300/s refused 2.1% in 14 storms."


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    def write(text: str = LIMITS) -> str:
        path = tmp_path / "limits.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def answering(change: Make, unchanged: set[str]) -> Callable[[Any], Any]:
    """Answers a batch: some limits are already as requested."""

    def answer(request: Any) -> Any:
        changes = []
        for edit in request.body["edits"]:
            same = {"new": {"rate": 500.0, "burst_s": 1.0}} if edit["name"] in unchanged else {}
            changes.append(change(f"limits/{edit['kind']}/{edit['name']}", **same))
        return 200, {"changes": changes}

    return answer


class TestFile:
    def test_sends_differences_at_once_and_leaves_the_rest(
        self, api: Any, sluice: Sluice, change: Make, file: Callable[..., str]
    ) -> None:
        api.answers["GET /limits"] = NOTHING_EDITED
        api.answers["POST /limits:batch"] = answering(change, {"orders"})
        ran = sluice("limits", "apply", file(), "--reason", "release")
        assert ran.exit_code == 0, ran.err
        asked, done = api.writes()
        assert asked.query == {"dry_run": "1"}
        assert done.query == {}
        assert done.headers["if-match"] == '"all"'
        assert done.body == {
            "edits": [
                {"type": "set_limit", "kind": "total", "name": "topic:log-*", "limit": {"rate": 5000}},
                {"type": "set_limit", "kind": "topic", "name": "*", "limit": {"rate": 2000, "burst_s": 2}},
            ],
            "reason": "release",
        }
        assert ran.out.splitlines()[-2:] == ["unchanged: topic orders: 500/s", "changed 2, left 1 unchanged"]

    def test_prunes_edits_that_are_not_in_it(
        self, api: Any, sluice: Sluice, change: Make, entry: Make, file: Callable[..., str]
    ) -> None:
        api.answers["GET /limits"] = (200, {"rows": [entry("orders"), entry("gone")], "total": 2, "etag": "all"})
        api.answers["POST /limits:batch"] = answering(change, {"topic:log-*", "*"})
        ran = sluice("limits", "apply", file(), "--prune", "--dry-run", "--json")
        assert api.writes()[-1].body["edits"][1:] == [{"type": "unset_limit", "kind": "topic", "name": "gone"}]
        assert api.writes()[-1].query == {"dry_run": "1"}
        body = json.loads(ran.out)
        assert [each["target"] for each in body["changes"]] == ["limits/topic/orders", "limits/topic/gone"]
        assert [each["name"] for each in body["unchanged"]] == ["topic:log-*", "*"]

    def test_that_is_refused_names_file_line_and_key(
        self, api: Any, sluice: Sluice, problem: Any, file: Callable[..., str]
    ) -> None:
        wrong = [
            {"field": "edits.2.burst_s", "detail": "must be less", "edit": 2},
            {"field": "edits.1.max_delay_s", "detail": "goes with delay", "edit": 1},
        ]
        api.answers["GET /limits"] = NOTHING_EDITED
        api.answers["POST /limits:batch"] = problem(400, "wrong", *wrong)
        path = file()
        ran = sluice("limits", "apply", path)
        assert ran.exit_code == 2
        assert ran.err.splitlines() == [
            f"sluice: {path}:16: defaults.topic.burst_s: must be less",
            f"sluice: {path}:8: limits[1].max_delay_s: goes with delay",
        ]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("rate = ", ":1: not TOML: "),
            ('[[limit]]\nname = "a"\n', ':1: limit: unknown; did you mean "limits"?'),
            ('[[limits]]\nkind = "topic"\n', ":1: limits[0].name: missing"),
            ("limits = 5", ":1: limits = 5: must be an array"),
            ("[defaults]\ntopic = 5\n", ":2: defaults.topic = 5: must be a table"),
            ('[[limits]]\nkind = "topic"\nname = "a"\nrate = -1\n', ":4: limits[0].rate = -1: must be"),
            (
                '[[limits]]\nkind = "topic"\nname = "a"\nrate = 1\n' * 2,
                ":5: limits[1]: another limit for topic a, ",
            ),
        ],
    )
    def test_that_is_wrong_sends_no_request(
        self, api: Any, sluice: Sluice, file: Callable[..., str], text: str, said: str
    ) -> None:
        path = file(text)
        ran = sluice("limits", "apply", path)
        assert (ran.exit_code, api.asked) == (2, [])
        assert ran.err.startswith(f"sluice: {path}{said}")

    @pytest.mark.parametrize("flags", [["--only", "a"], ["--instance", "a"], ["--force"], ["--lower"], ["--raise"]])
    def test_does_not_go_with_flags_of_recommendations(
        self, sluice: Sluice, file: Callable[..., str], flags: list[str]
    ) -> None:
        ran = sluice("limits", "apply", file(), *flags)
        assert ran.exit_code == 2
        assert f"{flags[0]} requires a report's recommendations.json" in ran.err


def test_an_export_is_printed_as_it_comes_or_as_json(api: Any, sluice: Sluice) -> None:
    text = '# all\n\n[[limits]]\nkind = "topic"\nname = "a\\u001b"\nrate = 5\n'
    api.answers["GET /export"] = (200, {"text": text})
    assert sluice("limits", "export", "--edits-only").out == text
    assert api.asked[0].query == {"edits_only": "1"}
    limits = [{"kind": "topic", "name": "a\x1b", "rate": 5}]
    assert json.loads(sluice("limits", "export", "--json").out) == {"limits": limits}


def recommendation(name: str = "orders", **fields: Any) -> Recommendation:
    usual: dict[str, Any] = {
        "instance": "broker-a",
        "kind": "topic",
        "name": name,
        "action": "raise",
        "rule": f"topic:{name}",
        "rate_per_s": 300.0,
        "recommended_rate_per_s": 560.0,
        "confidence": "high",
        "evidence": EVIDENCE,
    }
    return Recommendation(**(usual | fields))


@pytest.fixture
def recommend(tmp_path: Path) -> Recommend:
    def write(*recommendations: Recommendation, text: str | bytes | None = None) -> str:
        path = tmp_path / "recommendations.json"
        whole = RecommendationsFile(
            made_at="2026-11-22T00:00:00Z",
            instances=tuple(sorted({each.instance for each in recommendations})),
            recommendations=recommendations,
        )
        content = msgspec.json.encode(whole) if text is None else text
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def sidecar(api: Any, entry: Make, change: Make) -> Any:
    """Answers as broker-a, whose limits are 300/s with a burst of 2 s."""

    def limit_of(name: str, **limit: Any) -> None:
        fields = {"rate": 300.0, "burst_s": 2.0, "count": "messages", "action": "reject", "busy_code": None} | limit
        found = entry(name, limit=fields, rule=f"topic:{name}", etag=f"etag-{name}")
        api.answers[f"GET /limits/topic/{name}"] = (200, found)

    def batch(request: Any) -> Any:
        edits = request.body["edits"]
        changes = [change(f"limits/{edit['kind']}/{edit['name']}", reason=edit["reason"]) for edit in edits]
        return 200, {"changes": changes}

    api.answers["GET /state"] = (200, {"instance": "broker-a", "version": "1"})
    api.answers["POST /limits:batch"] = batch
    api.limit_of = limit_of
    limit_of("orders")
    return api


class TestRecommendations:
    def test_put_the_new_rate_in_force_and_keep_all_else_of_the_limit(
        self, sidecar: Any, sluice: Sluice, recommend: Recommend
    ) -> None:
        ran = sluice("limits", "apply", recommend(recommendation()))
        assert ran.exit_code == 0, ran.err
        (done,) = sidecar.writes()
        assert done.query == {}
        assert done.body == {
            "edits": [
                {
                    "type": "set_limit",
                    "kind": "topic",
                    "name": "orders",
                    "limit": {"rate": 560.0, "burst_s": 2.0, "count": "messages", "action": "reject"},
                    "reason": f"{EVIDENCE} Confidence: high.",
                    "if_match": "etag-orders",
                }
            ]
        }
        lines = ran.out.splitlines()
        assert lines[0] == "topic orders: 500/s → 1000/s"
        assert f"   reason: {EVIDENCE} Confidence: high." in lines
        assert lines[-1] == "changed 1, skipped 0"

    def test_only_shown_change_nothing_and_a_reason_comes_first(
        self, sidecar: Any, sluice: Sluice, recommend: Recommend
    ) -> None:
        long = recommendation(evidence="because " * 300)
        ran = sluice("limits", "apply", recommend(long), "--dry-run", "--reason", "review of May")
        (done,) = sidecar.writes()
        assert done.query == {"dry_run": "1"}
        reason = done.body["edits"][0]["reason"]
        assert reason.startswith("review of May: because ")
        assert (len(reason), reason[-1]) == (1000, "…")
        assert ran.out.endswith("would change 1, skipped 0\n")

    def test_are_left_out_where_there_is_nothing_to_do(
        self, sidecar: Any, sluice: Sluice, recommend: Recommend
    ) -> None:
        refused = Backtest(logged=Replay(refused_messages=1, refused_share=0.5))
        path = recommend(
            recommendation(),
            *(recommendation(f"fine-{at}", action="keep", recommended_rate_per_s=300.0) for at in range(9)),
            recommendation("flood", action="keep", evidence="It may be a flood.", backtest=refused),
            recommendation("a\nchanged 9\x1b[2J", action="unused", recommended_rate_per_s=None),
            recommendation("tab\there"),
            recommendation("nothing", recommended_rate_per_s=None),
            recommendation("zero", action="lower", recommended_rate_per_s=0.0),
            *(recommendation(f"theirs-{at}", instance="broker-b") for at in range(30)),
        )
        ran = sluice("limits", "apply", path)
        assert ran.exit_code == 0, ran.err
        assert len(sidecar.writes()[0].body["edits"]) == 1
        assert ran.out.splitlines()[-8:] == [
            "skipped: 9 limits: no change is recommended",
            "skipped: topic flood: no change is recommended: It may be a flood.",
            "skipped: topic a\\nchanged 9\\x1b[2J: never used; unset it if it is not needed",
            "skipped: topic tab\\there: its name contains control characters, which are not allowed",
            "skipped: topic nothing: no rate is recommended",
            "skipped: topic zero: a rate of 0 refuses everything; if that is intended, set it with `sluice limits set`",
            "skipped: 30 limits: for broker-b",
            "changed 1, skipped 44",
        ]

    @pytest.mark.parametrize(("action", "rate"), [("lower", 130.0), ("raise", 560.0)])
    def test_that_are_optional_are_applied_only_if_asked_for(
        self, sidecar: Any, sluice: Sluice, recommend: Recommend, action: str, rate: float
    ) -> None:
        flag, other = f"--{action}", {"lower": "--raise", "raise": "--lower"}[action]
        path = recommend(recommendation(action=action, recommended_rate_per_s=rate, only_with=action))
        said = f"skipped: topic orders: 300/s → {rate:g}/s is optional; {flag} applies it: {EVIDENCE}"
        for flags in ([], [other]):
            assert sluice("limits", "apply", path, *flags).out.splitlines() == [said, "changed 0, skipped 1"]
        assert not sidecar.writes()
        assert sluice("limits", "apply", path, flag).exit_code == 0
        assert sidecar.writes()[0].body["edits"][0]["limit"]["rate"] == rate

    def test_of_fair_shares_are_put_beside_the_rate(self, sidecar: Any, sluice: Sluice, recommend: Recommend) -> None:
        shared = {"action": "share", "recommended_rate_per_s": 300.0, "fair_by": "client", "max_fair_keys": 50}
        assert sluice("limits", "apply", recommend(recommendation(**shared))).exit_code == 0
        usual = {"rate": 300.0, "burst_s": 2.0, "count": "messages", "action": "reject"}
        assert sidecar.writes()[-1].body["edits"][0]["limit"] == usual | {"fair_by": "client", "max_fair_keys": 50}

    @pytest.mark.parametrize(
        ("now", "said"),
        [
            ({"rate": 400.0}, "the limit is now 400/s, but was 300/s in the report; --force applies it anyway"),
            ({"action": "off"}, "the limit is now unlimited, but was 300/s in the report; --force applies it anyway"),
            (
                {"bytes_per_s": 5.0},
                "the limit is now 300/s + 5 bytes/s, but was 300/s in the report; --force applies it",
            ),
            ({"count": "requests"}, "the limit has changed and now counts requests; --force applies it anyway"),
            ({"rate": 560.0}, "already active"),
            ({"between": "22:00-06:00"}, "its limit applies only during certain hours; change it in the configuration"),
            ({"rate": None, "exempt": True}, "exempt, so it is never limited"),
        ],
    )
    def test_that_were_made_for_another_limit_are_left_out(
        self, sidecar: Any, sluice: Sluice, recommend: Recommend, now: dict[str, Any], said: str
    ) -> None:
        sidecar.limit_of("orders", **now)
        path = recommend(recommendation())
        ran = sluice("limits", "apply", path)
        assert (ran.exit_code, sidecar.writes()) == (0, [])
        assert f"skipped: topic orders: {said}" in ran.out
        sluice("limits", "apply", path, "--force")
        assert bool(sidecar.writes()) is ("--force" in said)

    def test_of_a_pattern_or_of_its_characters_are_for_the_name_itself(
        self, sidecar: Any, sluice: Sluice, recommend: Recommend, entry: Make
    ) -> None:
        found = entry("log-1", limit={"rate": 560.0, "burst_s": 3.0}, rule="topic:log-*")
        sidecar.answers["GET /limits/topic/log-1"] = (200, found)
        sidecar.answers["GET /limits/topic/a%5B%2A%5Db"] = (200, entry("a[*]b", limit={"rate": 300.0}))
        path = recommend(recommendation("log-1", rate_per_s=560.0), recommendation("a*b"))
        assert sluice("limits", "apply", path).exit_code == 0
        first, second = sidecar.writes()[0].body["edits"]
        assert first["limit"] == {"rate": 560.0, "burst_s": 3.0, "count": "messages"}
        assert second["name"] == "a[*]b"

    def test_are_chosen_by_name_and_by_sidecar(self, sidecar: Any, sluice: Sluice, recommend: Recommend) -> None:
        sidecar.limit_of("order-1")
        path = recommend(recommendation("order-1"), recommendation("log-1"))
        ran = sluice("limits", "apply", path, "--only", "order-*", "--json")
        assert [each["name"] for each in sidecar.writes()[0].body["edits"]] == ["order-1"]
        skipped = {"instance": "broker-a", "kind": "topic", "name": "log-1", "action": "raise"}
        assert json.loads(ran.out)["skipped"] == [skipped | {"why": "does not match --only"}]
        assert sluice("limits", "apply", path, "--only", "[a").exit_code == 2
        path = recommend(recommendation(instance="broker-b"), recommendation(instance="broker-c"))
        ran = sluice("limits", "apply", path)
        assert ran.exit_code == 2
        assert ran.err.startswith(
            f"sluice: {path} was made for broker-b, broker-c, not for broker-a at {sidecar.url}; "
        )
        assert sluice("limits", "apply", path, "--instance", "broker-b").exit_code == 0

    def test_those_for_the_fleet_are_applied_at_all_members_when_asked(
        self, api: Any, sidecar: Any, sluice: Sluice, recommend: Recommend
    ) -> None:
        sidecar.limit_of("own")
        path = recommend(recommendation(instance="fleet prod"), recommendation("own"))
        state = {"instance": "broker-a", "version": "1", "fleet": {"name": "prod"}}
        api.answers["GET /state"] = (200, state)
        ran = sluice("limits", "apply", path)
        assert "skipped: topic orders: for fleet prod; --fleet applies it" in ran.out
        assert sluice("limits", "apply", path, "--fleet").exit_code == 0
        own, fleets = sidecar.writes()
        assert [each["name"] for each in own.body["edits"]] == ["own"]
        assert ([each["name"] for each in fleets.body["edits"]], fleets.query) == (["orders"], {"fleet": "1"})

    def test_that_are_refused_are_named_by_place_and_resource(
        self, sidecar: Any, sluice: Sluice, recommend: Recommend, problem: Any
    ) -> None:
        wrong = {"field": "edits.0.limit.rate", "detail": "must be at most 1000000000", "edit": 0}
        sidecar.answers["POST /limits:batch"] = problem(422, "wrong", wrong)
        path = recommend(recommendation("other", instance="broker-b"), recommendation())
        ran = sluice("limits", "apply", path)
        assert ran.exit_code == 2
        assert ran.err == f"sluice: {path}: recommendations[1]: topic orders: rate: must be at most 1000000000\n"
        ran = sluice("limits", "apply", recommend(recommendation(), recommendation("")))
        assert f"{path}: recommendations[1]: NAME: must not be empty" in ran.err
        sidecar.answers["POST /limits:batch"] = problem(412, "changed by ada")
        assert sluice("limits", "apply", recommend(recommendation())).exit_code == 3

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "Input data was truncated; "),
            (b'{"version": "\xff"}', "pass a report's recommendations.json, or make a new one"),
            ('{"limits": []}', "found version None, expected 1; "),
            ('{"version": "\\u001b[2J", "recommendations": []}', "found version \\x1b[2J, expected 1; "),
            ('{"version": 1, "recommendations": [{"rate_per_s": "5"}]}', "at `$.recommendations[0]"),
        ],
    )
    def test_that_are_wrong_send_no_request(
        self, api: Any, sluice: Sluice, recommend: Recommend, text: str | bytes, said: str
    ) -> None:
        path = recommend(text=text)
        ran = sluice("limits", "apply", path)
        assert (ran.exit_code, api.asked) == (2, [])
        assert ran.err.startswith(f"sluice: {path}: ")
        assert said in ran.err
        assert len(ran.err.splitlines()) == 1

    def test_that_are_not_there_and_flags_of_a_file_say_so(self, sluice: Sluice, recommend: Recommend) -> None:
        ran = sluice("limits", "apply", "/nowhere\x1b.json")
        assert ran.exit_code == 2
        assert ran.err.startswith("sluice: /nowhere\\x1b.json: cannot be read: no such file or directory")
        assert "--prune requires a TOML file" in sluice("limits", "apply", recommend(), "--prune").err
        assert "x.html is an HTML page; pass the report" in sluice("limits", "apply", "x.html").err
