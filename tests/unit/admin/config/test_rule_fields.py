import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.config import plugins
from admin.config.faults import Origins
from admin.config.rule_fields import FieldError, RuleReader, Target, fields_of, target_of

READER = RuleReader([plugins.protocol("rocketmq", ("listeners",), Origins(None, {}, {}))], ["default"])
LIMITS = st.fixed_dictionaries(
    {"rate": st.one_of(st.integers(0, 1000), st.just("unlimited"))},
    optional={
        "burst_s": st.floats(1, 100),
        "break_s": st.sampled_from([None, 0, 0.5]),
        "bytes_per_s": st.sampled_from([None, 0, 1000]),
        "count": st.sampled_from(["messages", "requests"]),
        "action": st.sampled_from([None, "reject", "shadow", "off"]),
        "spool": st.sampled_from([None, False, True]),
        "fair_by": st.sampled_from([None, "client", "producer_group"]),
        "between": st.sampled_from([None, "00:00-24:00", "22:00-06:00"]),
        "days": st.sampled_from([None, ["mon"], ["sat", "sun"]]),
        "time_zone": st.sampled_from(["UTC", "Europe/Berlin"]),
    },
)
NAMES = st.sampled_from([("topic", "a"), ("topic", "a[*]b"), ("topic", "[["), ("topic", "a*"), ("total", "topic:a*")])


@given(NAMES, LIMITS)
def test_rule_round_trips_through_text(named: tuple[str, str], limit: dict[str, object]) -> None:
    try:
        rule = READER.read(*named, limit, "edit")
    except FieldError:
        return
    assert READER.read(*target_of(rule), fields_of(rule), "edit") == rule


@pytest.mark.parametrize("fields", [{}, {"days": ["mon"]}])
def test_an_invalid_time_zone_is_refused_with_and_without_hours(fields: dict[str, object]) -> None:
    with pytest.raises(FieldError) as caught:
        READER.read("topic", "a", {"rate": 1, "time_zone": "Mars", **fields}, "edit")
    ((field, what),) = caught.value.problems
    assert field == "time_zone"
    assert "Mars" in what


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(FieldError) as caught:
        READER.read("shelf", "a", {"rate": 1}, "edit")
    ((field, what),) = caught.value.problems
    assert field == "kind"
    assert what.startswith('unknown kind "shelf"; must be one of certificate, client, ')
    with pytest.raises(FieldError, match='unknown kind "topc"; did you mean "topic"'):
        READER.read("topc", "a", {"rate": 1}, "edit")


def test_where_nothing_can_be_limited_no_kind_is_one() -> None:
    protocol = plugins.protocol("rocketmq-namesrv", ("listeners",), Origins(None, {}, {}))
    reader = RuleReader([protocol], ["default"])
    for kind in ("topic", "client"):
        with pytest.raises(FieldError) as caught:
            reader.read(kind, "a", {"rate": 1}, "edit")
        assert caught.value.problems == (
            ("kind", f'unknown kind "{kind}"; limits are not supported by rocketmq-namesrv'),
        )
    with pytest.raises(FieldError, match="'a' is not the name of a shared limit; use KIND:PATTERN, for example topic"):
        reader.read("total", "a", {"rate": 1}, "edit")


def test_a_name_has_one_spelling() -> None:
    assert READER.target("topic", "[o]rders") == Target("topic", "orders")
    assert READER.target("client", "::ffff:10.0.0.0/104") == Target("client", "10.0.0.0/8")
    assert READER.target("total", "topic:a*") == Target("total", "topic:a*")
