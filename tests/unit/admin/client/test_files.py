import json
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.client.files import toml
from admin.config.rule_fields import fields_of
from admin.config.sources import Flags, load
from admin.run.composition import compose
from limiter.rules.rule_set import RuleSet

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


def rows_of(rules: RuleSet) -> list[dict[str, Any]]:
    return [
        {
            "kind": rule.kind,
            "pattern": rule.pattern,
            "shared": rule.shared,
            "limit": fields_of(rule),
            "source": rule.source,
        }
        for rule in rules.at(datetime.now(UTC)).in_match_order
    ]


def written(rules: RuleSet) -> set[tuple[Any, ...]]:
    return {(rule.kind, rule.pattern, rule.shared, str(rule.hours), str(fields_of(rule))) for rule in rules.rules}


PAGE = (Path(__file__).parents[4] / "docs" / "limits.md").read_text(encoding="utf-8")
SAMPLE = Path(__file__).parents[4] / "deploy" / "sluice.toml"
EXAMPLES = [text.split("```")[0] for text in PAGE.split("```toml\n")[1:] if "[[limits]]" in text.split("```")[0]]


class TestExport:
    @pytest.mark.parametrize("text", [*EXAMPLES, SAMPLE.read_text(encoding="utf-8")])
    def test_makes_the_same_limits_when_it_is_read_again(
        self, api: Any, sluice: Sluice, file: Callable[..., str], text: str
    ) -> None:
        rules = compose(load(file(text), {}, Flags())).rule_set
        rows = rows_of(rules)
        api.answers["GET /rules"] = (200, {"rows": rows, "total": len(rows)})
        api.answers["GET /diff"] = NOTHING_EDITED
        api.answers["GET /switches"] = SWITCHED_ON
        exported = sluice("limits", "export").out
        assert written(compose(load(file(exported), {}, Flags())).rule_set) == written(rules)
        as_json = json.loads(sluice("limits", "export", "--format", "json").out)
        assert as_json == {key: tomllib.loads(exported)[key] for key in ("limits",)}

    def test_says_who_edited_what_and_what_a_file_cannot_say(
        self, api: Any, sluice: Sluice, entry: Make, file: Callable[..., str]
    ) -> None:
        rules = compose(load(file(), {}, Flags())).rule_set
        rows = rows_of(rules)
        edited = entry(edit=entry()["edit"] | {"reason": 'two\nlines "\x1b'})
        off = {"limiting": False, "configured": True, "edit": None, "etag": "e"}
        api.answers["GET /rules"] = (200, {"rows": rows, "total": len(rows)})
        api.answers["GET /diff"] = (200, {"limits": [edited], "total": 1, "etag": "all"})
        api.answers["GET /switches"] = (200, {"switches": [{"kind": "all"} | off, {"kind": "topic"} | off]})
        text = sluice("limits", "export", "--edits-only").out
        assert [each["name"] for each in tomllib.loads(text)["limits"]] == ["orders"]
        lines = text.splitlines()
        assert lines[1:3] == ["# Switched off, which a file cannot say: topic", "limiting = false"]
        assert lines[4].startswith("# change 17 by ada, ")
        assert lines[4].endswith('two\\nlines "\\x1b')
        assert compose(load(file(text), {}, Flags())).settings.limiting is False


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.lists(st.sampled_from(["mon", "tue"])),
    )
)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    assert tomllib.loads(f"value = {toml(value)}")["value"] == value
