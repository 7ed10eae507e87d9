"""Serializes the limiter state for a take-over or the next start, so that a restart forgets no debt.

Times are of the monotonic clock, so state from another boot or time namespace is not used: limiters start full.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from limiter.deciding.limits import SavedLimits

_VERSION: Final = 2
_CLOCK: Final = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/time"))


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    clock: str


class _State(_Head, frozen=True):
    limits: SavedLimits


def encode(limits: SavedLimits) -> bytes:
    """Return the state as bytes. Raises OverflowError if a figure has more than 64 bits."""
    return msgspec.msgpack.encode(_State(_VERSION, clock(), limits))


def decode(data: bytes) -> SavedLimits:
    """Return the state from ``encode``.

    Raises:
        ValueError: It is damaged, or from another version or clock.
    """
    try:
        # The rest may have another version's format.
        head = msgspec.msgpack.decode(data, type=_Head)
        if head.version != _VERSION:
            raise ValueError(f"written by another version of Sluice ({head.version}, this one writes {_VERSION})")
        if head.clock != clock():
            raise ValueError("written before the last boot, or with another clock")
        return msgspec.msgpack.decode(data, type=_State).limits
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def clock() -> str:
    """Return the name of this machine's monotonic clock. Processes with the same name read the same time."""
    boot, namespace = _CLOCK
    try:
        return f"{boot.read_text(encoding='ascii').strip()} {namespace.readlink()}"
    except OSError as error:
        # No other process has this name.
        return f"{os.getpid()} {error}"
