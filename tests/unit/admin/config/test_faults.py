import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from admin.config.faults import Origins, describe, given, show, spell, unknown_key


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


def test_places_are_spelled_with_dots_and_indexes() -> None:
    assert spell(("listeners", 1, "options", "x")) == "listeners[1].options.x"


def test_values_are_cut_to_what_fits_a_line() -> None:
    assert len(show("x" * 1000)) == 60
    assert show({"a": object}).startswith('{"a": ')


def test_an_unknown_name_suggests_the_closest() -> None:
    assert unknown_key("tpoic", ["topic", "retry_group"]) == 'unknown; did you mean "topic"?'
    assert unknown_key("zzz", ["b", "a"]) == "unknown; allowed here: a, b"
    assert unknown_key("zzz", []) == "unknown; nothing can be set here"


def test_a_value_without_a_line_is_named_by_its_key_alone() -> None:
    assert Origins(None, {}, {}).problem(("grace_s",), "must be", 3) == "grace_s = 3: must be"
    assert Origins("f", {}, {}).problem(("grace_s",), "must be", 3) == "f: grace_s = 3: must be"


def test_what_came_from_nowhere_is_built_in() -> None:
    assert Origins("f", {}, {}).of(("handlers", 0)) == "built-in"


def test_an_error_without_a_text_of_ours_keeps_pydantics() -> None:
    class Model(BaseModel):
        model_config = ConfigDict(strict=True)
        value: bytes

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"value": 1})
    assert describe(caught.value, Origins(None, {}, {}), model=Model) == ["value = 1: must be a valid bytes"]
