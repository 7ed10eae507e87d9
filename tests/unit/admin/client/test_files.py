import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Make = Callable[..., dict[str, Any]]
Sluice = Callable[..., Any]
NOTHING_EDITED = (200, {"limits": [], "switches": [], "total": 0, "etag": "all"})
SWITCHED_ON = (200, {"switches": [{"kind": "all", "limiting": True, "configured": True, "edit": None, "etag": "e"}]})
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
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    def write(text: str = LIMITS) -> str:
        path = tmp_path / "limits.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def answering(change: Make, unchanged: set[str]) -> Callable[[Any], Any]:
    """Answers a batch: some limits are as they are wanted already."""

    def answer(request: Any) -> Any:
        changes = []
        for edit in request.body["edits"]:
            target = f"limits/{edit['kind']}/{edit['name']}"
            same = {"new": {"rate": 500.0, "burst_s": 1.0}} if edit["name"] in unchanged else {}
            changes.append(change(target, **same))
        return 200, {"changes": changes}

    return answer


class TestApply:
    def test_sends_what_differs_at_once_and_leaves_the_rest(
        self, api: Any, sluice: Sluice, change: Make, file: Callable[..., str]
    ) -> None:
        api.answers["GET /diff"] = NOTHING_EDITED
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
        api.answers["GET /diff"] = (200, {"limits": [entry("orders"), entry("gone")], "total": 2, "etag": "all"})
        api.answers["POST /limits:batch"] = answering(change, {"topic:log-*", "*"})
        ran = sluice("limits", "apply", file(), "--prune", "--dry-run", "--json")
        assert api.writes()[-1].body["edits"][1:] == [{"type": "unset_limit", "kind": "topic", "name": "gone"}]
        assert api.writes()[-1].query == {"dry_run": "1"}
        assert [each["target"] for each in json.loads(ran.out)["changes"]] == [
            "limits/topic/orders",
            "limits/topic/gone",
        ]

    def test_that_is_refused_names_file_line_and_key(
        self, api: Any, sluice: Sluice, problem: Any, file: Callable[..., str]
    ) -> None:
        wrong = [
            {"field": "edits.0.rate", "detail": "must be a number", "edit": 0},
            {"field": "edits.2.burst_s", "detail": "must be more than 0", "edit": 2},
            {"field": "edits.1.max_delay_s", "detail": "goes with delay", "edit": 1},
        ]
        api.answers["GET /diff"] = NOTHING_EDITED
        api.answers["POST /limits:batch"] = problem(400, "wrong", *wrong)
        path = file()
        ran = sluice("limits", "apply", path)
        assert ran.exit_code == 2
        assert ran.err.splitlines() == [
            f"sluice: {path}:6: limits[0].rate: must be a number",
            f"sluice: {path}:16: defaults.topic.burst_s: must be more than 0",
            f"sluice: {path}:8: limits[1].max_delay_s: goes with delay",
        ]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("rate = ", ":1: not TOML: "),
            ('[[limit]]\nname = "a"\n', ":1: limit: unknown; a file of limits has [[limits]] and [defaults]"),
            ('[[limits]]\nkind = "topic"\n', ":1: limits[0].name: must be text in quotes"),
            ("limits = 5", ": [[limits]] must be an array of tables"),
            ("limits = [5]", ":1: limits[0]: must be a table"),
            ("[defaults]\ntopic = 5\n", ":2: defaults.topic: must be a table: [defaults.topic]"),
            (
                '[[limits]]\nkind = "topic"\nname = "a"\nrate = 1\n[[limits]]\nkind = "topic"\nname = "a"\nrate = 2\n',
                ":5: limits[1]: a second limit for topic a, besides ",
            ),
        ],
    )
    def test_of_a_file_that_is_wrong_asks_nobody(
        self, api: Any, sluice: Sluice, file: Callable[..., str], text: str, said: str
    ) -> None:
        path = file(text)
        ran = sluice("limits", "apply", path)
        assert ran.exit_code == 2
        assert ran.err.startswith(f"sluice: {path}{said}")
        assert api.asked == []

    def test_of_a_file_that_is_not_there_says_so(self, sluice: Sluice) -> None:
        assert sluice("limits", "apply", "/nowhere.toml").err.startswith(
            "sluice: /nowhere.toml: cannot be read: no such"
        )


class TestDiff:
    def test_shows_configured_and_live(self, api: Any, sluice: Sluice, entry: Make) -> None:
        switch = {"kind": "all", "limiting": False, "configured": True, "edit": entry()["edit"], "etag": "e"}
        limits = [entry(), entry("new", configured=None)]
        api.answers["GET /diff"] = (200, {"limits": limits, "switches": [switch], "total": 2, "etag": "all"})
        lines = [line.split() for line in sluice("limits", "diff").out.splitlines()]
        assert lines[1][:5] == ["topic", "orders", "500/s", "1000/s", "ada"]
        assert lines[2][:5] == ["topic", "new", "no", "rule", "1000/s"]
        assert lines[3][:5] == ["switch", "all", "on", "off", "ada"]


def test_an_export_is_printed_as_it_comes_or_as_json(api: Any, sluice: Sluice) -> None:
    text = '# all\n\n[[limits]]\nkind = "topic"\nname = "a\\u001b"\nrate = 5\n'
    api.answers["GET /export"] = (200, {"text": text})
    assert sluice("limits", "export", "--edits-only").out == text
    assert api.asked[0].query == {"edits_only": "1"}
    assert json.loads(sluice("limits", "export", "--json").out) == {
        "limits": [{"kind": "topic", "name": "a\x1b", "rate": 5}]
    }
