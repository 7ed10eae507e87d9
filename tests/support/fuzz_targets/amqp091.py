"""An AMQP 0.9.1 session: any bytes cause nothing worse than Close, and without limits everything is forwarded
unchanged.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple

from amqp_playbook import frames
from amqp_playbook.driver import BROKER, BUSY, CLIENT, ORDERS, Driver

from fuzz_targets import conversation
from fuzz_targets.conversation import Conversation
from limiter.plans.plans import Confirming
from proxy.deciding.batch import Hold, Request, Side, Ticket, Verdict
from proxy.protocols.amqp091 import wire
from proxy.protocols.base import Close

# Bits of the options: limits decide, some requests are held while time passes, consumers confirm, it begins open, and
# other limited kinds.
DECIDES, _HOLDS, _CONFIRMS, OPEN, _LIMITS = 1, 2, 4, 8, 16
# Maximum of the session's own bytes: in total, for each request, and for each tick.
_OWN_BYTES, _ANSWER_BYTES, _TICK_BYTES = 2000, 100, 8
_HALF_A_SECOND_NS: Final = 500_000_000

REASONS: Final = {"bad_frame", "other_protocol", "tls", "proxy_protocol"}
_COPIES: Final[dict[str, str | list[str] | bytes]] = {"CC": ["a", "b"], "F": b"F" + frames.table({"BCC": ["c"]})}
BY_CLIENT: Final[Sequence[bytes]] = (
    frames.HEADER,
    frames.start_ok(),
    frames.tune_ok(2047),
    frames.connection_open(),
    *frames.publish(1, "", "orders", b"text"),
    b"".join(frames.publish(1, "", "orders", b"text")),
    b"".join(frames.publish(2, "events", "key", b"x" * 300, headers=_COPIES, body_bytes=100)),
    b"".join(frames.publish(3, "", "")),
    frames.durable(1, "orders", b"text", mandatory=True),
    frames.declare(1),
    frames.consume(1, "q", ""),
    frames.subscribe(1, "orders", "c"),
    frames.get(1, "q"),
    frames.cancel(1, "c"),
    frames.ack(1, 1, multiple=True),
    frames.reject(1, 1, requeue=True),
    frames.give_back(1, 1, multiple=True),
    frames.recover(1),
    frames.close(2),
    frames.close_ok(3),
    frames.close(0),
    frames.channel_open(4),
    frames.confirm_select(1),
    frames.method(3, 90, 10),
    frames.method(3, 90, 20),
    frames.frame(8, 0, b""),
)
BY_BROKER: Final[Sequence[bytes]] = (
    frames.start(),
    frames.tune(2047),
    frames.open_ok(),
    frames.method(1, 20, 11, frames.long("")),
    frames.method(1, 85, 11),
    *frames.deliver(1, 1, b"text"),
    b"".join(frames.deliver(1, 2, b"text")),
    b"".join(frames.returned(1, b"text")),
    b"".join(frames.got(1, b"text")),
    frames.declare_ok(1, "q"),
    frames.consume_ok(1, "c"),
    frames.cancel_ok(1, "c"),
    frames.ack(1, 1),
    frames.ack(1, 3, multiple=True),
    frames.nack(1, 2),
    frames.close(1, 404, "NOT_FOUND"),
    frames.close_ok(2),
    frames.close(0, 320, "CONNECTION_FORCED"),
    frames.blocked("memory"),
    frames.unblocked(),
    frames.method(3, 90, 11),
    frames.frame(8, 0, b""),
)
_CONFIRMS_OF_BROKER: Final = {b"\0\x3c\0\x50", b"\0\x3c\0\x78"}
_WITH_CONTENT: Final = {b"\0\x3c" + bytes((0, method)) for method in (40, 50, 60, 71)}
_CHANNEL_CLOSE: Final = b"\0\x14\0\x28"
_CONNECTION_CLOSE: Final = b"\0\x0a\0\x32"
_HEARTBEAT: Final = b"\x08"
_CONFIRMING: Final = {"queue:orders": Confirming(1 << 20, 1_000_000_000, 1, persists=True)}


def split(stream: bytes) -> list[bytes]:
    found, at = [], 0
    if stream.startswith(b"AMQP"):
        found, at = [stream[:8]], 8
    while len(stream) - at >= 8:
        size = 8 + int.from_bytes(stream[at + 3 : at + 7])
        found.append(stream[at : at + size])
        at += size
    return [*found, stream[at:]] if at < len(stream) else found


def mended(frame: bytes) -> bytes:
    if len(frame) < 8 or frame.startswith(b"AMQP"):
        return frame
    payload = frame[7:-1]
    return frame[:3] + len(payload).to_bytes(4) + payload + b"\xce"


mutated: Final = partial(conversation.mutate, split=split, mended=mended, known={CLIENT: BY_CLIENT, BROKER: BY_BROKER})


def seeds() -> Iterable[bytes]:
    """Return eventful conversations, and one of each frame."""
    greeting, welcome = frames.greeting(), frames.welcome()
    # Including one without a close: nothing is given up then.
    stays = (
        (CLIENT, b"".join(BY_CLIENT[4:18])),
        (BROKER, b"".join(BY_BROKER[5:15])),
        (CLIENT, b"".join(BY_CLIENT[21:24])),
    )
    talk = (
        (CLIENT, b"".join(BY_CLIENT[8:16])),
        (BROKER, b"".join(BY_BROKER[6:12])),
        (CLIENT, b"".join(BY_CLIENT[16:])),
        (BROKER, b"".join(BY_BROKER[12:])),
    )
    for options in (0, DECIDES, DECIDES | _HOLDS, DECIDES | _HOLDS | _CONFIRMS, DECIDES | _HOLDS | _LIMITS):
        for cut in (0, 1, 20):
            opens = (CLIENT, frames.channel_open(1) + frames.confirm_select(1) + frames.channel_open(2))
            yield conversation.seed((CLIENT, greeting), (BROKER, welcome), opens, *talk, options=options, cut=cut)
            yield conversation.seed(*talk, options=options | OPEN, cut=cut)
            yield conversation.seed(*stays, options=options | OPEN, cut=cut)
    for options in (OPEN, OPEN | DECIDES | _HOLDS | _CONFIRMS):
        for side, known in ((CLIENT, BY_CLIENT), (BROKER, BY_BROKER)):
            for frame in known:
                yield conversation.seed((side, frame), options=options)


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is None:
        return
    if not said.options & DECIDES:
        _pass_all(said)
    elif not said.options & _HOLDS:
        cut, whole = refuse_some(said), refuse_some(said.whole())
        if cut.closed or whole.closed:
            assert cut.closed, "chunks make a difference"
            assert whole.closed, "chunks make a difference"
            # The beginning of an invalid frame may have been forwarded.
            lanes, others = by_channel(cut.to_broker), by_channel(whole.to_broker)
            for number in lanes.keys() & others.keys():
                one, other = lanes[number], others[number]
                assert one.startswith(other) or other.startswith(one), "chunks make a difference"
        else:
            assert by_channel(cut.to_broker) == by_channel(whole.to_broker), "chunks make a difference"
            assert cut[2:] == whole[2:], "chunks make a difference"
    else:
        _hold(said)


def opened(said: Conversation, driver: Driver) -> Driver:
    return driver.open([1, 2, 3], confirms=[1]) if said.options & OPEN else driver


def limits_of(said: Conversation) -> tuple[str, ...]:
    return ("delivery", "routing_key") if said.options & _LIMITS else ()


def receive(driver: Driver, said: Conversation) -> str:
    """Play to a session. Return the reason for its close."""
    try:
        for side, chunk in said.chunks():
            driver.give(side, chunk)
    except Close as close:
        assert close.reason in REASONS, close
        assert close.detail
        driver.take()
        return str(close)
    return ""


def _pass_all(said: Conversation) -> None:
    driver = opened(said, Driver())
    closed = receive(driver, said)
    for side in Side:
        came = said.said(side)
        if not closed:
            driver.session.end(side, 0)
            driver.take()
        written = bytes(driver.written[side.other])
        if said.options & OPEN or frames.HEADER.startswith(said.said(CLIENT)[: len(frames.HEADER)]):
            check_passed(side, said, written, closed)
        else:
            # Data behind another version's header belongs to neither.
            assert came.startswith(written), "not what came"
    leave(driver)


def check_passed(side: Side, said: Conversation, written: bytes, closed: str) -> None:
    """Compare the forwarded data of one peer's stream with the stream."""
    came, heard = said.said(side), said.said(side.other)
    if closed and came.startswith(written):
        # The beginning of an invalid frame on no channel may have been forwarded.
        return
    if side is BROKER:
        # A confirm of an unknown publish is dropped.
        came, written = without_confirms(came), without_confirms(written)
    else:
        came, written = answered(came), answered(written)
    if any(close in each for close in (_CONNECTION_CLOSE, _CHANNEL_CLOSE) for each in (came, heard)):
        # Later frames are dropped, or waiting ones.
        assert Counter(split(written)) <= Counter(split(came)) or closed, "more than came"
        return
    lanes, passed = by_channel(came), by_channel(written)
    assert passed.keys() <= lanes.keys(), "not what came"
    for number, lane in lanes.items():
        gone = passed.get(number, b"")
        assert lane.startswith(gone), "not what came"
        waits = split(lane[len(gone) :])
        # Nothing is forwarded behind a client's close.
        is_over = closed or _CONNECTION_CLOSE in came
        assert is_over or not waits or _begins_content(waits[0]) or len(waits) == 1, "not all that came"


