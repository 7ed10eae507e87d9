from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from admin.config.faults import FaultsError, FromText, Origins, given, read, show, spell


class Inner(Struct, frozen=True, kw_only=True):
    word: Literal["a", "b"] = "a"
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    names: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=2)] = []


_INNER = Inner()


@dataclass(frozen=True)
class Outer:
    size: Annotated[int, Meta(ge=1)]
    inner: Inner = _INNER
    more: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.size == 13:
            raise ValueError("must not be 13")


def faults(value: object) -> list[str]:
    with pytest.raises(FaultsError) as caught:
        read(Outer, value)
    return [f"{spell(each.place)}: {each.told}" for each in caught.value.faults]


def test_tables_become_structs_and_dataclasses_of_any_depth() -> None:
    given = {"size": 1, "inner": {"share": 1, "names": ["x"]}, "more": {"x": {"y": None}}}
    assert read(Outer, given) == Outer(1, Inner(share=1.0, names=["x"]), {"x": {"y": None}})
    assert read(Outer, {"size": FromText(" 7 "), "inner": {"share": FromText("0.5")}}) == Outer(7, Inner(share=0.5))


def test_all_faults_are_found_at_once_each_with_its_place() -> None:
    assert faults({"sise": 0, "inner": {"word": "c", "share": 2, "names": ["", 1]}}) == [
        'sise: unknown; did you mean "size"?',
        "size: missing, but required",
        'inner.word: must be "a" or "b"; found "c"',
        "inner.share: must be more than 0 and at most 1; found 2",
        'inner.names[0]: must not be empty; found ""',
        "inner.names[1]: must be text in quotes; found 1",
    ]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (3, ": must be a table; found 3"),
        ({"size": 13}, ": must not be 13"),
        ({"size": True}, "size: must be a whole number; found true"),
        ({"size": 2**63}, "size: must fit in 64 bits; found 9223372036854775808"),
        ({"size": FromText("99999999999999999999")}, 'size: must fit in 64 bits; found "99999999999999999999"'),
        ({"size": "1"}, 'size: must be a whole number; found "1"'),
        ({"size": 1, "inner": {"share": float("nan")}}, "inner.share: must be more than 0 and at most 1; found nan"),
        ({"size": 1, "inner": {"share": 10**400}}, "inner.share: must be a number; found 1000000000"),
        ({"size": 1, "inner": {"names": "x"}}, "inner.names: must be an array"),
        ({"size": 1, "inner": {"names": ["x"] * 3}}, "inner.names: must contain at most 2 values, but contains 3"),
    ],
)
def test_a_fault_names_allowed_values(value: object, told: str) -> None:
    (fault,) = faults(value)
    assert fault.startswith(told)


def test_thousands_of_unknown_keys_are_listed_in_part() -> None:
    assert len(faults({f"size{number}": 1 for number in range(5000)})) < 50


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("--admin", "x", "--admin x"),
        ("--admin", "a b", '--admin "a b"'),
        ("SLUICE_ADMIN", "x", "SLUICE_ADMIN=x"),
        ("SLUICE_ADMIN", "a\nb", 'SLUICE_ADMIN="a\\nb"'),
        ("--grace-s", -1.0, "--grace-s -1.0"),
        ("--listen", None, "--listen"),
    ],
)
def test_flags_and_variables_are_written_as_on_a_command_line(name: str, value: object, text: str) -> None:
    assert given(name, value) == text


def test_values_are_cut_to_fit_a_line() -> None:
    assert len(show("x" * 1000)) == 60
    assert show(16**5000) == "int"


def test_a_value_without_a_line_is_named_by_its_key_alone() -> None:
    assert Origins(None, {}, {}).problem(("grace_s",), "must be", 3) == "grace_s = 3: must be"
    assert Origins("f", {}, {}).problem(("grace_s",), "must be", 3) == "f: grace_s = 3: must be"
    assert Origins("f", {}, {}).of(("handlers", 0)) == "built-in"
