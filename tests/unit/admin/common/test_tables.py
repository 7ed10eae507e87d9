import io

from rich.console import Console

from admin.common.tables import Rows, printable


def drawn(rows: Rows, *, terminal: bool, width: int = 40) -> str:
    stream = io.StringIO()
    Console(file=stream, force_terminal=terminal, width=width, color_system=None).print(rows)
    return stream.getvalue()


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert list(Rows(("name", "n"), [("a", "10"), ("longer", "5")], right=[1]).lines()) == [
        "name      n",
        "a        10",
        "longer    5",
    ]


def test_no_line_ends_in_blanks() -> None:
    assert list(Rows(("a", "b"), [("long", "")]).lines()) == ["a      b", "long"]


def test_wide_characters_take_two_columns() -> None:
    assert list(Rows((), [("日本", "x"), ("abcd", "y")]).lines()) == ["日本   x", "abcd   y"]


def test_a_table_of_nothing_is_nothing() -> None:
    assert list(Rows((), []).lines()) == []


def test_empty_columns_are_left_out() -> None:
    used = Rows(("a", "b", "c"), [("1", "", "3"), ("", "", "4")], right=[2]).used()
    assert (used.columns, used.right) == (("a", "c"), {1})


def test_off_a_terminal_nothing_is_wrapped() -> None:
    name = "x" * 100
    assert drawn(Rows(("name",), [(name,)]), terminal=False, width=1000) == f"name\n{name}\n"


def test_on_a_terminal_a_long_cell_is_folded() -> None:
    text = drawn(Rows(("name", "[n]"), [("x" * 100, "[red]")]), terminal=True)
    assert all(len(line.rstrip()) <= 40 for line in text.splitlines())
    assert "[red]" in text


def test_on_a_terminal_wide_tables_are_written_row_by_row_without_breaking_words() -> None:
    text = drawn(Rows(("rule", "limit", "from"), [("topic:orders", "500/s.", "deploy/sluice.toml:70")]), terminal=True)
    assert [line.rstrip() for line in text.splitlines()] == [
        "topic:orders",
        "   limit 500/s; from",
        "   deploy/sluice.toml:70",
    ]


def test_on_a_terminal_long_output_scrolls() -> None:
    text = drawn(Rows((), [("x" * 100,)] * 501), terminal=True)
    assert text.count("x") == 501 * 100


def test_unprintable_characters_are_escaped() -> None:
    assert printable("a\x1b[2J\n\u202eb") == "a\\x1b[2J\\n\\u202eb"
    assert list(Rows((), [("a\nb",)]).lines()) == ["a\\nb"]
