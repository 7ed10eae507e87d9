"""Finds turns of phrase that native engineers do not write, in docstrings, comments and Markdown.

    python tests/support/english.py                  check each package against its bound; exit code 1 above it
    python tests/support/english.py admin docs/faq.md    print all places of these files

Generated pages are checked where their texts are written. A line with several finds counts each.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
BOUNDS: Final = {
    "admin": 0.3,
    "proxy": 0.3,
    "limiter": 0.1,
    "native": 0.1,
    "tests": 0.1,
    "docs": 0.8,
    "deploy": 0.1,
    "README.md": 0.1,
    "CONTRIBUTING.md": 0.9,
    "SECURITY.md": 1.2,
    "CHANGELOG.md": 1.0,
}
"""Finds per 1 000 words that each package may have: what has been reached. Lower a bound when its package improves."""
_VERBS: Final = (
    "is was has have had can could would does did it they there a the its others else goes comes came ends waits "
    "becomes became stands follows asks reads writes sends takes gets knows"
).replace(" ", "|")
PATTERNS: Final = {
    "a clause without a noun": re.compile(
        rf"(?<!\banyone )\b(?:what|who|whoever) (?:{_VERBS})\b(?!.{{0,80}}\?)", re.IGNORECASE
    ),
    "somebody, nobody": re.compile(r"\b(?:some|no|every|any)body\b", re.IGNORECASE),
    "is no": re.compile(r"(?<!\b[Tt]here )\b(?:is|are|was|were) (?:no|none)\b(?! (?:longer|more than)\b)"),
    "so long, so many": re.compile(r"\bso (?:long|many|often|much)\b(?! (?:as|that)\b)", re.IGNORECASE),
    "dated adverb": re.compile(r"\b(?:likewise|besides|anew|of late|for good)\b", re.IGNORECASE),
    "an attribute text that cannot stand alone": re.compile(r"(?m)^ +\w+: (?:of|to|that|by) "),
    "semicolon": re.compile(r";(?=[ \n]+\S)"),
}
_SUFFIXES: Final = {".py", ".md", ".js", ".rs"}
_LEFT_OUT: Final = re.compile(r"/vendor/|/target/|/node_modules/|^docs/reference/|^tests/support/english\.py$")
_NOT_PROSE: Final = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma)")


class Find(NamedTuple):
    path: str
    line: int
    pattern: str
    text: str


def prose(source: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, comments or paragraphs of a file, each with its first line."""
    if suffix == ".md":
        lines = re.sub(r"(?s)```.*?```", lambda code: "\n" * code[0].count("\n"), source).splitlines()
        yield from ((number, line) for number, line in enumerate(lines, 1) if not line.startswith("    "))
    elif suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.lineno, node.value.value
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and _NOT_PROSE.match(token.string) is None:
                yield token.start[0], token.string.lstrip("#: ")
    else:
        for number, line in enumerate(source.splitlines(), 1):
            if (comment := re.search(r"(?:^|\s)(?://[/!]?|/?\*\*?) ?(.*)", line)) is not None:
                yield number, comment[1]


def look(source: str, suffix: str, path: str = "") -> tuple[int, list[Find]]:
    """Return the number of words of prose in a file, and the finds."""
    words, finds = 0, []
    for first, text in prose(source, suffix):
        words += len(text.split())
        for pattern, found in ((name, found) for name, each in PATTERNS.items() for found in each.finditer(text)):
            line = first + text.count("\n", 0, found.start())
            around = text[max(0, found.start() - 30) : found.end() + 40].replace("\n", " ").strip()
            finds.append(Find(path, line, pattern, around))
    return words, finds


def _files(places: Iterable[str]) -> Iterator[Path]:
    for place in (ROOT / each for each in places):
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        for path in found:
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in _SUFFIXES and path.is_file() and _LEFT_OUT.search(name) is None:
                yield path


def look_at(places: Iterable[str]) -> tuple[float, list[Find]]:
    """Return the finds per 1 000 words in files and folders below the root, and all finds."""
    words, finds = 0, list[Find]()
    for path in _files(places):
        more, found = look(path.read_text(encoding="utf-8"), path.suffix, path.relative_to(ROOT).as_posix())
        words += more
        finds += found
    return 1000 * len(finds) / max(1, words), finds


def main(places: list[str]) -> int:
    is_over = False
    for place in places or BOUNDS:
        rate, finds = look_at([place])
        bound = BOUNDS.get(place)
        exceeds = not places and bound is not None and rate > bound
        is_over |= exceeds
        if places or exceeds:
            for find in finds:
                print(f"{find.path}:{find.line}: {find.pattern}: …{find.text}…")
            print(f"{place}: {rate:.1f} per 1 000 words" + (f", more than {bound:g}" if exceeds else ""))
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
