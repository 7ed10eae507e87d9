"""A session with RocketMQ's name server: clients' data is forwarded unchanged, and only addresses change in answers."""

import json
from collections.abc import Iterable
from random import Random
from typing import Any, Final

from playbook import frames
from playbook.captures import CAPTURES

from fuzz_targets import Changed, conversation
from fuzz_targets.conversation import Conversation
from fuzz_targets.rocketmq import mended, split
from proxy.deciding.batch import ConnectionInfo, Side
from proxy.protocols.base import Close, ListenerAddresses, SessionContext, WireCounters
from proxy.protocols.rocketmq.name_server import PROTOCOL, NameServerOptions
from proxy.protocols.rocketmq.routes import rewrite

_CODES: Final = (105, 106, 304, 101, 901)
_BODIES: Final = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.5:10911",1:"10.0.0.6:10911"},"brokerName":"a"}],"queueDatas":[]}',
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.5:10911"},"brokerName":"a","x":"\\"brokerAddrs\\":{}"}]}',
    b'{"brokerAddrTable":{"a":{"brokerAddrs":{"0":"::1:10911"}}},"clusterAddrTable":{"c":["a"]}}',
    b'{"brokerAddr":"10.0.0.5:10911","topicList":["TBW102"]}',
    b'{"brokerDatas":[{"brokerAddrs":null}]}',
)
_TOLD: Final = {("10.0.0.5", 10911): b"sluice.example.com:20911", ("::1", 10911): b"[2001:db8::7]:10911"}
_FRONTS: Final = (
    ListenerAddresses("rocketmq", ("0.0.0.0", 20911), (("10.0.0.5", 10911),)),
    ListenerAddresses("rocketmq", ("127.0.0.1", 20912), (("::1", 10911),)),
)
# The maximum by which a new address is longer.
_LONGER_BYTES: Final = 64
_BODY: Final = 0x80

_ASKS: Final = tuple(
    make(code, {"topic": "T"}, opaque=1 + number)
    for number, code in enumerate(_CODES)
    for make in (frames.json_frame, frames.binary_frame)
)
_ANSWERS: Final = tuple(
    make(0, opaque=1 + number, flag=frames.RESPONSE, body=body)
    for number, body in enumerate(_BODIES)
    for make in (frames.json_frame, frames.binary_frame)
)


def mutated(data: bytes, max_bytes: int, changed: Changed, random: Random) -> bytes:
    if data[:1] >= bytes((_BODY,)):
        return changed(data, max_bytes)
    known = {Side.CLIENT: _ASKS, Side.BROKER: _ANSWERS}
    return conversation.mutate(data, max_bytes, changed, random, split=split, mended=mended, known=known)


def seeds() -> Iterable[bytes]:
    """Return requests and answers, recorded ones, and bodies alone."""
    for body in _BODIES:
        yield bytes((_BODY,)) + body
    for cut in (0, 1, 3):
        yield conversation.seed((Side.CLIENT, b"".join(_ASKS)), (Side.BROKER, b"".join(_ANSWERS)), cut=cut)
        yield conversation.seed((Side.BROKER, b"".join(_ANSWERS)), cut=cut)
        for ask, answer in zip(_ASKS, _ANSWERS, strict=True):
            yield conversation.seed((Side.CLIENT, ask), (Side.BROKER, answer), cut=cut)
        for capture in CAPTURES:
            if "namesrv" in capture.name:
                yield conversation.seed(
                    (Side.CLIENT, capture.to_broker), (Side.BROKER, capture.to_client[:4000]), cut=cut
                )


def run(data: bytes) -> None:
    if data[:1] >= bytes((_BODY,)):
        _rewrite(data[1:])
        return
    said = conversation.read(data)
    if said is None:
        return
    closed, to_client, to_broker = _on_frame(said)
    closed_at_once, *at_once = _on_frame(said.whole())
    assert closed == closed_at_once, "chunks make a difference"
    for given, whole in zip((to_client, to_broker), at_once, strict=True):
        # The beginning of a frame is forwarded before it proves invalid.
        assert given.startswith(whole) if closed else given == whole, "chunks make a difference"
    asked, came = said.said(Side.CLIENT), said.said(Side.BROKER)
    assert asked.startswith(to_broker) if closed else asked == to_broker, "not what came"
    if b"brokerAddr" not in came:
        assert came.startswith(to_client) if closed else came == to_client, "not what came"
    assert len(to_client) <= len(came) + _LONGER_BYTES * came.count(b":"), "more than was said"


def _rewrite(body: bytes) -> None:
    rewritten = rewrite(body, _TOLD)
    if rewritten is None:
        return
    again = rewrite(rewritten.body, _TOLD)
    assert again is not None
    assert (again.body, again.replaced) == (rewritten.body, 0), "what was written is not read alike"
    assert again.left == rewritten.left + rewritten.replaced
    assert len(rewritten.body) <= len(body) + _LONGER_BYTES * rewritten.replaced
    assert rewritten.replaced or rewritten.body == body
    try:
        before, after = json.loads(body), json.loads(rewritten.body)
    except (ValueError, RecursionError):
        return
    _compare(before, after)


def _compare(before: Any, after: Any) -> None:
    """Check that two readings of JSON differ only in addresses."""
    if before != after:
        assert type(before) is type(after)
        if isinstance(before, dict):
            assert before.keys() == after.keys()
            for key, value in before.items():
                _compare(value, after[key])
        elif isinstance(before, list):
            assert len(before) == len(after)
            for pair in zip(before, after, strict=True):
                _compare(*pair)
        else:
            assert isinstance(after, str)
            assert after.encode() in _TOLD.values()


def _on_frame(said: Conversation) -> tuple[str, bytes, bytes]:
    """Play to a session. Return the reason for its close, and the data for client and broker."""
    warnings: list[str] = []
    session = PROTOCOL.open_session(
        SessionContext(
            ConnectionInfo(1, "routes", "default", "192.0.2.1:40000", "192.0.2.1", local="192.0.2.7"),
            WireCounters(),
            lambda: None,
            wants_responses=False,
            limits_kind=lambda _: False,
            options=NameServerOptions(),
            listeners=lambda: _FRONTS,
            warn=lambda *warning: warnings.extend(warning),
        )
    )
    out = {side: bytearray() for side in Side}

    def take() -> None:
        for each in Side:
            out[each] += conversation.written(session.take(each))

    closed = ""
    try:
        for side, chunk in said.chunks():
            room = bytearray(chunk)
            assert session.receive(side, memoryview(room), 0) is None
            take()
            room[:] = b"\xaa" * len(room)
        for side in Side:
            session.end(side, 0)
    except Close as close:
        assert close.reason in {"bad_frame", "bad_answer", "unparsable", "tls", "proxy_protocol"}, close
        closed = close.reason
    take()
    session.describe(0)
    session.close()
    assert all(warnings)
    return closed, bytes(out[Side.CLIENT]), bytes(out[Side.BROKER])
