"""RocketMQ over gRPC: parsing of messages, and a session that passes all, or refuses and holds."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

import grpc_talk
from harness.grpc_calls import (
    DATA,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    GrpcCalls,
    frame,
)

from fuzz_targets import Changed, conversation
from fuzz_targets.conversation import Conversation
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Hold, Refuse, Request, Side, Ticket
from proxy.protocols.base import Close
from proxy.protocols.rocketmq_grpc import messages
from proxy.protocols.rocketmq_grpc.http2 import PADDED
from proxy.protocols.rocketmq_grpc.session import RocketMQGrpcSession

_MESSAGE: Final = 0x80
_METHODS: Final = tuple(sorted(messages.LIMITED | messages.ROUTES | {"Telemetry", "AckMessage"}))
_DECIDES, _RESOLVES = 1, 2
_REASONS: Final = frozenset(
    {
        *("bad_frame", "bad_headers", "flood", "frame_too_long", "headers_too_long", "other_protocol"),
        *("proxy_protocol", "tls", "too_many_calls", "unparsable", "window_overdrawn", "answer_too_long"),
    }
)
_FRAME_BYTES: Final = 9
_TARGET: Final = messages.endpoints_of("sluice.example.com", 8081)


def _bare(message: bytes) -> bytes:
    return message[5:]


_REQUESTS: Final = {
    "SendMessage": _bare(grpc_talk.send(count=3)),
    "ReceiveMessage": _bare(grpc_talk.receive()),
    "EndTransaction": grpc_talk.part(1, grpc_talk.part(2, "orders")) + grpc_talk.number(4, 1),
    "ChangeInvisibleDuration": grpc_talk.part(1, grpc_talk.part(2, "g")),
    "QueryRoute": grpc_talk.part(1, grpc_talk.part(2, "orders")) + grpc_talk.part(2, grpc_talk.endpoints("h", 1)),
    "Telemetry": grpc_talk.part(2, grpc_talk.part(7, grpc_talk.number(1, 1) + grpc_talk.part(2, "5.0.8"))),
}
_ROUTES: Final = _bare(grpc_talk.routes("10.0.0.5", 8081))


def _client() -> bytes:
    calls = GrpcCalls()
    return calls.take_replies() + b"".join(calls.call(*each)[1] for each in _REQUESTS.items())


def _broker() -> bytes:
    block = b"\x88" + b"\x0f\x10\x10application/grpc"
    out = frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4))
    for number, method in enumerate(_REQUESTS):
        answer = grpc_talk.grpc(_ROUTES) if method == "QueryRoute" else grpc_talk.sent()
        stream = 2 * number + 1
        out += frame(HEADERS, 4, stream, block) + frame(DATA, 0, stream, answer)
        out += frame(HEADERS, 4 | END_STREAM, stream, b"\x00\x0bgrpc-status\x010")
    return out


_CLIENT, _BROKER = _client(), _broker()
_MORE: Final = (
    frame(PING, 0, 0, bytes(8)),
    frame(RST_STREAM, 0, 1, (8).to_bytes(4)),
    frame(WINDOW_UPDATE, 0, 0, (1000).to_bytes(4)),
    frame(SETTINGS, 0, 0, b"\x00\x04\x00\x00\x00\x20"),
)


def split(stream: bytes) -> list[bytes]:
    """Split a stream. The preface is a separate frame."""
    found, at = [], 0
    if stream.startswith(PREFACE):
        found, at = [PREFACE], len(PREFACE)
    while len(stream) - at >= _FRAME_BYTES:
        size = _FRAME_BYTES + int.from_bytes(stream[at : at + 3])
        found.append(stream[at : at + size])
        at += size
    return [*found, stream[at:]] if at < len(stream) else found


def mended(one: bytes) -> bytes:
    return one if one == PREFACE or len(one) < _FRAME_BYTES else (len(one) - _FRAME_BYTES).to_bytes(3) + one[3:]


def mutated(data: bytes, max_bytes: int, changed: Changed, random: Random) -> bytes:
    if data[:1] >= bytes((_MESSAGE,)):
        return changed(data, max_bytes)
    known = {Side.CLIENT: (*split(_CLIENT), *_MORE), Side.BROKER: (*split(_BROKER), *_MORE)}
    return conversation.mutate(data, max_bytes, changed, random, split=split, mended=mended, known=known)


def seeds() -> Iterable[bytes]:
    """Return messages, and conversations."""
    for method, request in {**_REQUESTS, "QueryAssignment": _ROUTES}.items():
        yield bytes((_MESSAGE | _METHODS.index(method),)) + request
    yield bytes((_MESSAGE | _METHODS.index("QueryRoute"),)) + _ROUTES
    for options in (0, _DECIDES, _DECIDES | _RESOLVES):
        for cut in (0, 1, 3):
            both = ((Side.CLIENT, _CLIENT), (Side.BROKER, _BROKER))
            yield conversation.seed(*both, options=options, cut=cut)


def run(data: bytes) -> None:
    if data[:1] >= bytes((_MESSAGE,)):
        _read(_METHODS[(data[0] & 0x7F) % len(_METHODS)], data[1:])
        return
    said = conversation.read(data)
    if said is not None:
        _Trial(said).run()


def _read(method: str, message: bytes) -> None:
    """Parse a message as each type: only ValueError may be raised."""
    for read in (messages.read_target, messages.read_answer):
        with suppress(ValueError):
            read(method, message)
    with suppress(ValueError, UnicodeDecodeError):
        messages.read_settings(message)
    with suppress(ValueError):
        once = messages.rewrite_routes(method, message, _TARGET)
        assert messages.rewrite_routes(method, once, _TARGET) == once, "what was written is not read alike"
    with suppress(ValueError):
        asked = messages.read_request(method, message)
        if asked is not None and method == "SendMessage":
            _count(message, asked)


def _count(message: bytes, asked: messages.Asked) -> None:
    for step in (1, 7, len(message)):
        counter = messages.MessageCounter()
        try:
            for at in range(0, len(message), step):
                counter.feed(message[at : at + step])
        except ValueError:
            # It is stricter: it also parses irrelevant fields.
            return
        assert counter.count == asked.messages, "cut and whole are not counted alike"


class _Trial:
    """One conversation through a session."""

    def __init__(self, said: Conversation) -> None:
        self._said = said
        self._given_up: list[Request] = []
        self._session = RocketMQGrpcSession(
            grpc_talk.context(give_up=self._given_up.extend, pass_on=self._given_up.extend)
        )
        self._held: list[Request] = []
        self._out = {side: bytearray() for side in Side}

    def run(self) -> None:
        session, decides = self._session, bool(self._said.options & _DECIDES)
        try:
            for side, chunk in self._said.chunks():
                room = bytearray(chunk)
                rest = memoryview(room)
                while rest:
                    self._decide(session.receive(side, rest, 0), decides=decides)
                    rest = rest[len(rest) - session.left_bytes(side) :]
                room[:] = b"\xaa" * len(room)
                if self._said.options & _RESOLVES:
                    self._resolve()
            self._decide(session.tick(1 << 40), decides=False)
            self._resolve()
            session.start_close("the end", 1 << 40)
            self._take()
        except Close as close:
            assert close.reason in _REASONS, close
        session.describe(0)
        session.settle(0)
        session.close()
        for side, out in self._out.items():
            self._hold_frames(side, bytes(out), exactly=not decides)

    def _decide(self, batch: Batch | None, *, decides: bool) -> None:
        if batch is not None:
            for index, request in enumerate(batch.requests):
                if decides:
                    what = (request.size_bytes + index) % 3
                    resource = request.resources[0]
                    if what == 1 and request.refusal != "impossible":
                        batch.add_verdicts({index: Refuse(resource, "rule", 1)})
                    elif what == 2:
                        batch.add_verdicts({index: Hold(resource, "rule", Ticket(lambda: None))})
                        self._held.append(request)
            self._session.decided(batch, 0)
        self._take()

    def _resolve(self) -> None:
        held, self._held = self._held, []
        for request in held:
            if not any(request is each for each in self._given_up):
                refuse = Refuse(Resource("topic", "x"), "rule", 1) if request.messages % 2 else None
                self._session.resolved(request, None if request.refusal == "impossible" else refuse, 0)
                self._take()

    def _take(self) -> None:
        for side, out in self._out.items():
            out.extend(conversation.written(self._session.take(side)))

    def _hold_frames(self, side: Side, out: bytes, *, exactly: bool) -> None:
        """Check that complete frames were written, and without limits only the broker's."""
        written = split(out)
        assert all(one == PREFACE or one == mended(one) for one in written), "not whole frames"
        if not exactly or side is Side.CLIENT:
            return
        said = _by_stream(split(self._said.said(Side.CLIENT)))
        for stream, frames in _by_stream(written).items():
            if any(one[3] == DATA and one[4] & PADDED for one in said[stream]):
                continue
            # DATA may be split into other frames.
            given = iter([one for one in said[stream] if one[3] != DATA])
            others = (one for one in frames if one[3] != DATA)
            assert all(any(one == other for other in given) for one in others), "not what the client sent"
            assert _data(said[stream]).startswith(_data(frames)), "not the DATA that the client sent"


def _data(frames: Sequence[bytes]) -> bytes:
    return b"".join(one[_FRAME_BYTES:] for one in frames if one[3:4] == bytes((DATA,)))


def _by_stream(frames: Sequence[bytes]) -> defaultdict[bytes, list[bytes]]:
    """Sort frames without those that a session makes itself."""
    found: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for one in frames:
        if one != PREFACE and one[3:4] not in {bytes((WINDOW_UPDATE,)), bytes((RST_STREAM,)), b"\x07"}:
            found[one[5:9]].append(one)
    return found
