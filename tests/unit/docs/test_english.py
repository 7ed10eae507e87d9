"""The check of prose: patterns, places, and exit codes."""

from pathlib import Path

import english
import pytest
from english import BOUNDS, PATTERNS, ROOT, look, look_at, main


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Return what is over the limit.", "a clause without a noun"),
        ("Answers who asks.", "a clause without a noun"),
        ("Nobody is refused.", "somebody, nobody"),
        ("There are none, and this is none.", "is no"),
        ("Held for so long.", "so long, so many"),
        ("Read anew after a reload.", "dated adverb"),
        ("Args:\n    rate: of the limit.", "an attribute text that cannot stand alone"),
        ("It waits; then it ends.", "semicolon"),
    ],
)
def test_each_pattern_is_found(text: str, pattern: str) -> None:
    assert [find.pattern for find in look(f'"""{text}"""\n', ".py")[1]] == [pattern]


@pytest.mark.parametrize(
    "text",
    [
        "Messages over the limit wait. The caller is no longer blocked.",
        "What is wrong? See the log.",
        "As long as it takes, and so much that memory is full.",
        "Args:\n    rate: Messages per second.",
    ],
)
def test_plain_sentences_are_not(text: str) -> None:
    assert look(text, ".md")[1] == []


def test_only_prose_is_read_and_places_are_lines() -> None:
    python = 'NAME = "nobody"\n"""One.\n\nNobody waits."""\nx = 1  # somebody\ny = 2  # noqa: nobody\n'
    assert [(find.line, find.text) for find in look(python, ".py")[1]] == [
        (4, "One.  Nobody waits."),
        (5, "somebody"),
    ]
    assert [find.line for find in look("nobody\n```\nnobody\n```\n\n    nobody\nnobody\n", ".md")[1]] == [1, 7]
    assert [find.line for find in look('let a = "nobody";\n/// nobody\nb(); // nobody\n', ".rs")[1]] == [2, 3]
    assert look("two words", ".md")[0] == 2


def test_a_package_above_its_bound_fails_with_its_places(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(english, "ROOT", tmp_path)
    (tmp_path / "code.py").write_text('"""Nobody waits."""\n', encoding="utf-8")
    rate, finds = look_at(["code.py"])
    monkeypatch.setattr(english, "BOUNDS", {"code.py": rate})
    assert (main([]), capsys.readouterr().out) == (0, "")
    monkeypatch.setattr(english, "BOUNDS", {"code.py": rate - 0.1})
    assert main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(finds) + 1
    assert lines[0].startswith(f"{finds[0].path}:{finds[0].line}: ")


def test_bounds_name_existing_paths() -> None:
    assert all((ROOT / place).exists() for place in BOUNDS)
    assert len(PATTERNS) == 7
