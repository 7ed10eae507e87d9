"""Bytes changed, cut out, repeated and made up, from either peer: a session only ever raises Close."""

from random import Random

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, BUSY, CLIENT, ORDERS, Driver

from proxy.deciding.batch import Hold, Request, Side, Ticket, Verdict
from proxy.protocols.base import Close

COPIES: dict[str, str | list[str] | bytes] = {"CC": ["a", "b"], "F": b"F" + frames.table({"BCC": ["c"]})}
FROM_CLIENT = [
    *frames.publish(1, "", "orders", b"text"),
    *frames.publish(2, "events", "key", b"x" * 5000, headers=COPIES),
    b"".join(frames.publish(3, "", "", b"")),
    frames.declare(1),
    frames.consume(1, "q", ""),
    frames.ack(1, 1),
    frames.close(2),
    frames.close_ok(3),
    frames.channel_open(4),
    frames.confirm_select(2),
    frames.frame(8, 0, b""),
    frames.method(3, 60, 70, b"\0\0" + frames.short("q") + b"\0"),
]
FROM_BROKER = [
    *frames.deliver(1, 1, b"text"),
    *frames.deliver(2, 1, b"y" * 5000),
    b"".join(frames.returned(3, b"text")),
    frames.consume_ok(1, "c"),
    frames.ack(1, 1),
    frames.nack(2, 2, multiple=True),
    frames.close(3),
    frames.close_ok(2),
    frames.method(1, 50, 11, frames.short("q") + bytes(8)),
    frames.method(1, 60, 31, frames.short("c")),
    frames.frame(8, 0, b""),
]


def spoiled(random: Random, pieces: list[bytes]) -> bytes:
    """Return methods and contents in some order, of which a few are changed."""
    whole = [b"".join(pieces[:3]), b"".join(pieces[3:6]), *pieces[6:]]
    out = bytearray()
    for piece in random.choices(whole, k=random.randint(1, 20)):
        dice = random.random()
        raw = bytearray(piece)
        if dice < 0.01:
            raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        elif dice < 0.014:
            del raw[random.randrange(len(raw)) :]
        elif dice < 0.018:
            raw += random.randbytes(9)
        out += raw
    return bytes(out)


def relay_bad_bytes(random: Random) -> None:
    def decide(request: Request) -> Verdict | None:
        dice = random.random()
        if dice < 0.5:
            return None
        return BUSY if dice < 0.6 and request.refusal == "answered" else Hold(ORDERS, "rule", Ticket(lambda: None))

    driver = Driver(decide, limits=random.choice(((), ("delivery", "routing_key")))).open([1, 2, 3], confirms=[1])
    session = driver.session
    reasons = {""}
    try:
        for _ in range(20):
            side = random.choice((CLIENT, CLIENT, BROKER))
            pieces = FROM_CLIENT if side is CLIENT else FROM_BROKER
            driver.give(side, spoiled(random, pieces), random, random.choice((1000, 20_000)))
            while driver.held and random.random() < 0.5:
                driver.resolve()
            if driver.woken:
                driver.tick()
            driver.forget()
        if random.random() < 0.1:
            driver.give(CLIENT, frames.close(0))
    except Close as close:
        reasons.add(close.reason)
    assert reasons <= {"", "bad_frame"}
    session.farewell("over", 0)
    driver.take()
    session.describe()
    for side in Side:
        session.end(side, 0)
        session.missing_bytes(side)
        session.backlog_bytes(side)
    session.close()
    assert not any(memory.taken_bytes for memory in session._memory.values())
    assert session._publishes.waiting == session._answers.waiting == 0


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 500), marks=pytest.mark.long)], ids=str)
def test_nothing_but_close_comes_of_bad_bytes(seeds: range) -> None:
    for seed in seeds:
        relay_bad_bytes(Random(seed))


def test_a_greeting_that_is_changed_only_ends_the_connection() -> None:
    for seed in range(30):
        random = Random(seed)
        driver = Driver()
        reasons = {""}
        try:
            for side, greeting in ((CLIENT, frames.greeting()), (BROKER, frames.welcome())):
                raw = bytearray(greeting)
                raw[random.randrange(1 if side is CLIENT else 0, len(raw))] = random.randrange(256)
                driver.give(side, bytes(raw), random, 1000)
        except Close as close:
            reasons.add(close.reason)
        assert reasons <= {"", "bad_frame", "other_protocol"}
