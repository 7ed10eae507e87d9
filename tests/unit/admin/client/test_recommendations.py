import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin.client import recommendations as module
from admin.common.recommendations import Backtest, Recommendation, RecommendationsFile, Replay

Make = Callable[..., dict[str, Any]]
Sluice = Callable[..., Any]
STATE = (200, {"instance": "broker-a", "version": "1"})
EVIDENCE = "p99 of demand over 7 days is 430/s, limit 300/s refused 2.1% in 14 storms."


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
def file(tmp_path: Path) -> Callable[..., str]:
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
        return 200, {
            "changes": [
                change(f"limits/{edit['kind']}/{edit['name']}", reason=edit["reason"]) for edit in request.body["edits"]
            ]
        }

    api.answers["GET /state"] = STATE
    api.answers["POST /limits:batch"] = batch
    api.limit_of = limit_of
    limit_of("orders")
    return api


def test_what_cannot_be_a_limit_is_left_out_and_all_else_is_done(
    sidecar: Any, sluice: Sluice, file: Callable[..., str]
) -> None:
    ran = sluice(
        "limits",
        "apply",
        file(
            recommendation(),
            recommendation("tab\there"),
            recommendation("nothing", recommended_rate_per_s=None),
        ),
    )
    assert ran.exit_code == 0, ran.err
    (done,) = sidecar.writes()
    assert [edit["limit"]["rate"] for edit in done.body["edits"]] == [560]
    assert ran.out.splitlines()[-3:] == [
        "left out: topic tab\\there: its name has control characters, which no limit's name has",
        "left out: topic nothing: no rate is recommended",
        "changed 1, left out 2",
    ]


def test_a_limit_of_0_is_put_in_force_by_nobody_but_a_person(
    sidecar: Any, sluice: Sluice, file: Callable[..., str]
) -> None:
    ran = sluice("limits", "apply", file(recommendation(action="lower", recommended_rate_per_s=0.0)))
    assert ran.exit_code == 0
    assert "left out: topic orders: 0 refuses everything: if that is meant, set it with" in ran.out
    assert not sidecar.writes()


