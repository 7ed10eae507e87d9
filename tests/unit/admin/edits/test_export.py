"""An export makes the same limits when it is read again."""

import re
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from admin.config.rule_fields import fields_of
from admin.config.sources import Flags, load
from admin.edits.effective import EffectiveLimits
from admin.edits.export import export, toml
from admin.edits.model import ActiveEdit
from admin.run.composition import Plan, compose
from limiter.rules.rule_set import RuleSet

ROOT = Path(__file__).parents[4]
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EDIT = ActiveEdit(change_id=17, at="2026-11-21T11:00:00.000Z", by="ada", address="", reason="")
EXAMPLES = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "limits.md").read_text(encoding="utf-8"), re.DOTALL)
AMQP = '[[limits]]\nkind = "queue"\nname = "orders"\nrate = 5\nconfirm = "after_consume"\n[defaults.user]\nrate = 7\n'
ADAPTIVE = '[[limits]]\nkind = "topic"\nname = "a"\nweight = 3\n'
ADAPTIVE += '[[limits]]\nkind = "listener"\nname = "*"\nadaptive = true\nfloor = 7\n'
MIXED = AMQP + '[[limits]]\nkind = "topic"\nname = "orders-*"\nrate = 5\nshared = true\n'


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[[str], Plan]:
    def read(text: str) -> Plan:
        file = tmp_path / "limits.toml"
        file.write_text(text, encoding="utf-8")
        return compose(load(str(file), {}, Flags()))

    return read


def exported(plan: Plan, active: dict[str, ActiveEdit] | None = None, **how: Any) -> str:
    limits = EffectiveLimits(plan.rulebook, active or {}, NOW)
    in_force = limits.rule_set.at(NOW)
    return export((*in_force.tried, *in_force.untried), limits.limits, limits.switches, **how)


def written(rules: RuleSet) -> set[tuple[Any, ...]]:
    return {(rule.kind, rule.pattern, rule.shared, str(rule.hours), str(fields_of(rule))) for rule in rules.rules}


@pytest.mark.parametrize(
    "text", [*EXAMPLES, (ROOT / "deploy/sluice.toml").read_text(encoding="utf-8"), AMQP, MIXED, ADAPTIVE]
)
def test_a_file_of_limits_makes_the_same_limits_when_it_is_read_again(
    plan_of: Callable[[str], Plan], text: str
) -> None:
    plan = plan_of(text)
    assert written(plan_of(exported(plan)).rule_set) == written(plan.rule_set)


def test_only_edits_have_an_author_and_fields_that_a_file_cannot_have(plan_of: Callable[[str], Plan]) -> None:
    plan = plan_of('[[limits]]\nkind = "topic"\nname = "mail"\nrate = 1\n')
    active = {
        "limits/topic/orders": replace(EDIT, reason='two\nlines "\x1b', limit={"rate": 1000}),
        "switches/all": replace(EDIT, change_id=18, limiting=False),
        "switches/topic": replace(EDIT, change_id=19, limiting=False),
    }
    text = exported(plan, active, heading="Limits edited", edits_only=True)
    assert text.splitlines() == [
        "# Limits edited",
        "# This kind is switched off, which a file cannot express: topic",
        "limiting = false",
        "",
        '# change 17 by ada at 2026-11-21T11:00:00.000Z: two\\nlines "\\x1b',
        "[[limits]]",
        'kind = "topic"',
        'name = "orders"',
        "rate = 1000",
        'action = "reject"',
    ]
    assert plan_of(text).settings.limiting is False


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
