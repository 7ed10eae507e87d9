"""The broker's confirms are translated to the client's numbers."""

from copy import deepcopy
from random import Random

import pytest
from amqp_playbook.reading import BROKER, Reading
from playbook import amqp_frames as frames

from proxy.protocols.amqp091.confirms import Confirms, Numbers

ACK, NACK = 80, 120
HEARTBEAT = frames.frame(frames.HEARTBEAT, 0, b"")
DELIVERY = b"".join(
    [
        frames.method(1, 60, 60, b"\1c" + bytes(9) + b"\0\1q"),
        frames.header(1, 3),
        frames.frame(frames.BODY, 1, b"abc"),
    ]
)


def forwarded(*numbers: int, contents: bool = True, frame_max: int = 131_072) -> Reading:
    """Return channels with these publishes forwarded on channel 1."""
    confirms = Confirms()
    for number in numbers:
        confirms.sent(number)
    confirms.numbered = max(numbers)
    return Reading({1: (0, confirms.numbers())}, contents=contents, frame_max=frame_max)


def said(reading: Reading, chunk: bytes) -> bytes:
    """Return the client's bytes of a chunk."""
    read = reading.feed(chunk, BROKER)
    assert (read.stop, read.frames, read.leaves) == (len(chunk), (0, len(list(frames.split(chunk)))), False)
    return read.to_client


def test_confirms_pass_as_they_are_while_both_count_alike() -> None:
    reading = forwarded(1, 2, 3, 4, 5)
    chunk = frames.confirm(1, 2) + frames.confirm(1, 3, multiple=True) + frames.confirm(1, 4, method_id=NACK)
    assert said(reading, chunk) == chunk
    assert reading.channels.unconfirmed() == 1
    assert reading.give_back()[1] == {1: (5, 5, None, 5, set(), {})}


def test_one_is_shown_of_each_once_they_differ() -> None:
    reading = forwarded(1, 2, 4, 5, 7)
    assert said(reading, frames.confirm(1, 4)) == frames.confirm(1, 5)
    chunk = frames.confirm(1, 5, multiple=True)
    assert said(reading, chunk) == b"".join(frames.confirm(1, number) for number in (1, 2, 4, 7))
    assert said(reading, chunk) == b""
    assert reading.channels.unconfirmed() == 0


def test_other_frames_pass_unchanged() -> None:
    chunk = DELIVERY + frames.confirm(1, 1) + frames.confirm(1, 2) + DELIVERY
    assert said(forwarded(2, 3), chunk) == DELIVERY + frames.confirm(1, 2) + frames.confirm(1, 3) + DELIVERY


def test_contents_pass_unless_they_are_limited() -> None:
    chunk = HEARTBEAT + DELIVERY + HEARTBEAT
    assert said(forwarded(1), chunk) == chunk
    read = forwarded(1, contents=False).feed(chunk, BROKER)
    assert (read.to_client, read.stop, read.leaves) == (HEARTBEAT, len(HEARTBEAT), True)
    body_bytes = len(frames.frame(frames.BODY, 1, b"abc"))
    assert said(forwarded(1, frame_max=body_bytes), DELIVERY) == DELIVERY, "its method is longer"
    read = forwarded(1, frame_max=body_bytes - 1).feed(DELIVERY, BROKER)
    assert (read.stop, read.leaves) == (len(DELIVERY) - body_bytes, True)


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
def test_the_first_that_is_something_else_is_for_the_session(other: bytes) -> None:
    read = forwarded(3).feed(frames.confirm(1, 1) + other + HEARTBEAT, BROKER)
    assert read == (frames.confirm(1, 3), b"", len(frames.confirm(1, 1)), True, (0, 1))


@pytest.mark.parametrize("seed", range(50))
def test_both_keep_the_same_numbers(seed: int) -> None:
    random = Random(seed)
    python = Confirms()
    for _ in range(300):
        dice = random.random()
        if dice < 0.5:
            number = python.number()
            if random.random() < 0.9:
                python.sent(number)
            continue
        tag, multiple, refused = random.randint(0, python.latest() + 1), random.random() < 0.3, random.random() < 0.3
        numbers: Numbers = deepcopy(python.numbers())
        reading = Reading({1: (0, numbers)})
        assert reading.channels.unconfirmed() == python.outstanding()
        confirm = frames.confirm(1, tag, multiple=multiple, method_id=NACK if refused else ACK)
        answered = python.answered(tag, multiple=multiple, refused=refused)
        if answered is None:
            assert said(reading, confirm) == confirm
        else:
            each = [frames.confirm(1, number, method_id=NACK if refused else ACK) for number in answered]
            assert said(reading, confirm) == b"".join(each)
        assert reading.give_back()[1] == {1: python.numbers()}
