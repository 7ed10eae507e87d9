import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.config.toml_lines import find_lines, line_of

TEXT = '''limiting = true
admin = { listen = "x" }

[[listeners]]           # first
listen = "a"
[listeners.options]
"max frame" = 1

[[listeners]]
options.tls = "pass"
note = """
listen = "inside a string"
"""
[bounds]
max_connections = 1
[ defaults . topic ]
rate = 5
'''


def test_text_that_looks_like_a_key_has_no_line() -> None:
    text = "a = [ # one\n'''\n\"\\q\" = 1\n''']\nb = 2\n"
    tomllib.loads(text)
    lines = find_lines(text)
    assert (lines["a",], lines["b",]) == (1, 5)


def test_keys_and_tables_are_found_on_their_lines() -> None:
    lines = find_lines(TEXT)
    assert lines["limiting",] == 1
    assert lines["listeners", 0] == 4
    assert lines["listeners", 0, "listen"] == 5
    assert lines["listeners", 0, "options"] == 6
    assert lines["listeners", 0, "options", "max frame"] == 7
    assert lines["listeners", 1] == 9
    assert lines["listeners", 1, "options", "tls"] == 10
    assert lines["bounds", "max_connections"] == 15
    assert lines["defaults", "topic", "rate"] == 17


@pytest.mark.parametrize(
    ("place", "line"),
    [(("admin", "listen"), 2), (("listeners", 1, "broker"), 9), (("nowhere",), None), ((), None)],
)
def test_a_place_without_a_line_gets_its_parents(place: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(place, find_lines(TEXT)) == line


@given(st.text(alphabet="ab.=[]\"'# \n\\1{},", max_size=60))
def test_every_text_that_is_toml_can_be_searched(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert all(1 <= line <= len(text.splitlines()) for line in find_lines(text).values())
