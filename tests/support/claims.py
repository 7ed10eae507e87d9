"""Compares commands, targets, metrics, paths and settings in the documentation with the code."""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, NamedTuple

from cyclopts import CycloptsError
from reference.api import openapi
from reference.cli import commands
from reference.metrics import described

from admin.cli import app
from admin.common.environment import CLIENT_VARIABLES
from admin.common.errors import SettingsError
from admin.config.faults import keys
from admin.config.settings import Settings
from admin.config.sources import (
    ENV_BROKER,
    ENV_CONFIG,
    ENV_LIMIT,
    ENV_LISTEN,
    ENV_PROTOCOL,
    Flags,
    environment_names,
    load,
)
from admin.wire import BASE

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (
    *(f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "deploy/README")),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
"""Pages that are only about Sluice. Others have flags and paths of other programs."""

BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE: Final = re.compile(r"`([^`]+)`")
_COMMAND: Final = re.compile(r"(?:\$ )?(?:[\w./]*/bin/)?(sluice .*)")
_TO_FILE: Final = re.compile(r" > [\w./-]+(?=\s|$)")
_MAKE: Final = re.compile(r"(?:^|[\s(])make((?: [a-z][\w/-]*)+)", re.MULTILINE)
_TARGET: Final = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
_METRIC: Final = re.compile(r"(?<![\w/.$-])(sluice_[a-z0-9_]*[a-z0-9])(?![\w/.*])(\{[^}`]*\})?")
_LABEL: Final = re.compile(r"(\w+)\s*[=!]")
_PATH: Final = re.compile(rf"{BASE}(/[\w/%:.*{{}}-]*[\w}}])")
_METHOD: Final = re.compile(r"-X ([A-Z]+)")
_VARIABLE: Final = re.compile(r"\bSLUICE_[A-Z_]*[A-Z]\b")
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_LINK: Final = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
_FILE: Final = re.compile(r"(?<![\w/.-])((?:tests|deploy|docs|admin|proxy|limiter)/[\w./-]*\w)")
_TEST: Final = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_ANOTHER_FILE: Final = re.compile(r"# (?!sluice)[\w-]+\.toml\n")
_WORD: Final = re.compile(r"[a-z]+")

_PAIR: Final = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])
_SETTINGS: Final = frozenset(keys(Settings))
_OTHER_VARIABLES: Final = {
    *CLIENT_VARIABLES,
    ENV_LISTEN,
    ENV_BROKER,
    ENV_LIMIT,
    ENV_PROTOCOL,
    ENV_CONFIG,
}
_OF_MESSAGES: Final = frozenset({"SLUICE_REPLAYED"})
"""Properties of messages, in RocketMQ's spelling."""
_PACKAGES: Final = frozenset({"sluice_lines", "sluice_native", "sluice_scan"})
"""They look like metrics."""


class _Texts(NamedTuple):
    lines: list[str]
    toml: list[str]
    inline: list[str]


def _texts(text: str) -> _Texts:
    lines, toml = [], []
    for language, block in BLOCK.findall(text):
        if language in {"", "sh", "console"}:
            lines += block.replace("\\\n", " ").splitlines()
        elif language == "toml":
            toml.append(block)
    inline = [" ".join(code.split()) for code in _INLINE.findall(BLOCK.sub("", text))]
    return _Texts(lines, toml, inline)


@cache
def _flags() -> Mapping[tuple[str, ...], frozenset[str]]:
    """Return the flags of every command."""
    return {path: frozenset(_flags_of(path)) for path in commands()}


def _flags_of(path: tuple[str, ...]) -> Iterator[str]:
    of = app
    for name in path:
        of = of[name]
    yield from ("--help", "--version")
    if of.default_command is not None:
        for argument in of.assemble_argument_collection():
            yield from argument.names


def wrong_commands(text: str) -> Iterator[str]:
    """Find invalid commands in blocks, and mentions of missing commands and flags."""
    lines, _, inline = _texts(text)
    for line in lines:
        if match := _COMMAND.fullmatch(line.strip()):
            words = shlex.split(_TO_FILE.sub("", match[1]), comments=True)[1:]
            try:
                if "--help" not in words:
                    app.parse_args(words, print_error=False, exit_on_error=False)
            except CycloptsError as error:
                yield f"{line.strip()}: {' '.join(str(error).split())}"
    known = frozenset[str]().union(*_flags().values())
    for code in inline:
        if match := _COMMAND.fullmatch(code):
            yield from _wrong_mention(match[1])
        elif code.startswith("--") and (flag := _FLAG.match(code)) is not None and flag[0] not in known:
            yield f"{code}: no command has this flag"


