"""Data of two peers in turn, as bytes that libFuzzer can change, and changes that keep frames complete."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from fuzz_targets import Changed
from proxy.deciding.batch import Side

_BEGIN: Final = struct.Struct(">BH")
_STEP: Final = struct.Struct(">BH")
_FROM_BROKER: Final = 0x80
_MAX_STEP: Final = 0xFFFF
# Longer conversations are not cut into single bytes.
_SINGLE_BYTES: Final = 400

WHOLE, SINGLE = 0, 1
"""Ways to cut: not at all, or into single bytes. Others are eight times the longest chunk."""


class Step(NamedTuple):
    side: Side
    cut: int
    data: bytes

    def chunks(self, random: Random) -> Iterator[bytes]:
        longest = len(self.data) if self.cut == WHOLE else 8 * self.cut
        if self.cut == SINGLE and len(self.data) <= _SINGLE_BYTES:
            longest = 1
        at = 0
        while at < len(self.data):
            size = longest if self.cut == WHOLE else random.randint(1, longest)
            yield self.data[at : at + size]
            at += size


class Conversation(NamedTuple):
    options: int
    seed: int
    steps: Sequence[Step]

    def chunks(self) -> Iterator[tuple[Side, bytes]]:
        for number, step in enumerate(self.steps):
            for chunk in step.chunks(Random(self.seed << 16 | number)):
                yield step.side, chunk

    def whole(self) -> "Conversation":
        return self._replace(steps=[step._replace(cut=WHOLE) for step in self.steps])

    def said(self, side: Side) -> bytes:
        return b"".join(step.data for step in self.steps if step.side is side)


def read(data: bytes) -> Conversation | None:
    """Parse an input. None: too short."""
    if len(data) < _BEGIN.size:
        return None
    options, seed = _BEGIN.unpack_from(data)
    steps, at = [], _BEGIN.size
    while at + _STEP.size < len(data):
        how, size = _STEP.unpack_from(data, at)
        at += _STEP.size
        side = Side.BROKER if how & _FROM_BROKER else Side.CLIENT
        steps.append(Step(side, how & ~_FROM_BROKER, data[at : at + size]))
        at += size
    return Conversation(options, seed, [step for step in steps if step.data])


def write(conversation: Conversation) -> bytes:
    out = bytearray(_BEGIN.pack(conversation.options, conversation.seed))
    for side, cut, data in conversation.steps:
        how = cut | (_FROM_BROKER if side is Side.BROKER else 0)
        for at in range(0, len(data), _MAX_STEP):
            piece = data[at : at + _MAX_STEP]
            out += _STEP.pack(how, len(piece)) + piece
    return bytes(out)


def seed(*steps: tuple[Side, bytes], options: int = 0, cut: int = WHOLE) -> bytes:
    return write(Conversation(options, 0, [Step(side, cut, data) for side, data in steps if data]))


Split = Callable[[bytes], list[bytes]]
"""Splits a stream into frames. The last may be invalid."""
Mended = Callable[[bytes], bytes]
"""Gives a frame its correct length."""


def mutate(
    data: bytes,
    max_bytes: int,
    changed: Changed,
    random: Random,
    *,
    split: Split,
    mended: Mended,
    known: Mapping[Side, Sequence[bytes]],
) -> bytes:
    """Change frames: leave out, repeat, move, insert known ones, change content."""
    conversation = read(data)
    if conversation is None or not conversation.steps or random.random() < 0.3:
        return changed(data, max_bytes)
    steps = list(conversation.steps)
    at = random.randrange(len(steps))
    side, cut, said = steps[at]
    options, seed_ = conversation.options, conversation.seed
    frames = split(said) or [b""]
    place = random.randrange(len(frames))
    dice = random.randrange(14)
    if dice < 5:
        frames[place] = mended(changed(frames[place], min(len(frames[place]) + 64, max_bytes)))
    elif dice == 5:
        del frames[place]
    elif dice == 6:
        frames.insert(place, frames[random.randrange(len(frames))])
    elif dice == 7:
        other = random.randrange(len(frames))
        frames[place], frames[other] = frames[other], frames[place]
    elif dice in {8, 9, 10}:
        frames.insert(place, random.choice(known[side]))
    elif dice == 11:
        cut = random.choice((WHOLE, SINGLE, random.randrange(2, 128)))
    elif dice == 12:
        options, seed_ = random.choice((options ^ 1 << random.randrange(8), options)), random.randrange(1 << 16)
    else:
        # Send the rest of it later.
        steps.insert(random.randrange(at, len(steps)) + 1, Step(side, cut, b"".join(frames[place:])))
        del frames[place:]
    steps[at] = Step(side, cut, b"".join(frames))
    return write(Conversation(options, seed_, [step for step in steps if step.data]))[:max_bytes]


def written(parts: Iterable[bytes | memoryview]) -> bytes:
    return b"".join(bytes(part) for part in parts)
