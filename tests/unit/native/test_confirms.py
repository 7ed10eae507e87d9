"""The broker's confirms become those of the client's own numbers."""

from itertools import pairwise

import pytest
import sluice_native
from playbook import amqp_frames as frames

from limiter.deciding.limits import Limits
from limiter.rules.rule_set import RuleSet

ACK, NACK = 80, 120
HEARTBEAT = frames.frame(frames.HEARTBEAT, 0, b"")
DELIVERY = b"".join(
    [
        frames.method(1, 60, 60, b"\1c" + bytes(9) + b"\0\1q"),
        frames.header(1, 3),
        frames.frame(frames.BODY, 1, b"abc"),
    ]
)


def channels_of(*confirms: int) -> sluice_native.Channels:
    """Return a connection with some channels with confirms."""
    resources = Limits(RuleSet()).resources
    assert resources is not None
    channels = sluice_native.Channels(resources, ("queue", "exchange", "routing_key"), "", 131_072, 100)
    for channel in confirms:
        channels.select(channel)
    return channels


def forwarded(*numbers: int) -> sluice_native.Channels:
    """Return one on whose channel 1 these publishes went on."""
    channels = channels_of(1)
    for number in numbers:
        channels.forward(1, number)
    return channels


def said(channels: sluice_native.Channels, chunk: bytes, *, contents: bool = True) -> bytes:
    """Return what the client gets of a chunk that is stepped over."""
    stop, count, parts = channels.settle(chunk, 0, contents)
    assert (stop, count) == (len(chunk), len(list(frames.split(chunk))))
    return chunk if parts is None else _joined(chunk, parts)


def _joined(chunk: bytes, parts: list[bytes | tuple[int, int]]) -> bytes:
    for part, behind in pairwise(parts):
        # As few as can be.
        if isinstance(part, tuple) and isinstance(behind, tuple):
            assert part[1] < behind[0]
        else:
            assert isinstance(part, tuple) or isinstance(behind, tuple)
    return b"".join(part if isinstance(part, bytes) else chunk[slice(*part)] for part in parts)


def test_confirms_pass_as_they_are_while_both_count_alike() -> None:
    channels = forwarded(1, 2, 3, 4, 5)
    chunk = frames.confirm(1, 2) + frames.confirm(1, 3, multiple=True) + frames.confirm(1, 4, method_id=NACK)
    assert channels.settle(chunk, 0, False) == (len(chunk), 3, None)
    assert channels.unconfirmed(1) == 1


def test_one_is_said_of_each_once_they_differ() -> None:
    channels = forwarded(1, 2, 4, 5, 7)
    assert said(channels, frames.confirm(1, 4)) == frames.confirm(1, 5)
    chunk = frames.confirm(1, 5, multiple=True)
    assert said(channels, chunk) == b"".join(frames.confirm(1, number) for number in (1, 2, 4, 7))
    assert said(channels, chunk) == b""
    assert channels.unconfirmed(1) == 0


def test_what_lies_between_goes_on_as_it_is() -> None:
    channels = forwarded(2, 3)
    chunk = DELIVERY + frames.confirm(1, 1) + frames.confirm(1, 2) + DELIVERY
    parts = [(0, len(DELIVERY)), frames.confirm(1, 2) + frames.confirm(1, 3), (len(chunk) - len(DELIVERY), len(chunk))]
    assert channels.settle(chunk, 0, True) == (len(chunk), 8, parts)


def test_contents_are_stepped_over_where_that_is_asked_for() -> None:
    channels = forwarded(1)
    for contents in (True, False):
        stop, count, parts = channels.settle(HEARTBEAT + DELIVERY + HEARTBEAT, 0, contents)
        assert (stop, count, parts) == ((len(HEARTBEAT + DELIVERY + HEARTBEAT), 5, None) if contents else (8, 1, None))
    assert channels.settle(DELIVERY[:-2], 0, True) == (0, 0, None)
    channels.frame_max = len(frames.frame(frames.BODY, 1, b"abc"))
    assert channels.settle(DELIVERY, 0, True)[0] == len(DELIVERY), "its method is longer"
    channels.frame_max -= 1
    assert channels.settle(DELIVERY, 0, True) == (0, 0, None)


@pytest.mark.parametrize(
    "other",
    [
        frames.method(1, 20, 40, bytes(7)),
        frames.method(1, 60, 31, b"\1c"),
        frames.method(1, 60, 72, b"\0"),
        frames.confirm(2, 1),
        frames.confirm(0, 1),
        frames.method(1, 60, ACK, bytes(8)),
        frames.method(1, 60, ACK, bytes(10)),
        frames.frame(frames.METHOD, 1, b""),
        frames.frame(frames.METHOD, 1, b"", end=b"\0"),
        frames.frame(frames.HEARTBEAT, 0, b"x"),
        frames.frame(9, 0, b""),
        frames.confirm(1, 1)[:-1],
    ],
)
def test_the_first_that_is_something_else_ends_it(other: bytes) -> None:
    channels = forwarded(3)
    stop, count, parts = channels.settle(frames.confirm(1, 1) + other + HEARTBEAT, 0, True)
    assert (stop, count, parts) == (len(frames.confirm(1, 1)), 1, [frames.confirm(1, 3)])
