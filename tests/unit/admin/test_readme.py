"""The configuration and the commands that README shows must be right: somebody is going to copy them."""

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from admin.cli import app
from admin.client.target import Given, find_target, profiles_file
from admin.composition import compose
from admin.sources import Flags, load

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\*\*(\d+)\. .*?```toml\n(.*?)```", README, re.DOTALL)
BLOCKS = [
    text.replace("\\\n", " ")
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    if not language
]
COMMANDS = [line for text in BLOCKS for line in text.splitlines() if line.startswith("sluice ")]
MENTIONED = re.findall(r"`(sluice [a-z][^`]*)`", README)
PAIR = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])


def test_there_are_ten_examples() -> None:
    assert [number for number, _ in EXAMPLES] == [str(number) for number in range(1, 11)]
    assert len(re.findall("```toml", README)) == 10


@pytest.mark.parametrize(("number", "text"), EXAMPLES)
def test_an_example_can_be_used_as_it_is(write: Callable[[str], str], number: str, text: str) -> None:
    flags = Flags() if "listeners" in tomllib.loads(text) else PAIR
    plan = compose(load(write(text), {}, flags))
    limiting = [rule for rule in plan.rule_set.rules if rule.source.startswith("sluice.toml")]

    assert limiting
    # Example 4 is about limits that only count.
    assert plan.warnings() == [] or number == "4"


def test_limits_of_the_command_line_can_be_used_as_they_are() -> None:
    section = README.split("## Limits in ten examples")[1].split("**1.")[0]
    texts = re.findall(r"`([a-z_]+:[^`]*=[^`]*)`", section)

    assert len(texts) >= 5
    compose(load(None, {}, Flags(listen=PAIR.listen, broker=PAIR.broker, limits=texts)))


def test_every_key_of_a_limit_is_in_an_example_or_in_the_sample() -> None:
    shown = {key for _, text in EXAMPLES for limit in tomllib.loads(text).get("limits", []) for key in limit}

    assert {"bytes_per_s", "shared", "action", "max_delay_s", "fair_by", "busy_code", "between", "warm_up_s"} <= shown


def test_commands_are_shown() -> None:
    assert len(COMMANDS) >= 10
    assert len(MENTIONED) >= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_typed_as_it_is(command: str) -> None:
    app.parse_args(shlex.split(command, comments=True)[1:], print_error=False, exit_on_error=False)


@pytest.mark.parametrize("command", MENTIONED)
def test_a_command_that_is_mentioned_is_there(command: str) -> None:
    words = command.replace("\n", " ").split()[1:]
    names, _, _ = app.parse_commands(words)
    # Up to the first argument or flag; a group alone is listed by what follows it.
    expected = [word for word in words[:2] if re.fullmatch(r"[a-z]+", word)]
    assert list(names) == expected[: len(names)]
    assert names


def test_the_profile_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    page = (ROOT / "docs" / "live-limits.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n# profiles\.toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (ca_file,) = re.findall(r'ca_file = "(.*)"', text)
    profiles_file().parent.mkdir()
    profiles_file().write_text(text.replace(ca_file, "ca.pem"), encoding="utf-8")
    profiles_file().with_name("ca.pem").touch()
    token = profiles_file().with_name("orders-1.token")
    token.write_text("token-of-the-page-that-shows-it", encoding="utf-8")
    token.chmod(0o600)
    target = find_target(Given(profile="orders-1"), {})
    assert (target.url, target.token, target.warnings) == (
        "https://10.0.0.5:9870",
        "token-of-the-page-that-shows-it",
        (),
    )
