"""Serves the admin page's static files, and fills in the limit fields and table columns.

The files are read at startup. They can be loaded without a token, because only the API returns data.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.common.columns import COLUMNS
from admin.config.limit_fields import FIELDS, LimitField

INDEX: Final = "index.html"
PREFIX: Final = "/web/"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOLDERS: Final = ("", "vendor/")
#: File names are the same in every version, so browsers must revalidate the files.
_CACHE_CONTROL: Final = "no-cache"
_INPUTS: Final[Mapping[Any, str]] = {bool: "check", str: "text"}


def _input(of: LimitField) -> str:
    if of.is_choice:
        return "boolean"
    if of.words or of.values:
        return "choice"
    return "days" if of.is_list else _INPUTS.get(of.plain_type, "number")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _field(of: LimitField) -> dict[str, Any]:
    words = {**of.words, **{word: word for word in of.values if word not in of.words}}
    return {
        "key": of.key,
        "label": of.label,
        "input": _input(of),
        "otherwise": of.default,
        "help": "" if _input(of) == "check" else _sentence(of.meaning.partition(". ")[0]),
        "options": list(words.items()),
        "named": of.named,
        "telling": of.telling,
        "beside": of.beside,
        "onlyWith": of.only_with,
        "notWith": of.not_with,
        "notOf": of.not_of,
        "onlyOf": of.only_of,
        "wordsNotOf": of.words_not_of,
    }


_FORM: Final = sorted((each for each in FIELDS if each.label), key=lambda each: each.place)
#: Lines in the files, and the lines that replace them.
_FILLED_IN: Final = {
    b"export const FIELDS = [];": b"export const FIELDS = %s;" % json.dumps([_field(each) for each in _FORM]).encode(),
    b"export const COLUMNS = {};": b"export const COLUMNS = %s;" % msgspec.json.encode(COLUMNS),
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    media_type: str
    etag: str

    async def answer(self, request: Request) -> Response:
        headers = {"etag": self.etag, "cache-control": _CACHE_CONTROL}
        known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
        if any(tag in (self.etag, "*") for tag in known):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def files() -> dict[str, StaticFile]:
    """Return all files, keyed by their path relative to ``/web/``."""
    found = {}
    for folder in _FOLDERS:
        for entry in resources.files(__name__).joinpath("files", folder).iterdir():
            suffix = entry.name[entry.name.rfind(".") :]
            if entry.is_file() and suffix in _TYPES:
                body = entry.read_bytes()
                for empty, filled in _FILLED_IN.items():
                    body = body.replace(empty, filled)
                digest = hashlib.sha256(body).hexdigest()[:32]
                found[folder + entry.name] = StaticFile(body, _TYPES[suffix], f'"{digest}"')
    return found


def routes() -> list[Route]:
    found = files()
    paths = {"/": found[INDEX]} | {PREFIX + name: file for name, file in found.items() if name != INDEX}
    return [Route(path, file.answer) for path, file in paths.items()]
