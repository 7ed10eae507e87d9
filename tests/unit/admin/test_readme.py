"""The configuration that README shows must be right: somebody is going to copy it."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from admin.composition import compose
from admin.sources import Flags, load

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\*\*(\d+)\. .*?```toml\n(.*?)```", README, re.DOTALL)
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
