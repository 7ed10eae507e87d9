"""Reads and updates a fleet's edit log in Redis.

The log is a hash. The fields ``1``, ``2`` and so on contain the edits in order. The field ``""`` contains the version:
the number and member of the last edit. Every call that a member makes to Redis returns the version. When it changes,
the member reads the log and applies the new edits. A member can append edits only if it has read the current version,
so all members see the same order. The log keeps the latest edit of each limit and, for the audit trails, the last KEPT
edits.

Members save the edits that they have seen. If Redis loses the log, the first member that notices restores the edits.
The other members recognize them, although their numbers are new.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
import structlog

from admin.edits.model import (
    FLEET,
    LIMITS,
    MAX_NAME,
    MAX_REASON,
    SWITCHES,
    ActiveEdit,
    FieldProblem,
    ForFleet,
    InvalidError,
    is_over,
)

_log = structlog.get_logger(__name__)

MAX_LIMITS: Final = 1000
"""Maximum number of limits and switches with a fleet edit."""
KEPT: Final = 200
"""How many of the latest edits the log keeps, even if they have been replaced."""
MAX_BYTES: Final = 16_384
_MAX_TEXT: Final = 255


class Entry(NamedTuple):
    path: str
    edit: ActiveEdit  # undoes the previous edit if both limit and limiting are None


class Merge(NamedTuple):
    """The difference between the log and a member's stored edits."""

    new: list[Entry]  # edits to apply, in this order
    lost: list[Entry]  # edits to restore in the log
    gone: list[str]  # paths that are in the store but not in the log


