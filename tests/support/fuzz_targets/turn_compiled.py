"""Two data paths over real sockets, with the compiled turn and without it: an input chooses the schedule."""

from collections.abc import Iterable
from random import Random
from typing import Final
from zlib import crc32

from both_ways import run as serve
from playbook.schedules import settings, talk

from limiter.compiled import COMPILED
from proxy.protocols.rocketmq import PROTOCOL

if COMPILED is None:
    raise ImportError("the compiled extension is not installed: make native")

# A schedule starts two data paths.
STEPS: Final = (20_000_000, 100_000)
CHANGED: Final = 30


class Choices(Random):
    """Chooses by the bytes of an input. Behind its end, the choices are random, but the same for the same input."""

    def __init__(self, data: bytes) -> None:
        super().__init__(crc32(data))
        self._data, self._at = data, 0

    def getrandbits(self, k: int, /) -> int:
        """Return this many bits."""
        size = (k + 7) // 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken) >> (8 * size - k) if len(taken) == size else super().getrandbits(k)

    def random(self) -> float:
        """Return a fraction of one, in steps of 1/65536."""
        return self.getrandbits(16) / 65536


def run(data: bytes) -> None:
    random = Choices(data)
    serve(talk, random, PROTOCOL, **settings(random))


def seeds() -> Iterable[bytes]:
    return [Random(seed).randbytes(size) for seed, size in enumerate((50, 400, 400, 1500, 1500))]