def _wrong_mention(code: str) -> Iterator[str]:
    words = code.split()[1:]
    path = max((path for path in commands() if tuple(words[: len(path)]) == path), key=len)
    groups = {path[:-1] for path in commands() if path} - {()}
    follows = words[len(path)] if len(words) > len(path) else ""
    if not path and _WORD.fullmatch(follows):
        yield f"{code}: no such command"
    if path in groups and _WORD.fullmatch(follows) and not _takes_words(path):
        yield f"{code}: {' '.join(path)} has no such command"
    for flag in _FLAG.findall(code):
        if flag not in _flags()[path]:
            yield f"{code}: {flag} is no flag of it"


def _takes_words(path: tuple[str, ...]) -> bool:
    of = app
    for name in path:
        of = of[name]
    return of.default_command is not None and any(
        not any(name.startswith(("-", "*")) for name in argument.names)
        for argument in of.assemble_argument_collection()
    )


def wrong_targets(text: str) -> Iterator[str]:
    """Find targets that are not in the Makefile."""
    there = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    lines, _, inline = _texts(text)
    for line in (*lines, *inline):
        for targets in _MAKE.findall(line.partition("#")[0] if line.startswith("make") else line):
            for target in targets.split():
                if target not in there:
                    yield f"make {target}: no such target"


def wrong_metrics(text: str) -> Iterator[str]:
    """Find missing metrics, and labels that they do not have."""
    there = {each.name: set(each.labels) for each in described()}
    for name, selector in _METRIC.findall(text):
        if name in _PACKAGES:
            continue
        if name not in there:
            yield f"{name}: no such metric"
            continue
        for label in _LABEL.findall(selector):
            if label not in there[name]:
                yield f"{name}: has no label {label}"


def wrong_paths(text: str) -> Iterator[str]:
    """Find missing paths of the API, and wrong methods."""
    there = [
        (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), {method.upper() for method in item})
        for path, item in openapi()["paths"].items()
    ]
    there.append((re.compile("/openapi.json"), {"GET"}))
    for line in text.replace("\\\n", " ").splitlines():
        methods = set(_METHOD.findall(line))
        for path in _PATH.findall(line):
            found = [allowed for pattern, allowed in there if pattern.fullmatch(path)]
            if not found:
                yield f"{BASE}{path}: no such path"
            elif not methods <= set().union(*found):
                yield f"{BASE}{path}: does not take {', '.join(methods)}"


def wrong_settings(text: str) -> Iterator[str]:
    """Find invalid blocks of TOML, and unknown variables."""
    for block in _texts(text).toml:
        try:
            data = tomllib.loads(block)
        except tomllib.TOMLDecodeError as error:
            yield f"not TOML: {error}"
            continue
        if _ANOTHER_FILE.match(block):
            continue
        yield from _wrong_keys(block, data)
    known = {*environment_names(), *_OTHER_VARIABLES, *_OF_MESSAGES}
    yield from (f"{name}: no such variable" for name in _VARIABLE.findall(text) if name not in known)


def _wrong_keys(block: str, data: Mapping[str, Any]) -> Iterator[str]:
    with NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(block)
        file.flush()
        try:
            load(file.name, {}, Flags() if "listeners" in data else _PAIR)
        except SettingsError as error:
            yield from error.lines


def wrong_tests(text: str) -> Iterator[str]:
    """Find names of missing tests."""
    for file, name in _TEST.findall(text):
        path = ROOT / file
        if not path.exists() or not re.search(
            rf"^ *(?:async )?def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            yield f"{file}::{name}: no such test"


def wrong_files(text: str, folder: Path) -> Iterator[str]:
    """Find broken links and names of missing files. ``folder`` is the page's."""
    for target, anchor in _LINK.findall(text):
        path = (folder / target).resolve() if target else None
        if path is not None and not path.exists():
            yield f"{target}: no such file"
        elif anchor and anchor[1:] not in set(_anchors(path.read_text(encoding="utf-8") if path is not None else text)):
            yield f"{target}{anchor}: no such heading"
    lines, _, inline = _texts(text)
    for code in (*lines, *inline):
        for name in _FILE.findall(code):
            if not (ROOT / name).exists() and not (folder / name).exists():
                yield f"{name}: no such file"


def _anchors(text: str) -> Iterator[str]:
    for heading in re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


CHECKS: Final[Mapping[str, Callable[[str], Iterator[str]]]] = {
    "commands": wrong_commands,
    "targets": wrong_targets,
    "metrics": wrong_metrics,
    "paths": wrong_paths,
    "settings": wrong_settings,
    "tests": wrong_tests,
}
"""The checks that need only the text."""