class FleetLog:
    def __init__(self, name: str, member: str) -> None:
        self.name, self.member = name, member
        self.version: bytes | None = None
        self._number = 0  # number of the last edit in the log
        self._entries: dict[int, Entry] = {}

    def merge(self, fields: Mapping[bytes, bytes], stored: Mapping[str, ActiveEdit], now: datetime) -> Merge:
        """Read the fields of the log and compare them with the stored fleet edits.

        The keys of ``stored`` are paths prefixed with FLEET.
        """
        before = None if self.version is None else self._number
        self.version = fields.get(b"", b"")
        self._entries = dict(sorted(self._read(fields)))
        self._number = max([_number(self.version.partition(b" ")[0]), *self._entries])
        latest = {entry.path: number for number, entry in self._entries.items()}
        known = {each.removeprefix(FLEET): (self.mark(edit), edit) for each, edit in stored.items()}
        found = Merge([], [], [])
        for number, entry in self._entries.items():
            mine, _ = known.get(entry.path, (_NONE, None))
            # After startup or a loss of the log, only the last edit of each path counts.
            is_unseen = latest[entry.path] == number and entry.edit.fleet != mine and mine.number <= self._number
            if is_unseen or (before is not None and number > before):
                found.new.append(entry)
        for path, (mine, edit) in known.items():
            if mine.number > self._number and not _has_ended(edit, now):
                found.lost.append(Entry(path, edit))
            elif path not in latest:
                found.gone.append(FLEET + path)
                if mine.number and not _has_ended(edit, now):
                    # The edit was undone long ago, so the log no longer contains it.
                    found.new.append(Entry(path, msgspec.structs.replace(edit, limit=None, limiting=None)))
        return found

    def add(
        self, entries: Sequence[Entry], stored: Mapping[str, ActiveEdit], now: datetime, after: Mapping[str, int] | None
    ) -> tuple[list[Entry], dict[str, bytes], list[str]]:
        """Assign numbers to edits for the log. Returns the edits, the fields to set, and the fields to remove.

        The keys of ``stored`` are the same as for ``merge``. ``after`` maps each path to the number of the latest edit
        that the author had seen. It is None when lost edits are restored.

        Raises:
            InvalidError: an edit is too large, or the log is full.
        """
        number = max([self._number, *(self.mark(each).number for each in stored.values())])
        every, added, fields, seen = dict(self._entries), [], {}, dict(after or {})
        for path, edit in entries:
            number += 1
            was = self.mark(edit)
            mark = (
                msgspec.structs.replace(was, number=number)
                if after is None
                else ForFleet(self.name, number, self.member, seen.get(path, 0))
            )
            every[number] = entry = Entry(path, msgspec.structs.replace(edit, change_id=0, fleet=mark))
            seen[path] = number
            added.append(entry)
            fields[str(number)] = data = msgspec.json.encode(entry)
            if len(data) > MAX_BYTES:
                raise InvalidError(
                    FieldProblem(
                        "", f"as JSON, a fleet edit must not exceed {MAX_BYTES} bytes; give fewer or shorter values"
                    )
                )
        latest = {entry.path: each for each, entry in every.items()}
        if after is not None and sum(not _has_ended(every[each].edit, now) for each in latest.values()) > MAX_LIMITS:
            why = f"at most {MAX_LIMITS} limits can have a fleet edit; undo the edits of other limits first"
            raise InvalidError(FieldProblem("", why))
        removed = [
            str(each)
            for each, entry in every.items()
            if each <= number - KEPT and (latest[entry.path] != each or _has_ended(entry.edit, now))
        ]
        return added, fields | {"": f"{number} {self.member}".encode()}, removed

    def mark(self, edit: ActiveEdit | None) -> ForFleet:
        """Return an edit's position in this fleet's log, or ``_NONE`` if it has none."""
        mark = None if edit is None else edit.fleet
        return _NONE if mark is None or mark.name != self.name else mark

    def _read(self, fields: Mapping[bytes, bytes]) -> Iterator[tuple[int, Entry]]:
        for field, value in fields.items():
            if not field:
                continue
            try:
                number = _number(field)
                if not number or len(value) > MAX_BYTES:
                    raise ValueError(f"longer than {MAX_BYTES} bytes" if number else "field is not a number")  # noqa: TRY301
                entry = _entry.decode(value)
                _check(entry)
                mark = entry.edit.fleet or _NONE
                edit = msgspec.structs.replace(
                    entry.edit, fleet=msgspec.structs.replace(mark, name=self.name, number=number)
                )
                yield number, Entry(entry.path, edit)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                _log.warning(
                    "ignored an invalid entry in the fleet's edit log",
                    field=field[:_MAX_TEXT].decode(errors="replace"),
                    reason=str(error)[:_MAX_TEXT],
                )


_NONE: Final = ForFleet("", 0, "")
_entry: Final = msgspec.json.Decoder(Entry)


def is_undone(edit: ActiveEdit) -> bool:
    return edit.limit is None and edit.limiting is None


def is_same(one: ActiveEdit, other: ActiveEdit) -> bool:
    """Return whether two fleet edits are equal except for their numbers."""
    ones, others = (msgspec.structs.replace(each.fleet or _NONE, number=0) for each in (one, other))
    return msgspec.structs.replace(one, fleet=ones) == msgspec.structs.replace(other, fleet=others)


def _has_ended(edit: ActiveEdit, now: datetime) -> bool:
    return is_undone(edit) or is_over(edit, now)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 16 else 0


def _check(entry: Entry) -> None:
    (path, edit), mark = (entry.path, entry.edit), entry.edit.fleet
    kind, _, name = path.removeprefix(LIMITS).partition("/")
    is_limit = path.startswith(LIMITS) and kind and 1 <= len(name) <= MAX_NAME and edit.limiting is None
    is_switch = path.startswith(SWITCHES) and len(path) <= MAX_NAME and edit.limit is None
    texts = (edit.by, edit.address, mark.member if mark is not None else "")
    if not (is_limit or is_switch) or len(edit.reason) > MAX_REASON or max(map(len, texts)) > _MAX_TEXT:
        raise ValueError("not an edit of a limit or switch")
    if datetime.fromisoformat(edit.at).tzinfo is None:
        raise ValueError("the time has no time zone")
