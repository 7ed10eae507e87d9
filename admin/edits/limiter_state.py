"""Serializes the limiter state, so that a restart or a take-over forgets no debt.

Times are of the monotonic clock. State from another boot or time namespace is not used, and limiters start full.
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
    """Raises OverflowError if a figure has more than 64 bits."""
    return msgspec.msgpack.encode(_State(_VERSION, clock(), limits))


def decode(data: bytes) -> SavedLimits:
    """Raises ValueError if the state is damaged, or from another version or clock."""
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
    """Name this machine's monotonic clock. Processes with the same name read the same time."""
    boot, namespace = _CLOCK
    try:
        return f"{boot.read_text(encoding='ascii').strip()} {namespace.readlink()}"
    except OSError as error:
        # No other process has this name.
        return f"{os.getpid()} {error}"
