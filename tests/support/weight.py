"""Counts how heavy the tree is: lines of code, and words of comments and docstrings, by folder.

    python tests/support/weight.py                  the working tree
    python tests/support/weight.py 2caab9d          that revision and the working tree, side by side
    python tests/support/weight.py 2caab9d main     two revisions

All lines of .py, .pyi, .js, .css and .rs files count, blank ones too. JS is counted as Prettier writes it at 120
columns if a Prettier is found, or else as it is. Vendored and generated files are left out.
"""

import argparse
import ast
import io
import re
import shutil
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ADMIN = {
    "edits": ["edits", "state"],
    "rejection_log": ["rejection_log"],
    "http": ["http"],
    "wire, stats": ["wire", "stats"],
    "client, cli": ["client", "cli"],
    "config": ["config"],
    "run": ["run"],
    "demo": ["demo"],
    "common, web.py": ["common", "web.py", "web/__init__.py"],
    "page": ["web"],
    "analytics": ["analytics"],
}
PARTS = [*((f"admin/{path}", part) for part, paths in ADMIN.items() for path in paths), ("admin", "admin, the rest")]
PARTS += [(path, path) for path in ("proxy", "limiter", "native", "tests")]
LEFT_OUT = re.compile(r"/vendor/|^admin/cli/protocol_words\.py$")
TYPES = {"py": "Python", "pyi": "Python", "js": "JS", "css": "CSS", "rs": "Rust"}
COMMENTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
PRETTIER = next(chain(ROOT.glob(".parts/*/node_modules/.bin/prettier"), filter(None, [shutil.which("prettier")])), None)


def part_of(path: str) -> str:
    """The row of the table that a file belongs to."""
    return next((part for prefix, part in PARTS if path == prefix or path.startswith(f"{prefix}/")), "")


def files(revision: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of each file that counts, in a revision or the working tree."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    listed = git("ls-tree", "-r", "--name-only", revision) if revision else git("ls-files", "-co", "--exclude-standard")
    for path in listed.splitlines():
        if path.rpartition(".")[2] in TYPES and part_of(path) and not LEFT_OUT.search(path):
            if revision:
                yield path, git("show", f"{revision}:{path}")
            elif (ROOT / path).is_file():
                yield path, (ROOT / path).read_text()


def formatted(path: str, text: str) -> str:
    """A script as Prettier writes it."""
    if PRETTIER is None or not path.endswith(".js"):
        return text
    command = [str(PRETTIER), "--print-width", "120", "--stdin-filepath", path]
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout


def words(path: str, text: str) -> int:
    """Words of comments and, in Python, of strings that stand alone."""
    if path.endswith((".py", ".pyi")):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        prose = [token.string.lstrip("#!: ") for token in tokens if token.type == tokenize.COMMENT]
        alone = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
        prose += [each.value for each in alone if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    else:
        prose = [found for found in COMMENTS.findall(text) if not found.startswith('"')]
    return sum(len(re.findall(r"\w[\w'-]*", each)) for each in prose)


def weigh(revision: str | None) -> Counter[tuple[str, str]]:
    """Lines by type and words, for each part, and in total."""
    found: Counter[tuple[str, str]] = Counter()
    for path, text in files(revision):
        rows = [part_of(path), "all", *(["product"] if not path.startswith("tests/") else [])]
        if path.startswith("admin/") and rows[0] != "analytics":
            rows.append("admin without analytics")
        lines, prose = len(formatted(path, text).splitlines()), words(path, text)
        for row in rows:
            found[row, TYPES[path.rpartition(".")[2]]] += lines
            found[row, "words"] += prose
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="*", metavar="revision", help="at most two; one is compared with the tree")
    revisions: list[str | None] = parser.parse_args().revisions
    if len(revisions) > 2:
        parser.error("two revisions at most")
    if len(revisions) < 2:
        revisions.append(None)
    try:
        weights = [weigh(revision) for revision in revisions]
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip())
    columns = ["Python", "JS", "CSS", "Rust", "words"]
    width = 8 * len(weights) + 2
    print(f"{'':<24}" + "".join(f"{column:>{width}}" for column in columns))
    print(f"{'':<24}" + "".join("  " + "".join(f"{(each or 'here')[:7]:>8}" for each in revisions) for _ in columns))
    for part in [*dict.fromkeys(part for _, part in PARTS), "admin without analytics", "product", "all"]:
        figures = ["  " + "".join(f"{weight[part, column] or '':>8}" for weight in weights) for column in columns]
        print(f"{part:<24}" + "".join(figures).rstrip())


if __name__ == "__main__":
    main()
