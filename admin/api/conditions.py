"""Conditions of requests: entity tags in ``If-Match`` and ``If-None-Match``, as RFC 9110, section 13, has them."""

import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from admin.api.answers import bad
from admin.live.model import Change, LimitEntry, StaleError, Standing, SwitchEntry

ANY: Final = "*"
_TAG: Final = re.compile(r'[ \t]*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"[ \t]*')
#: Equals no tag: a condition that nothing fulfils.
_NONE: Final = "W/"


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one header.

    Attributes:
        any: the header is ``*``.
        strong: tags that compare strongly.
        weak: the others.
    """

    any: bool = False
    strong: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()

    def names(self, etag: str) -> bool:
        """Compare weakly, as ``If-None-Match`` does."""
        return self.any or etag in self.strong or etag in self.weak


def read_tags(request: Request, header: str) -> Tags | None:
    """Read a header, or several of that name; None if there is none.

    Raises:
        BadRequestError: it is no list of tags.
    """
    values = request.headers.getlist(header)
    if not values:
        return None
    text = ",".join(values)
    if text.strip() == ANY:
        return Tags(any=True)
    strong: list[str] = []
    weak: list[str] = []
    position = 0
    while position < len(text):
        found = _TAG.match(text, position)
        if found is not None:
            (weak if found[1] else strong).append(found[2])
            position = found.end()
        else:
            # Empty elements of a list are left out.
            position += len(text[position:]) - len(text[position:].lstrip(" \t"))
        if position < len(text) and text[position] != ",":
            raise bad(header, f'must be * or tags in quotes, "abc", "def"; found {text[:100]!r}')
        position += 1
    if not strong and not weak:
        raise bad(header, 'must be * or tags in quotes, "abc", "def"; it is empty')
    return Tags(strong=tuple(strong), weak=tuple(weak))


def is_conditional(request: Request) -> bool:
    """Whether a write expects anything."""
    return "if-match" in request.headers or "if-none-match" in request.headers


def has_it(request: Request, etag: str) -> bool:
    """Whether the client of a GET has what it would get."""
    tags = read_tags(request, "if-none-match")
    return tags is not None and tags.names(etag)


def expected(request: Request, entry: LimitEntry | SwitchEntry) -> str | None:
    """Return the one tag that the write must find in force, or ``*``, or None if it is as good as any.

    Args:
        request: the write.
        entry: what it changes, as it is now.

    Raises:
        BadRequestError: a header cannot be read.
        StaleError: ``If-None-Match`` names what is in force.
    """
    none_match = read_tags(request, "if-none-match")
    if none_match is not None and (entry.edit is not None if none_match.any else none_match.names(entry.etag)):
        raise StaleError(0, entry.etag, _whose(entry.edit))
    match = read_tags(request, "if-match")
    if match is None:
        # Whoever comes in between makes the condition false.
        return None if none_match is None else entry.etag
    if match.any:
        return ANY
    return one_of(match, entry.etag)


def left_by(change: Change, entry: LimitEntry | SwitchEntry) -> str | None:
    """Return the tag of what a write left in force; None if somebody else has changed it already.

    Args:
        change: the write; a dry run leaves what there was.
        entry: what it changed, as it is now.
    """
    stands = None if entry.edit is None else entry.edit.change_id
    mine = change.id if change.action == "set" else None
    return entry.etag if change.id == 0 or stands == mine else None


def one_of(tags: Tags, etag: str) -> str:
    """Return the tag that must be in force: the present one if it is among them, or else one that is not."""
    return etag if etag in tags.strong else next(iter(tags.strong), _NONE)


def _whose(edit: Standing | None) -> str:
    if edit is None:
        return "this is what is in force"
    reason = f": {edit.reason}" if edit.reason else ""
    return f"edited already: change {edit.change_id} by {edit.by} at {edit.at}{reason}"
