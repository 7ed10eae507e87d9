"""Recorded connections of real clients and a real broker."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playbook import frames

_FOLDER = Path(__file__).parents[2] / "captures" / "rocketmq"


@dataclass(frozen=True)
class Capture:
    """Both directions of one connection."""

    name: str
    to_broker: bytes
    to_client: bytes

    def __str__(self) -> str:
        """Return its name, for test ids."""
        return self.name


def _load() -> tuple[Capture, ...]:
    found = sorted(_FOLDER.glob("*/*-to-broker.bin"))
    if not found:
        raise FileNotFoundError(f"no captures in {_FOLDER}: check out the whole repository")
    return tuple(
        Capture(
            f"{path.parent.name}-{path.name.removesuffix('-to-broker.bin')}",
            path.read_bytes(),
            path.with_name(path.name.replace("-to-broker", "-to-client")).read_bytes(),
        )
        for path in found
    )


CAPTURES = _load()


# Numbers, times and the parts of message ids.
_NUMBER = re.compile(rb"[0-9]+|[0-9A-F]{8,}")


def distinct_frames(stream: Literal["to_broker", "to_client"]) -> tuple[bytes, ...]:
    """Return every distinct frame of one direction of all captures. Frames that differ only in numbers are the same."""
    found: dict[bytes, bytes] = {}
    for capture in CAPTURES:
        for whole in frames.split(getattr(capture, stream)):
            found.setdefault(_NUMBER.sub(b"#", whole[8:]), whole)
    return tuple(found.values())
