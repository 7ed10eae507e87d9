"""The limits of a process as bytes, for the one after it: stored permits, debts, open breakers, fair shares.

They go to a process that takes this one's place (``hand_over``), or into a file of the state directory at an orderly
end, which the next start reads. So a restart forgives nobody. Times are of the monotonic clock: what was written on
another boot, or by another clock of a time namespace, says nothing here. Whatever cannot be read is left aside, with a
line in the log: every limit then begins full, as a new one does.
"""

import os
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
import structlog

from admin.common.disk import open_to_read, replace_durably, words_for
from limiter.deciding.limits import SavedLimits

_log = structlog.get_logger(__name__)

NAME: Final = "limits.state"
_VERSION: Final = 1
_CHECKSUM_BYTES: Final = 4
#: Some 130 bytes for each limiter that is not as good as new, of which there are no more than live ones. What is larger
#: is cut off, and so damaged.
_MAX_BYTES: Final = 256 * 1024 * 1024
_CLOCK: Final = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/time"))


class _Saved(msgspec.Struct, array_like=True, frozen=True):
    version: int
    clock: str


class _SavedAll(_Saved, frozen=True):
    limits: SavedLimits


class UnreadableError(Exception):
    """What was written cannot be used; the message says why."""


def encode(limits: SavedLimits) -> bytes:
    """Return limits as bytes.

    Raises:
        OverflowError: a figure has more than 64 bits.
    """
    body = msgspec.msgpack.encode(_SavedAll(_VERSION, clock(), limits))
    return crc32(body).to_bytes(_CHECKSUM_BYTES) + body


def decode(data: bytes) -> SavedLimits:
    """Return the limits of ``encode``.

    Raises:
        UnreadableError: they are damaged, another version's or another clock's.
    """
    body = data[_CHECKSUM_BYTES:]
    if crc32(body).to_bytes(_CHECKSUM_BYTES) != data[:_CHECKSUM_BYTES]:
        raise UnreadableError("damaged")
    try:
        # What is behind it may be another version's.
        saved = msgspec.msgpack.decode(body, type=_Saved)
        if saved.version != _VERSION:
            raise UnreadableError(f"written by another version of Sluice ({saved.version}, this one writes {_VERSION})")
        if saved.clock != clock():
            raise UnreadableError("written before the machine was started, or by another clock")
        return msgspec.msgpack.decode(body, type=_SavedAll).limits
    except msgspec.MsgspecError as error:
        raise UnreadableError(str(error)) from None


def write(directory: Path, limits: SavedLimits) -> None:
    """Write limits into a state directory; a failure is a line in the log. Blocks."""
    try:
        replace_durably(directory / NAME, (encode(limits),))
    except (OSError, OverflowError) as error:
        reason = words_for(error) if isinstance(error, OSError) else str(error)
        _log.warning("the limits' state is not kept; limits begin full at the next start", reason=reason)


def read(directory: Path) -> SavedLimits | None:
    """Return the limits that are in a state directory; None if there are none, or none that can be used. Blocks."""
    path = directory / NAME
    try:
        with os.fdopen(open_to_read(path), "rb") as file:
            return decode(file.read(_MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, UnreadableError) as error:
        reason = words_for(error) if isinstance(error, OSError) else str(error)
        _log.warning(
            "the limits' state of the process before is not used; limits begin full", file=str(path), reason=reason
        )
        return None


def clock() -> str:
    """Name this machine's monotonic clock: processes that name it alike tell the same time."""
    boot, namespace = _CLOCK
    try:
        return f"{boot.read_text(encoding='ascii').strip()} {namespace.readlink()}"
    except OSError as error:
        # Nobody else names it so.
        return f"{os.getpid()} {error}"
