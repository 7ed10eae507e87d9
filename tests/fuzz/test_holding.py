"""Requests held and resolved at random times, in random chunks, and counted messages of answers."""

from random import Random

import pytest
from harness.wire_bytes import count_records
from playbook import frames
from playbook.captures import CAPTURES, Capture
from playbook.holding_trial import Choice, HoldingTrial
from playbook.playbook import open_session
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading

from limiter.rules.resource import Resource
from proxy.deciding.batch import Charge, Side

LONGEST = (1, 30, 300, 1000, 5000, 100_000)


def chooses(seed: int) -> HoldingTrial:
    """Open a connection with random verdicts, the same ones for the same seed."""
    shares = Random(seed).choice(((1, 1, 1), (0, 0, 1), (2, 0, 1), (0, 1, 1), (8, 1, 2)))

    def choose(number: int) -> Choice:
        words: tuple[Choice, ...] = ("pass", "refuse", "hold")
        return Random(seed * 1_000_003 + number).choices(words, shares)[0]

    return HoldingTrial(chooses=choose)


def messages(whole: bytes) -> int:
    """Return the number of messages in a frame of a recorded or generated connection."""
    header_bytes = int.from_bytes(whole[5:8])
    header, body = whole[8 : 8 + header_bytes], whole[8 + header_bytes :]
    is_batch = b'"m":"true"' in header or b"\0\1m\0\0\0\4true" in header or b'"batch":"true"' in header
    count = at = 0
    while is_batch and at < len(body):
        at += int.from_bytes(body[at : at + 4])
        count += 1
    return max(1, count)


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_recorded_connections(capture: Capture, factor: int) -> None:
    for seed in range(2 * factor):
        random = Random(seed)
        trial = chooses(seed)
        trial.play_and_resolve(capture.to_broker, capture.to_client, random, random.choice(LONGEST[1:]))
        assert trial.closed is None
        trial.check_resolved(messages)


def generated(random: Random, opaque: int) -> bytes:
    flag = frames.ONEWAY if random.random() < 0.2 else 0
    body = b"x" * random.choice((0, 5, 100, 2000))
    match random.randrange(5):
        case 0:
            return frames.heartbeat(opaque)
        case 1:
            return frames.send_back("g", opaque, flag=flag)
        case 2:
            return frames.send_batch("a", random.randint(1, 30), opaque, flag=flag)
        case 3:
            return frames.send("b", opaque, body=body, flag=flag, binary=True)
        case _:
            return frames.send(random.choice("abc"), opaque, body=body, flag=flag)


@pytest.mark.parametrize("block", [pytest.param(block, marks=[pytest.mark.long] * (block > 1)) for block in range(8)])
def test_generated_connections(block: int, factor: int) -> None:
    for case in range(60 * factor):
        seed = block * 1_000_000 + case
        random = Random(seed)
        to_broker = b"".join(generated(random, opaque) for opaque in range(random.randint(1, 25)))
        to_client = b"".join(
            frames.answer(opaque, body=b"y" * random.choice((0, 50, 2000))) for opaque in range(100, 110)
        )
        trial = chooses(seed)
        try:
            trial.play_and_resolve(to_broker, to_client, random, random.choice(LONGEST))
            assert trial.closed is None
            trial.check_resolved(messages)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def brought(random: Random) -> bytes:
    """Return the body of an answer to a pull. Some are invalid."""
    body = frames.records(*(random.randint(91, 500) for _ in range(random.randint(0, 12))))
    match random.randrange(5):
        case 0:
            return body[: random.randint(0, len(body))]
        case 1:
            return body + random.randbytes(random.randint(1, 200))
        case _:
            return body


def test_messages_in_answers_are_counted_alike_in_any_pieces(factor: int) -> None:
    resources = (Resource("subscription", "g@orders"),)
    for seed in range(300 * factor):
        random = Random(seed)
        session = open_session(limited=("subscription",))
        pulls, answers, expected = b"", b"", []
        for opaque in range(random.randint(1, 8)):
            code, body = random.choice((0, 0, 0, 19, 21)), brought(random)
            whole = frames.answer(opaque, code, body=body)
            count = count_records(body) if code == 0 else 0
            pulls += frames.pull(opaque, code=random.choice((11, 361, 200_050)))
            answers += whole + (frames.answer(1000 + opaque) if random.random() < 0.5 else b"")
            expected.append(Charge(resources, count, len(whole) if count else 0, consumes=True))
        batch = session.receive(Side.CLIENT, memoryview(pulls), 0)
        assert batch is not None
        session.decided(batch, 0)
        charges: list[Charge] = []
        received = b""
        for piece in frames.cut(answers, *(random.randrange(len(answers)) for _ in range(random.choice((0, 3, 40))))):
            charging = session.receive(Side.BROKER, memoryview(piece), 0)
            if charging is not None:
                assert not charging.requests
                charges += charging.charges
            received += b"".join(session.take(Side.CLIENT))
        assert charges == expected, f"seed {seed}"
        assert received == answers
