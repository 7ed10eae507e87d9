import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from admin.cli import main
from admin.client.explain import explain_file
from admin.common.errors import SettingsError
from admin.wire.sentences import explained
from proxy.stats.question import (
    Explanation,
    Question,
)

Write = Callable[[str], str]


class TestCommand:
    def test_prints_the_sidecars_answer(self, api: Any, sluice: Any, explanation: Explanation) -> None:
        api.answers["GET /explain"] = (200, msgspec.to_builtins(explained(explanation, live=True)))
        ran = sluice("limits", "explain", "topic", "orders", "--client", "10.1.2.3")
        assert ran.exit_code == 0
        lines = ran.out.splitlines()
        assert lines[:4] == [
            "topic orders, client 10.1.2.3, producer group g, listener scope default",
            "",
            "1. topic orders: 500 messages per second, burst 1 s",
            "   rule   topic:orders = 500/s (sluice.toml:3)",
        ]
        assert lines[-2:] == [
            "These rules match but do not apply:",
            "   listener default: listener:default = 5/s (sluice.toml:25): not now: 18:00-20:00 UTC",
        ]

    def test_prints_json_on_demand(self, api: Any, sluice: Any, explanation: Explanation) -> None:
        api.answers["GET /explain"] = (200, msgspec.to_builtins(explanation))
        ran = sluice("limits", "explain", "topic", "orders", "--client", "10.1.2.3", "--listener", "main", "--json")
        assert json.loads(ran.out) == json.loads(msgspec.json.encode(explanation))
        asked = {"kind": "topic", "name": "orders", "client": "10.1.2.3", "listener": "main"}
        assert api.asked[0].query == asked

    @pytest.mark.parametrize(
        ("tokens", "line"),
        [
            (
                "explain topic a --clinet 1",
                "unknown option: --clinet; did you mean --client? see sluice limits explain --help",
            ),
            (
                "explain topic a --admin x:1 --config y",
                "give either --admin or --config, not both",
            ),
            ("explain topic a --admin x", 'must be "host:port"'),
            ("explain topic a --config /nowhere.toml", "/nowhere.toml: cannot be read: no such file or directory"),
        ],
    )
    def test_that_is_wrong_is_one_line_and_exit_code_2(
        self, capsys: pytest.CaptureFixture[str], tokens: str, line: str
    ) -> None:
        assert main(["limits", *tokens.split()]) == 2
        (complaint,) = capsys.readouterr().err.splitlines()
        assert complaint.startswith("sluice: ")
        assert line in complaint


FILE = """
[[listeners]]
listen = "127.0.0.2:10911"
broker = "127.0.0.1:10911"
name = "main"
exempt = ["10.9.0.0/16"]

[[limits]]
kind = "topic"
name = "orders"
rate = 500

[[limits]]
kind = "topic"
name = "o*"
rate = 1000
shared = true

[[limits]]
kind = "topic"
name = "free"
rate = "unlimited"

[[limits]]
kind = "client"
name = "10.0.0.0/8"
rate = "unlimited"
bytes_per_s = 1048576
"""


def ask_file(file: str, question: Question) -> Explanation:
    return msgspec.convert(explain_file(file, msgspec.to_builtins(question)), Explanation)


class TestAskingAFile:
    def test_describes_its_effect_without_a_live_state(self, write: Write) -> None:
        explanation = ask_file(write(FILE), Question("topic", "orders", "10.1.2.3"))
        assert [(limit.kind, limit.name, limit.limit.unit, limit.rule.name) for limit in explanation.limits] == [
            ("topic", "orders", "messages", "topic:orders"),
            ("total", "topic:o*", "messages", "total:topic:o*"),
            ("client", "10.1.2.3", "bytes", "client:10.0.0.0/8"),
        ]
        assert {limit.state for limit in explanation.limits} == {None}
        assert explanation.question.listener == "default"

    @pytest.mark.parametrize(
        ("question", "line"),
        [
            (Question("topc", "a"), "unknown kind 'topc'; must be one of topic, retry_group, "),
            (Question("topic", "a", client="10.1"), "--client: '10.1' is not an IP address"),
            (
                Question("topic", "a", listener="vip"),
                "--listener: 'vip' is neither a listener nor a scope; known listeners: main (scope default)",
            ),
        ],
    )
    def test_a_question_that_makes_no_sense_is_one_line(self, write: Write, question: Question, line: str) -> None:
        with pytest.raises(SettingsError) as caught:
            ask_file(write(FILE), question)
        assert caught.value.lines[0].startswith(line)

    def test_goes_by_the_rules_of_the_moment_that_is_asked_about(self, write: Write) -> None:
        night = (
            '[[limits]]\nkind = "topic"\nname = "o*"\nrate = 9\nbetween = "22:00-06:00"\ntime_zone = "Europe/Berlin"\n'
        )
        file = write(night)
        (limit,) = ask_file(file, Question("topic", "orders", at="2026-11-21T22:30Z")).limits
        assert limit.rule.name == "topic:o* 22:00-06:00 Europe/Berlin"
        assert ask_file(file, Question("topic", "orders", at="2026-11-21T20:30+00:00")).limits == ()

    def test_an_adaptive_limit_has_no_figures_before_it_runs(self, write: Write) -> None:
        file = write(FILE.partition("[[limits]]")[0] + '[[limits]]\nkind = "listener"\nname = "*"\nadaptive = true\n')
        (limit,) = ask_file(file, Question("topic", "orders")).limits
        assert (limit.rule.name, limit.text) == ("adaptive listener:*", "adaptive, at least 100/s")
        assert [each.name for each in limit.details] == ["rule", "why", "above"]

    def test_is_a_command(self, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["limits", "explain", "topic", "orders", "--config", write(FILE)]) == 0
        assert "1. topic orders: 500 messages per second, burst 1 s" in capsys.readouterr().out
