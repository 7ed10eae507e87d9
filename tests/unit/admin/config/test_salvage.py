from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.config.settings import Settings
from admin.config.sources import Faulty, salvage
from admin.config.toml_lines import Path as Place

LISTENER = {"listen": "127.0.0.1:1", "broker": "127.0.0.1:2"}
LIMIT = {"kind": "topic", "name": "a", "rate": 1}
RIGHT: dict[str, Any] = {
    "grace_s": 1,
    "listeners": [LISTENER],
    "limits": [LIMIT],
    "defaults": {"topic": {"rate": 2}},
    "handlers": [{"name": "rate_limit"}],
    "admin": {"public_metrics": True},
}


def found(data: dict[str, Any], *known: Place) -> tuple[Settings, list[Place], set[Place]]:
    faulty = set(known)
    settings, details = salvage(data, faulty)
    return settings, [detail["loc"] for detail in details], faulty


def test_what_is_right_is_left_as_it_is() -> None:
    settings, wrong, faulty = found({**RIGHT})
    assert (settings, wrong, faulty) == (Settings.model_validate(RIGHT), [], set())


def test_a_faulty_value_leaves_all_others() -> None:
    settings, wrong, faulty = found({"limits": [LIMIT, {**LIMIT, "rate": "x", "burst_s": 3}], "grace_s": "long"})
    assert [(limit.rate, limit.burst_s) for limit in settings.limits] == [(1, 1), ("unlimited", 3)]
    assert settings.grace_s == 10
    assert set(wrong) == faulty == {("grace_s",), ("limits", 1, "rate")}


def test_tables_keep_their_places_whatever_is_wrong_with_one() -> None:
    settings, wrong, faulty = found({"listeners": [3, LISTENER, {"listen": "x"}]})
    assert [str(each.listen) for each in settings.listeners][1] == "127.0.0.1:1"
    assert wrong == [("listeners", 0), ("listeners", 2, "listen"), ("listeners", 2, "broker")]
    assert ("listeners", 0, "scope") in Faulty(faulty)
    assert ("listeners", 1, "listen") not in Faulty(faulty)


def test_an_element_takes_its_list_with_it() -> None:
    settings, wrong, faulty = found({"listeners": [{**LISTENER, "exempt": ["10.0.0.1", "x"]}]})
    assert settings.listeners[0].exempt == []
    assert (wrong, faulty) == ([("listeners", 0, "exempt", 1)], {("listeners", 0, "exempt")})


@pytest.mark.parametrize("key", ["rat", "rate", "bytes_per_s", "action"])
def test_a_limit_whose_rate_may_be_meant_by_something_faulty_does_not_lack_one(key: str) -> None:
    _, wrong, _ = found({"limits": [{"kind": "topic", "name": "a", key: []}]})
    assert wrong == [("limits", 0, key)]


def test_a_limit_that_lacks_a_rate_besides_is_told_of_both() -> None:
    _, wrong, _ = found({"limits": [{"kind": "topic", "name": "a", "burst_s": "x"}]})
    assert wrong == [("limits", 0, "burst_s"), ("limits", 0)]


def test_what_is_known_to_be_wrong_is_not_told_again() -> None:
    place = ("listeners", 0, "listen")
    settings, wrong, faulty = found({"listeners": [{**LISTENER, "listen": "${NAME}:1"}]}, place)
    assert (len(settings.listeners), wrong, faulty) == (1, [], {place})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(sorted(RIGHT)), inner, max_size=2),
    max_leaves=4,
)
TABLES = st.dictionaries(
    st.sampled_from(["kind", "name", "rate", "listen", "broker", "protocol", "between", "lanes", "x"]), VALUES
)


@given(
    st.dictionaries(
        st.sampled_from([*sorted(RIGHT), "bounds", "log", "x"]),
        VALUES | TABLES | st.lists(TABLES | VALUES, max_size=3) | st.dictionaries(st.just("topic"), TABLES),
    )
)
def test_something_is_left_of_whatever_is_written_and_each_fault_is_known(data: dict[str, Any]) -> None:
    settings, wrong, faulty = found(data)
    assert isinstance(settings, Settings)
    assert all(
        place in Faulty(faulty) or (*place, "rate") in Faulty(faulty) or _inside(place, faulty) for place in wrong
    )
    assert bool(wrong) == bool(faulty)


def _inside(place: Place, faulty: set[Place]) -> bool:
    return any(each[: len(place)] == place for each in faulty)