def test_one_that_cannot_be_looked_up_is_named(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    path = file(recommendation(), recommendation(""))
    ran = sluice("limits", "apply", path)
    assert ran.exit_code == 2
    assert f"{path}: recommendations[1]: NAME: must not be empty" in ran.err
    assert not sidecar.writes()


def test_what_a_file_says_of_its_version_gives_a_terminal_no_orders(sluice: Sluice, file: Callable[..., str]) -> None:
    ran = sluice("limits", "apply", file(text='{"version": "\\u001b[2J", "recommendations": []}'))
    assert ran.exit_code == 2
    assert "\x1b" not in ran.err


def test_an_error_gives_a_terminal_no_orders_whatever_is_named_in_it(sluice: Sluice) -> None:
    ran = sluice("limits", "apply", "\x1b[2J.json")
    assert ran.exit_code == 2
    assert ran.err.startswith("sluice: \\x1b[2J.json: cannot be read: ")


def test_no_more_is_looked_up_than_can_be_changed_at_once(
    sidecar: Any, sluice: Sluice, file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_EDITS", 2)
    names = [f"t{number}" for number in range(9)]
    for name in names:
        sidecar.limit_of(name)
    ran = sluice("limits", "apply", file(*map(recommendation, names)))
    assert ran.exit_code == 2
    assert "more than 2 limits would change" in ran.err
    assert len([each for each in sidecar.asked if "/limits/" in each.path]) == 3


def test_puts_the_new_rate_in_force_and_keeps_all_else_of_the_limit(
    sidecar: Any, sluice: Sluice, file: Callable[..., str]
) -> None:
    ran = sluice("limits", "apply", file(recommendation()))
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
    assert f"   because {EVIDENCE} Confidence: high." in lines
    assert any("`sluice audit revert 17` undoes it" in line for line in lines)
    assert lines[-1] == "changed 1, left out 0"


def test_a_dry_run_changes_nothing_and_a_reason_comes_first(
    sidecar: Any, sluice: Sluice, file: Callable[..., str]
) -> None:
    ran = sluice("limits", "apply", file(recommendation()), "--dry-run", "--reason", "review of May")
    (done,) = sidecar.writes()
    assert done.query == {"dry_run": "1"}
    assert done.body["edits"][0]["reason"] == f"review of May: {EVIDENCE} Confidence: high."
    assert ran.out.endswith("would change 1, left out 0\n")


def test_evidence_that_is_too_long_for_a_reason_is_cut(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    sluice("limits", "apply", file(recommendation(evidence="because " * 300)))
    reason = sidecar.writes()[0].body["edits"][0]["reason"]
    assert len(reason) == 1000
    assert reason.endswith("…")


def replay(share: float, messages: int = 1) -> Replay:
    return Replay(refused_messages=messages, refused_share=share)


def test_says_what_the_report_says(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    test = Backtest(current=replay(0.043), recommended=replay(0.0), recommended_uncorrected=replay(0.0004))
    ran = sluice("limits", "apply", file(recommendation(backtest=test, retries="assumed")))
    assert ran.out.splitlines()[2:4] == [
        "   refused then: 4.3% → 0% (<0.1% if nobody retries)",
        f"   because {EVIDENCE} Confidence: high.",
    ]


def test_leaves_out_what_is_nothing_to_do_and_says_why(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    path = file(
        recommendation(),
        recommendation("fine", action="keep", recommended_rate_per_s=300.0),
        recommendation("good", action="keep", recommended_rate_per_s=300.0),
        recommendation("flood", action="keep", evidence="It may be a flood.", backtest=Backtest(logged=replay(0.5))),
        recommendation("old", action="unused", recommended_rate_per_s=None),
        *(recommendation(f"theirs-{number}", instance="broker-b") for number in range(30)),
        recommendation("others", instance="broker-c"),
    )
    ran = sluice("limits", "apply", path)
    assert ran.exit_code == 0, ran.err
    assert ran.out.splitlines()[-5:] == [
        "left out: 2 right as they are",
        "left out: topic flood: keep: It may be a flood.",
        "left out: topic old: unused: unset it if nobody needs it",
        "left out: 31 for other sidecars",
        "changed 1, left out 35",
    ]


@pytest.mark.parametrize(("action", "rate"), [("lower", 130.0), ("raise", 560.0)])
def test_what_is_offered_apart_is_done_only_if_it_is_asked_for(
    sidecar: Any, sluice: Sluice, file: Callable[..., str], action: str, rate: float
) -> None:
    flag, other = f"--{action}", {"lower": "--raise", "raise": "--lower"}[action]
    path = file(recommendation(action=action, recommended_rate_per_s=rate, only_with=action))
    ran = sluice("limits", "apply", path)
    assert ran.exit_code == 0, ran.err
    assert not sidecar.writes()
    assert ran.out.splitlines() == [
        f"left out: topic orders: 300/s → {rate:g}/s is offered apart, {flag} applies it: {EVIDENCE}",
        "changed 0, left out 1",
    ]
    assert "is offered apart" in sluice("limits", "apply", path, other).out
    assert sluice("limits", "apply", path, flag).exit_code == 0
    (done,) = sidecar.writes()
    assert done.body["edits"][0]["limit"]["rate"] == rate


def test_fair_shares_are_put_in_force_beside_the_rate(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    shared = {"action": "share", "recommended_rate_per_s": 300.0, "fair_by": "client"}
    assert sluice("limits", "apply", file(recommendation(**shared))).exit_code == 0
    usual = {"rate": 300.0, "burst_s": 2.0, "count": "messages", "action": "reject"}
    assert sidecar.writes()[-1].body["edits"][0]["limit"] == usual | {"fair_by": "client"}
    assert sluice("limits", "apply", file(recommendation(**shared, max_fair_keys=50))).exit_code == 0
    limit = sidecar.writes()[-1].body["edits"][0]["limit"]
    assert (limit["fair_by"], limit["max_fair_keys"]) == ("client", 50)
    sidecar.limit_of("orders", fair_by="client")
    assert "topic orders: in force already" in sluice("limits", "apply", file(recommendation(**shared))).out
    sidecar.limit_of("orders", warm_up_s=5.0)
    assert (
        "it warms up, which does not go with fair shares"
        in sluice("limits", "apply", file(recommendation(**shared))).out
    )


def test_a_name_breaks_no_line(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    ran = sluice("limits", "apply", file(recommendation("a\nchanged 9\x1b[2J", action="unused")))
    assert ran.out.splitlines()[0] == ("left out: topic a\\nchanged 9\\x1b[2J: unused: unset it if nobody needs it")


def test_only_takes_names_that_match(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    sidecar.limit_of("order-1")
    sidecar.limit_of("log-1")
    path = file(recommendation("order-1"), recommendation("log-1"))
    ran = sluice("limits", "apply", path, "--only", "order-*", "--json")
    assert [each["name"] for each in sidecar.writes()[0].body["edits"]] == ["order-1"]
    assert json.loads(ran.out)["skipped"] == [
        {"instance": "broker-a", "kind": "topic", "name": "log-1", "action": "raise", "why": "does not match --only"}
    ]
    assert sluice("limits", "apply", path, "--only", "[a").exit_code == 2
    assert "--only nobody: no name in" in sluice("limits", "apply", path, "--only", "nobody").err


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"rate": 400.0}, "changed since: 400/s in force, made for 300/s; --force applies it all the same"),
        ({"action": "off"}, "changed since: unlimited in force, made for 300/s; --force applies it all the same"),
        ({"bytes_per_s": 5.0}, "changed since: 300/s + 5 bytes/s in force, made for 300/s; --force applies it all"),
        ({"count": "requests"}, "changed since: it counts requests now; --force applies it all the same"),
        ({"rate": 560.0}, "in force already"),
        ({"between": "22:00-06:00"}, "its limit holds at some hours only: change it in the configuration"),
        ({"rate": None, "exempt": True}, "exempt: it is never limited"),
    ],
)
def test_leaves_out_what_was_made_for_another_limit(
    sidecar: Any, sluice: Sluice, file: Callable[..., str], now: dict[str, Any], said: str
) -> None:
    sidecar.limit_of("orders", **now)
    ran = sluice("limits", "apply", file(recommendation()))
    assert ran.exit_code == 0, ran.err
    assert sidecar.writes() == []
    assert f"left out: topic orders: {said}" in ran.out
    assert ran.out.endswith("changed 0, left out 1\n")


def test_force_applies_it_all_the_same(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    sidecar.limit_of("orders", rate=400.0, action="off")
    assert sluice("limits", "apply", file(recommendation()), "--force").exit_code == 0
    assert sidecar.writes()[0].body["edits"][0]["limit"]["rate"] == 560.0
    assert "action" not in sidecar.writes()[0].body["edits"][0]["limit"]


def test_what_a_pattern_limits_gets_a_limit_of_its_own(
    sidecar: Any, sluice: Sluice, file: Callable[..., str], entry: Make
) -> None:
    found = entry("log-1", limit={"rate": 560.0, "burst_s": 3.0}, rule="topic:log-*")
    sidecar.answers["GET /limits/topic/log-1"] = (200, found)
    assert sluice("limits", "apply", file(recommendation("log-1", rate_per_s=560.0))).exit_code == 0
    assert sidecar.writes()[0].body["edits"][0]["limit"] == {"rate": 560.0, "burst_s": 3.0, "count": "messages"}


def test_a_name_with_characters_of_patterns_stands_for_itself(
    sidecar: Any, sluice: Sluice, file: Callable[..., str], entry: Make
) -> None:
    found = entry("a[*]b", limit={"rate": 300.0, "count": "messages"}, rule="topic:*")
    sidecar.answers["GET /limits/topic/a%5B%2A%5Db"] = (200, found)
    assert sluice("limits", "apply", file(recommendation("a*b"))).exit_code == 0
    assert sidecar.writes()[0].body["edits"][0]["name"] == "a[*]b"


def test_those_of_others_are_refused_with_one_line(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    path = file(recommendation(instance="broker-b"), recommendation(instance="broker-c"))
    ran = sluice("limits", "apply", path)
    assert ran.exit_code == 2
    assert ran.err == (
        f"sluice: {path}: made for broker-b, broker-c, not for broker-a at {sidecar.url}; ask the right one with"
        " --admin, or name with --instance whose recommendations it shall have\n"
    )
    assert sidecar.writes() == []


def test_those_of_another_can_be_asked_for(sidecar: Any, sluice: Sluice, file: Callable[..., str]) -> None:
    path = file(recommendation(instance="broker-b"))
    assert sluice("limits", "apply", path, "--instance", "broker-b").exit_code == 0
    assert len(sidecar.writes()) == 1


def test_somebody_who_was_faster_is_not_overruled(
    sidecar: Any, sluice: Sluice, file: Callable[..., str], problem: Any
) -> None:
    sidecar.answers["POST /limits:batch"] = problem(412, "changed by ada")
    assert sluice("limits", "apply", file(recommendation())).exit_code == 3


def test_what_the_sidecar_refuses_is_named_by_place_and_resource(
    sidecar: Any, sluice: Sluice, file: Callable[..., str], problem: Any
) -> None:
    wrong = {"field": "edits.0.limit.rate", "detail": "must be at most 1000000000", "edit": 0}
    sidecar.answers["POST /limits:batch"] = problem(422, "wrong", wrong)
    path = file(recommendation("other", instance="broker-b"), recommendation())
    ran = sluice("limits", "apply", path)
    assert ran.exit_code == 2
    assert ran.err == f"sluice: {path}: recommendations[1]: topic orders: rate: must be at most 1000000000\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Input data was truncated; "),
        (b'{"version": "\xff"}', "name the recommendations.json of a report, or make it anew with `sluice report`"),
        ('{"limits": []}', "Object missing required field `version`; "),
        ('{"version": 9, "recommendations": []}', "version: found 9, and this is version 1; "),
        ('{"version": 1, "recommendations": [{"rate_per_s": "5"}]}', "at `$.recommendations[0]"),
        ('{"version": 1, "made_at": "", "period": {"from": "May"}, "recommendations": []}', "at `$.period.from`; "),
    ],
)
def test_a_file_that_is_wrong_asks_nobody(
    api: Any, sluice: Sluice, file: Callable[..., str], text: str | bytes, said: str
) -> None:
    path = file(text=text)
    ran = sluice("limits", "apply", path)
    assert ran.exit_code == 2
    assert ran.err.startswith(f"sluice: {path}: ")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert api.asked == []


def test_a_file_that_is_not_there_says_so(sluice: Sluice) -> None:
    ran = sluice("limits", "apply", "/nowhere.json")
    assert ran.exit_code == 2
    assert ran.err.startswith("sluice: /nowhere.json: cannot be read: no such file or directory")


@pytest.mark.parametrize("flags", [["--only", "a"], ["--instance", "a"], ["--force"], ["--lower"], ["--raise"]])
def test_flags_of_recommendations_do_not_go_with_a_file_of_limits(
    sluice: Sluice, tmp_path: Path, flags: list[str]
) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("")
    ran = sluice("limits", "apply", str(path), *flags)
    assert ran.exit_code == 2
    assert f"{flags[0]}: goes with the recommendations.json of a report" in ran.err


def test_pruning_does_not_go_with_recommendations(sluice: Sluice, file: Callable[..., str]) -> None:
    ran = sluice("limits", "apply", file(recommendation()), "--prune")
    assert ran.exit_code == 2
    assert "--prune: goes with a TOML file" in ran.err


def test_a_file_that_is_longer_than_any_report_writes_is_not_read(
    sluice: Sluice, file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 100)
    ran = sluice("limits", "apply", file(recommendation()))
    assert ran.exit_code == 2
    assert "is longer than 0 MiB; make a report of fewer sidecars' logs" in ran.err
