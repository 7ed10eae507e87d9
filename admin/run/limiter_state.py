"""The limiter state as bytes, for a process that takes over or for the next start: a restart forgets no debt.

Times are of the monotonic clock, so state from another boot or time namespace is not used: limiters begin full.
"""

import os
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
import structlog

from admin.edits.store import Store
from limiter.deciding.limits import SavedLimits

_log = structlog.get_logger(__name__)

_VERSION: Final = 1
_CHECKSUM_BYTES: Final = 4
_CLOCK: Final = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/time"))


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    clock: str


class _State(_Head, frozen=True):
    limits: SavedLimits


class UnreadableError(Exception):
    """The state cannot be used; the message says why."""


def encode(limits: SavedLimits) -> bytes:
    """Return the state as bytes; raises OverflowError if a figure has more than 64 bits."""
    body = msgspec.msgpack.encode(_State(_VERSION, clock(), limits))
    return crc32(body).to_bytes(_CHECKSUM_BYTES) + body


def decode(data: bytes) -> SavedLimits:
    """Return the state of ``encode``.

    Raises:
        UnreadableError: it is damaged, another version's or another clock's.
    """
    body = data[_CHECKSUM_BYTES:]
    if crc32(body).to_bytes(_CHECKSUM_BYTES) != data[:_CHECKSUM_BYTES]:
        raise UnreadableError("damaged")
    try:
        # The rest may be another version's.
        head = msgspec.msgpack.decode(body, type=_Head)
        if head.version != _VERSION:
            raise UnreadableError(f"written by another version of Sluice ({head.version}, this one writes {_VERSION})")
        if head.clock != clock():
            raise UnreadableError("written before the machine was started, or by another clock")
        return msgspec.msgpack.decode(body, type=_State).limits
    except msgspec.MsgspecError as error:
        raise UnreadableError(str(error)) from None


def save(store: Store, limits: SavedLimits) -> None:
    """Save the state; a failure is logged. Blocks."""
    try:
        store.save_limiters(encode(limits))
    except (OSError, OverflowError) as error:
        _log.warning("the limits' state is not kept; limits begin full at the next start", reason=str(error))


def load(store: Store) -> SavedLimits | None:
    """Return the saved state; None if there is none that can be used. Blocks."""
    try:
        saved = store.saved_limiters()
        return None if saved is None else decode(saved)
    except (OSError, UnreadableError) as error:
        _log.warning("the saved state of the limits is not used; limits begin full", reason=str(error))
        return None


def clock() -> str:
    """Name this machine's monotonic clock: processes with the same name read the same time."""
    boot, namespace = _CLOCK
    try:
        return f"{boot.read_text(encoding='ascii').strip()} {namespace.readlink()}"
    except OSError as error:
        # No other process has this name.
        return f"{os.getpid()} {error}"