def by_channel(stream: bytes) -> dict[int, bytes]:
    """Sort frames by channel, without heartbeats. -1: protocol headers and invalid frames."""
    found: dict[int, bytes] = {}
    for each in split(stream):
        if each[:1] == _HEARTBEAT:
            # It may overtake waiting frames.
            continue
        number = int.from_bytes(each[1:3]) if len(each) >= 7 and each[:4] != b"AMQP" else -1
        found[number] = found.get(number, b"") + each
    return found


def _begins_content(frame: bytes) -> bool:
    return frame[:1] == b"\x01" and frame[7:11] in _WITH_CONTENT


def without_confirms(stream: bytes) -> bytes:
    return b"".join(each for each in split(stream) if not (each[:1] == b"\x01" and each[7:11] in _CONFIRMS_OF_BROKER))


def answered(stream: bytes) -> bytes:
    """Request the answer to methods that begin or end a consumer, as the session does."""
    return b"".join(map(_answered, split(stream)))


def _answered(frame: bytes) -> bytes:
    method = int.from_bytes(frame[7:11])
    if frame[:1] != b"\x01" or method not in {wire.BASIC_CONSUME, wire.BASIC_CANCEL}:
        return frame
    arguments = wire.Reader(frame, 11, len(frame) - 1)
    no_wait = wire.CANCEL_NO_WAIT
    try:
        if method == wire.BASIC_CONSUME:
            no_wait = wire.CONSUME_NO_WAIT
            arguments.short()
            arguments.short_string()
        arguments.short_string()
        at = arguments.position
        return frame[:at] + bytes((arguments.octet() & ~no_wait,)) + frame[at + 1 :]
    except wire.Malformed:
        return frame


