"""The broker's confirms become those of the client's own numbers."""

from itertools import pairwise
from random import Random

import pytest
import sluice_native
from hypothesis import given
from hypothesis import strategies as st
from playbook import amqp_frames as frames
from playbook.slow_channels import SlowChannels

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


def test_what_is_said_of_the_first_still_stands() -> None:
    channels = forwarded(1, 2, 4)
    chunk = frames.confirm(1, 2, multiple=True)
    assert said(channels, chunk) == chunk
    assert said(channels, frames.confirm(1, 3, multiple=True, method_id=NACK)) == frames.confirm(1, 4, method_id=NACK)


@pytest.mark.parametrize("number", [0, 9])
def test_all_are_those_that_wait(number: int) -> None:
    channels = forwarded(1, 2)
    both = frames.confirm(1, 1) + frames.confirm(1, 2)
    assert said(channels, frames.confirm(1, number, multiple=True)) == both


@pytest.mark.parametrize("number", [0, 1, 3, 2**64 - 1])
def test_of_others_nothing_is_said(number: int) -> None:
    channels = forwarded(1, 2)
    said(channels, frames.confirm(1, 1))
    assert said(channels, HEARTBEAT + frames.confirm(1, number) + HEARTBEAT) == HEARTBEAT * 2
    assert channels.unconfirmed(1) == 1


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


def test_it_is_open_what_was_not_confirmed() -> None:
    channels = forwarded(2, 3, 5)
    said(channels, frames.confirm(1, 2))
    assert channels.forwarded(1) == 3
    assert [channels.is_open(1, number) for number in range(5)] == [False, True, False, True, True]
    said(channels, frames.confirm(1, 1))
    assert not channels.is_open(1, 1)
    assert (channels.forwarded(9), channels.is_open(9, 1)) == (0, False)


def test_a_closed_channel_has_no_confirms() -> None:
    channels = forwarded(1, 2)
    channels.forget(1)
    assert channels.unconfirmed(1) == 0
    assert channels.settle(frames.confirm(1, 1), 0, True) == (0, 0, None)
    channels.select(1)
    channels.forward(1, 1)
    assert channels.answered(1, 1, True, refused=False) is None
    channels.forward(9, 1)
    assert channels.answered(9, 1, True, refused=False) is None


@given(st.integers(0, 2**32))
def test_any_confirms_come_to_what_they_slowly_do(seed: int) -> None:
    random = Random(seed)
    fast, slow = channels_of(1, 2, 3), SlowChannels()
    later: list[tuple[int, int]] = []
    for channel in (1, 2, 3):
        slow.select(channel)
    for _ in range(random.randrange(60)):
        channel = random.choice([1, 1, 2, 3])
        if random.random() < 0.5:
            number = fast.publish(channel)
            assert slow.publish(channel) == number
            fate = random.random() if channel < 3 else 0
            if fate < 0.8:
                fast.forward(channel, number)
                slow.forward(channel, number)
            elif fate < 0.9:
                later.append((channel, number))
            if later and random.random() < 0.3:
                held = later.pop(random.randrange(len(later)))
                fast.forward(*held)
                slow.forward(*held)
            continue
        chunk, expected = b"", b""
        for _ in range(random.randrange(1, 4)):
            tag, multiple, method_id = random.randrange(12), random.random() < 0.4, random.choice([ACK, NACK])
            confirm = frames.confirm(channel, tag, multiple=multiple, method_id=method_id)
            numbers = slow.answered(channel, tag, multiple=multiple)
            each = [] if numbers is None else [frames.confirm(channel, one, method_id=method_id) for one in numbers]
            chunk += confirm
            expected += confirm if numbers is None else b"".join(each)
        assert said(fast, chunk) == expected
        assert fast.unconfirmed(channel) == slow.unconfirmed(channel)
