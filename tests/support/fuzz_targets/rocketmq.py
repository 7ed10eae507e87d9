"""A RocketMQ session with any bytes in any chunks behaves like a model that sees whole streams."""

import struct
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Final

from playbook import frames
from playbook.captures import CAPTURES, distinct_frames
from playbook.holding_trial import Choice, HoldingTrial
from playbook.playbook import Reading
from playbook.trial import Trial, read_stream

from fuzz_targets import conversation
from fuzz_targets.conversation import Conversation
from proxy.deciding.batch import Side

_SHARES: Final = (0.0, 0.3, 0.6, 1.0)
_WANTS_RESPONSES, LATE, _HOLDS = 4, 8, 16
# Requests that Sluice answers itself.
_OF_SLUICE: Final = {9002, 9003}
# Inserted frames are not longer.
_MAX_BYTES: Final = 600

BY_CLIENT: Final = (
    *(frame for frame in distinct_frames("to_broker") if len(frame) <= _MAX_BYTES),
    frames.send("orders", 2, binary=True),
    frames.send_batch("orders", 3, 4),
    frames.send_half("orders", 5),
    frames.send_back("g", 6),
    frames.pull(7),
    frames.pull(8, binary=True),
    frames.heartbeat(9),
    frames.view_limits(10),
    frames.update_limit("orders", "5.0", 11),
    frames.unparsable(12),
    frames.end_transaction(0, 13),
)
BY_BROKER: Final = (
    *(frame for frame in distinct_frames("to_client") if len(frame) <= _MAX_BYTES),
    frames.answer(2),
    frames.answer(4, body=frames.records(91, 100)),
    frames.stored(5, 0),
    frames.broker_request(),
    frames.check_transaction(0),
)


def split(stream: bytes) -> list[bytes]:
    found, at = [], 0
    while len(stream) - at >= 4:
        size = 4 + int.from_bytes(stream[at : at + 4])
        found.append(stream[at : at + size])
        at += size
    return [*found, stream[at:]] if at < len(stream) else found


def mended(frame: bytes) -> bytes:
    """Give a frame its length, and shorten a header length that is too long."""
    if len(frame) < 8:
        return frame
    (word,) = struct.unpack_from(">I", frame, 4)
    header_bytes = min(word & 0xFFFFFF, len(frame) - 8)
    if frame[8:9] == b"{" and b"}" in frame:
        # JSON ends at a brace, so that changes of its length have an effect.
        found = frame.rfind(b"}", 8, 8 + header_bytes + 64)
        header_bytes = found - 7 if found > 0 else header_bytes
    return struct.pack(">II", len(frame) - 4, word & 0xFF000000 | header_bytes) + frame[8:]


mutated: Final = partial(
    conversation.mutate, split=split, mended=mended, known={Side.CLIENT: BY_CLIENT, Side.BROKER: BY_BROKER}
)


def seeds() -> Iterable[bytes]:
    """Return the beginnings of recorded connections, and one of each frame."""
    for options in (0, 1, 2, 3, _WANTS_RESPONSES, 1 | LATE, 1 | _HOLDS):
        for capture in CAPTURES:
            yield conversation.seed(
                (Side.CLIENT, _some(capture.to_broker)),
                (Side.BROKER, _some(capture.to_client)),
                options=options,
                cut=5 * options,
            )
    for side, known in ((Side.CLIENT, BY_CLIENT), (Side.BROKER, BY_BROKER)):
        for frame in known:
            yield conversation.seed((side, frame), options=1)


def _some(stream: bytes) -> bytes:
    out = b""
    for frame in frames.split(stream):
        if len(frame) <= _MAX_BYTES:
            out += frame
        if len(out) > 3 * _MAX_BYTES:
            break
    return out


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is not None:
        if said.options & _HOLDS:
            _hold(said)
        for reading in ("python", "as it comes"):
            trial = play(said, reading)
            if not _asks_sluice(trial):
                trial.check(ended=True)


def play(said: Conversation, reading: Reading) -> Trial:
    """Play a conversation to a session, and end both streams."""
    share = _SHARES[said.options & 3]
    trial = Trial(
        lambda number: Random(said.seed * 1_000_003 + number).random() < share,
        wants_responses=bool(said.options & _WANTS_RESPONSES),
        reading=reading,
    )
    drive(trial, said)
    trial.end()
    return trial


def _asks_sluice(trial: Trial) -> bool:
    """Say whether the client has sent a request to Sluice itself, which the model does not know."""
    seen, _ = read_stream(bytes(trial.sent[Side.CLIENT]))
    return any(frame.header is not None and frame.header.code in _OF_SLUICE for frame in seen)


def drive(trial: Trial, said: Conversation) -> None:
    """Give all chunks in turn. A batch is decided at once, or right before the client's next chunk."""
    is_late = bool(said.options & LATE)
    for side, chunk in said.chunks():
        if side is Side.CLIENT:
            _finish(trial)
        if trial.closed is not None:
            break
        trial.feed(side, chunk)
        if not is_late:
            _finish(trial)
    _finish(trial)


def _finish(trial: Trial) -> None:
    """Decide the waiting batch, and continue with the rest of the client's chunk."""
    left = len(trial._rest)
    while trial._undecided is not None or (trial._rest and trial.closed is None):
        if trial._undecided is not None:
            trial.decide()
        elif trial.closed is None:
            trial.resume(Side.CLIENT, {Side.CLIENT: iter(())})
            assert len(trial._rest) < left, "a turn in which nothing was read"
            left = len(trial._rest)


def _hold(said: Conversation) -> None:
    """Hold some requests, and resolve them."""
    words: tuple[Choice, ...] = ("pass", "refuse", "hold")
    random = Random(said.seed)

    def choose(number: int) -> Choice:
        return Random(said.seed * 1_000_003 + number).choice(words)

    trial = HoldingTrial(chooses=choose, reading="python")
    for number, step in enumerate(said.steps):
        if trial.closed is None:
            is_client, longest = step.side is Side.CLIENT, 8 * step.cut or len(step.data)
            to = (step.data, b"") if is_client else (b"", step.data)
            trial.play(*to, Random(said.seed << 16 | number), longest)
            if trial.pending and trial.closed is None:
                trial.resolve(random)
    while trial.pending and trial.closed is None:
        trial.resolve(random)
    assert len(trial.received[Side.BROKER]) <= len(trial.sent[Side.CLIENT]), "more than was said"