class Came(NamedTuple):
    """The result of a conversation."""

    closed: str
    to_broker: bytes
    to_client: Counter[bytes]
    asked: Counter[object]


def refuse_some(said: Conversation, *, lends: bool = False) -> Came:
    def decide(request: Request) -> Verdict | None:
        word = zlib.crc32(repr((request.resources, request.size_bytes)).encode()) ^ said.seed
        return BUSY if word % 3 == 0 and request.refusal == "answered" else None

    Driver.lends = lends
    try:
        driver = opened(said, Driver(decide, limits=limits_of(said), alike=True))
    finally:
        Driver.lends = False
    closed = receive(driver, said)
    asked: Counter[object] = Counter(
        (request.resources, request.messages, request.size_bytes) for request in driver.requests
    )
    found = Came(closed, bytes(driver.written[BROKER]), Counter(split(bytes(driver.written[CLIENT]))), asked)
    leave(driver)
    return found


def _hold(said: Conversation) -> None:
    random = Random(said.seed)

    def decide(request: Request) -> Verdict | None:
        dice = random.random()
        if dice < 0.5:
            return None
        return BUSY if dice < 0.6 and request.refusal == "answered" else Hold(ORDERS, "rule", Ticket(lambda: None))

    confirming = _CONFIRMING if said.options & _CONFIRMS else None
    driver = opened(said, Driver(decide, limits=limits_of(said), confirming=confirming))
    ticks = 0
    try:
        for side, chunk in said.chunks():
            driver.give(side, chunk)
            dice = random.randrange(8)
            if dice < 3 and driver.held:
                driver.resolve(refuse=BUSY if dice == 0 and _refusable(driver) else None)
            elif dice == 3:
                driver.now_ns += _HALF_A_SECOND_NS
                driver.tick()
                ticks += 1
            elif dice == 4:
                driver.alarm(random.choice(("", "memory")))
    except Close as close:
        assert close.reason in REASONS, close
        driver.take()
    came = sum(len(said.said(side)) for side in Side)
    own = _OWN_BYTES + _ANSWER_BYTES * len(driver.requests) + _TICK_BYTES * ticks
    assert sum(map(len, driver.written.values())) <= came + own, "more than was said"
    leave(driver)


def _refusable(driver: Driver) -> bool:
    return next(iter(driver.held.values()))[0].refusal == "answered"


def leave(driver: Driver) -> None:
    session = driver.session
    session.start_close("over", driver.now_ns)
    driver.take()
    session.describe(0)
    for side in Side:
        session.end(side, driver.now_ns)
        assert session.missing_bytes(side) >= 1
        assert session.backlog_bytes(side) >= 0
    session.close()
    assert not any(memory.taken_bytes for memory in session._memory.values()), "memory is kept"
    assert session._publishes.waiting == session._answers.waiting == 0
