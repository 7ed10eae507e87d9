"""Serializes the limiter state, so that debts survive a restart or a take-over.

Saved times are monotonic. State from another boot or time namespace is ignored, and buckets start full.
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
    return msgspec.msgpack.encode(_State(_VERSION, clock(), limits))


def decode(data: bytes) -> SavedLimits:
    """Decode the state. Raises ValueError if it is damaged, or was saved by another version or with another clock."""
    try:
        # The rest may have another version's format.
        head = msgspec.msgpack.decode(data, type=_Head)
        if head.version != _VERSION:
            raise ValueError(f"written by another version of Sluice (format {head.version}, expected {_VERSION})")
        if head.clock != clock():
            raise ValueError("written before the machine last booted, or in another time namespace")
        return msgspec.msgpack.decode(data, type=_State).limits
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def clock() -> str:
    """Return an identifier of the monotonic clock. Processes with the same identifier share the clock."""
    boot, namespace = _CLOCK
    try:
        return f"{boot.read_text(encoding='ascii').strip()} {namespace.readlink()}"
    except OSError as error:
        # Return a text that no other process returns.
        return f"{os.getpid()} {error}"
