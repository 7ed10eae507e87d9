"""Both versions of AMQP on one port: with any chunks, the result is that of a session of that version alone."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from fuzz_targets import Changed, amqp091, amqp10, conversation
from fuzz_targets.conversation import Conversation
from proxy.deciding.batch import ConnectionInfo, Side
from proxy.protocols.amqp091.session import AMQP091Session
from proxy.protocols.amqp10.session import AMQP10Session
from proxy.protocols.amqp_both import PROTOCOL, AMQPOptions, AMQPSession
from proxy.protocols.base import Close, Session, SessionContext, WireCounters

_PASS_TLS: Final = 1


def mutated(data: bytes, max_bytes: int, changed: Changed, random: Random) -> bytes:
    of = amqp091 if random.random() < 0.5 else amqp10
    known = {side: (*amqp091_known, *amqp10_known) for side, amqp091_known, amqp10_known in _KNOWN}
    return conversation.mutate(data, max_bytes, changed, random, split=of.split, mended=of.mended, known=known)


_KNOWN: Final = (
    (Side.CLIENT, amqp091.BY_CLIENT, amqp10.BY_CLIENT),
    (Side.BROKER, amqp091.BY_BROKER, amqp10.BY_BROKER),
)


def seeds() -> Iterable[bytes]:
    """Return those of both, and invalid ones."""
    yield from amqp091.seeds()
    yield from amqp10.seeds()
    for other in (b"\x16\x03\x01\x02\x00", b"AMQP\x02\x01\x00\x00", b"PROXY TCP4 ", b"GET / HTTP/1.1\r\n\r\n", b"AMQP"):
        for options in (0, _PASS_TLS):
            yield conversation.seed(
                (Side.CLIENT, other), (Side.BROKER, b"AMQP\x00\x00\x09\x01"), options=options, cut=1
            )


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is None:
        return
    session, *found = _on_frame(PROTOCOL.open_session, said)
    version = type(session)
    if version is AMQPSession:
        raise AssertionError("no version at the end")
    assert issubclass(version, AMQP091Session | AMQP10Session)
    _, *alone = _on_frame(version, said)
    assert found == alone, "not as it is alone"
    closed, written, unread = found
    for side, got in written.items():
        if version is AMQP091Session:
            # Data behind another version's header belongs to neither.
            if said.said(Side.CLIENT).startswith(b"AMQP\0\0\x09\x01"):
                amqp091.check_passed(side.other, said, bytes(got), closed)
            continue
        amqp10.check_passed(side.other, said, bytes(got), closed, unread[side.other])


def _on_frame(open_session: Callable[[SessionContext], Session], said: Conversation) -> tuple[Any, ...]:
    """Play to a session. Return it, the reason for its close, and the output and unread data of each side."""
    session = open_session(
        SessionContext(
            ConnectionInfo(1, "main", "default", "192.0.2.1:4000", "192.0.2.1"),
            WireCounters(),
            lambda: None,
            wants_responses=False,
            limits_kind=lambda _: False,
            options=AMQPOptions(tls="pass" if said.options & _PASS_TLS else "refuse"),
            hub=PROTOCOL.open_hub(),
        )
    )
    out, unread = ({side: bytearray() for side in Side} for _ in range(2))
    closed = ""
    take = session.take
    try:
        for side, chunk in said.chunks():
            unread[side] += chunk
            # One side's data may be awaited by the other.
            for speaker in (side, side.other):
                while unread[speaker] and not session.paused(speaker):
                    room = bytearray(unread[speaker])
                    batch = session.receive(speaker, memoryview(room), 0)
                    if batch is not None:
                        session.decided(batch, 0)
                    for each in Side:
                        out[each] += conversation.written(take(each))
                    room[:] = b"\xaa" * len(room)
                    del unread[speaker][: len(room) - session.left_bytes(speaker)]
        for side in Side:
            session.end(side, 0)
    except Close as close:
        closed = close.reason
    for each in Side:
        out[each] += conversation.written(take(each))
    session.close()
    return session, closed, out, unread
