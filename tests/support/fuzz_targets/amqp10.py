"""An AMQP 1.0 session: any bytes cause nothing worse than Close, and without limits all is forwarded unchanged."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from amqp10_playbook import codec
from amqp10_playbook.codec import Described, Symbol, ULong, say
from amqp10_playbook.driver import BROKER, BUSY, CLIENT, ORDERS, REFUSED, SHAPED, Driver
from playbook.amqp_one_captures import AMQP_ONE_CAPTURES

from fuzz_targets import conversation
from fuzz_targets.conversation import Conversation
from limiter.rules.resource import Resource
from proxy.deciding.batch import Grant, Hold, Request, Side, Ticket, Verdict
from proxy.protocols.base import Terms

# Bits of the options: limits decide, some requests are held while time passes, it begins open with links, and the
# terms.
DECIDES, _HOLDS, OPEN = 1, 2, 8
TERMS_SHIFT: Final = 4
_HALF_A_SECOND_NS: Final = 500_000_000
# Maximum of the session's own bytes: in total, and for each frame and request.
_OWN_BYTES, _FRAME_BYTES, _EACH_BYTES = 4000, 8, 200
# Inserted recorded frames are not longer.
_MAX_BYTES: Final = 400

_REASONS: Final = {
    "bad_frame",
    "other_protocol",
    "proxy_protocol",
    "tls",
    "too_many_links",
    "too_many_sessions",
    "transfer_limit_exceeded",
    "unreadable_message",
}
_TRANSFER: Final = b"\0\x53\x14"
_WINDOWS: Final = {"incoming_window": 400, "outgoing_window": 500}
_QUEUE: Final = ["/queues/orders"]
_MESSAGE: Final = codec.message(b"x" * 20, to="/queues/orders")
_COPIED: Final = codec.message(b"x", annotations={Symbol("x-cc"): ["a", "b"]})
BY_CLIENT: Final[Sequence[bytes]] = (
    codec.SASL_HEADER,
    say(0, "sasl_init", mechanism="PLAIN", initial_response=b"\0guest\0guest"),
    codec.HEADER,
    say(0, "open", container_id="c", hostname="vhost:a", properties={Symbol("product"): "p"}),
    say(1, "begin", next_outgoing_id=0, **_WINDOWS),
    say(1, "attach", name="a", handle=0, role=False, target=Described(ULong(0x29), _QUEUE), initial_delivery_count=0),
    say(1, "attach", name="b", handle=1, role=False, target=Described(ULong(0x29), []), initial_delivery_count=0),
    say(1, "attach", name="c", handle=2, role=True, source=Described(ULong(0x28), _QUEUE)),
    say(1, "flow", next_incoming_id=0, next_outgoing_id=0, handle=2, delivery_count=0, link_credit=5, **_WINDOWS),
    say(1, "flow", next_outgoing_id=0, handle=2, link_credit=5, drain=True, echo=True, **_WINDOWS),
    say(1, "transfer", _MESSAGE, handle=0, delivery_id=0, delivery_tag=b"t"),
    say(1, "transfer", _MESSAGE, handle=0, delivery_id=1, delivery_tag=b"u", settled=True),
    say(1, "transfer", _MESSAGE[:9], handle=1, delivery_id=2, delivery_tag=b"t", more=True),
    say(1, "transfer", _MESSAGE[9:], handle=1),
    say(1, "transfer", _COPIED, handle=0, delivery_id=3, delivery_tag=b"v"),
    say(1, "transfer", b"", handle=1, aborted=True),
    say(1, "disposition", role=True, first=0, last=3, settled=True, state=Described(ULong(0x24), [])),
    say(1, "disposition", role=False, first=0, last=9, settled=True),
    say(1, "detach", handle=0, closed=True),
    say(1, "end"),
    say(0, "close"),
    codec.EMPTY,
)
BY_BROKER: Final[Sequence[bytes]] = (
    codec.SASL_HEADER,
    say(0, "sasl_mechanisms", mechanisms=codec.Array(["PLAIN"])),
    say(0, "sasl_outcome", code=0),
    codec.HEADER,
    say(0, "open", container_id="b", idle_time_out=1000, max_frame_size=1000, properties=codec.RABBITMQ),
    say(5, "begin", remote_channel=1, next_outgoing_id=0, **_WINDOWS),
    say(5, "attach", name="a", handle=3, role=True, target=Described(ULong(0x29), _QUEUE)),
    say(5, "attach", name="b", handle=4, role=True),
    say(5, "attach", name="c", handle=5, role=False, source=Described(ULong(0x28), _QUEUE), initial_delivery_count=0),
    say(5, "flow", next_incoming_id=0, next_outgoing_id=0, handle=3, delivery_count=0, link_credit=9, **_WINDOWS),
    say(5, "flow", next_incoming_id=0, next_outgoing_id=0, handle=4, delivery_count=0, link_credit=9, **_WINDOWS),
    say(5, "transfer", _MESSAGE, handle=5, delivery_id=0, delivery_tag=b"t"),
    say(5, "transfer", _MESSAGE[:9], handle=5, delivery_id=1, delivery_tag=b"t", more=True),
    say(5, "transfer", _MESSAGE[9:], handle=5),
    say(5, "flow", next_incoming_id=0, next_outgoing_id=1, handle=5, delivery_count=5, drain=True, **_WINDOWS),
    say(5, "disposition", role=True, first=0, last=5, settled=True, state=Described(ULong(0x24), [])),
    say(5, "detach", handle=3, error=Described(ULong(0x1D), [Symbol("amqp:not-found")])),
    say(5, "end"),
    say(0, "close"),
    codec.EMPTY,
)
_DELIVERY: Final = Resource("delivery", "orders")
_TERMS: Final[Sequence[Mapping[Resource, Terms]]] = (
    {ORDERS: SHAPED},
    {ORDERS: REFUSED},
    {ORDERS: Terms(True, True, 60), _DELIVERY: SHAPED},
    {_DELIVERY: SHAPED},
    {ORDERS: SHAPED, _DELIVERY: Terms(delays=True, max_bytes=30)},
    {ORDERS: Terms(True, True)},
    {Resource("exchange", "e"): REFUSED, ORDERS: SHAPED},
    {},
)


def split(stream: bytes) -> list[bytes]:
    found, at = [], 0
    while len(stream) - at >= 8:
        size = 8 if stream.startswith(b"AMQP", at) else max(1, int.from_bytes(stream[at : at + 4]))
        found.append(stream[at : at + size])
        at += size
    return [*found, stream[at:]] if at < len(stream) else found


def mended(frame: bytes) -> bytes:
    if len(frame) < 8 or frame.startswith(b"AMQP"):
        return frame
    out = bytearray(len(frame).to_bytes(4) + frame[4:])
    if out[8:10] == b"\x00\x53" and out[11:12] == b"\xc0" and out[10] != 0x14 and 0 <= len(out) - 13 < 256:
        out[12] = len(out) - 13
    return bytes(out)


mutated: Final = partial(conversation.mutate, split=split, mended=mended, known={CLIENT: BY_CLIENT, BROKER: BY_BROKER})


def seeds() -> Iterable[bytes]:
    """Return eventful conversations, recorded ones, and one of each frame."""
    for terms in range(len(_TERMS)):
        for decides in (0, DECIDES, DECIDES | _HOLDS):
            options = decides | terms << TERMS_SHIFT
            yield conversation.seed(
                (CLIENT, b"".join(BY_CLIENT[:8])),
                (BROKER, b"".join(BY_BROKER[:11])),
                (CLIENT, b"".join(BY_CLIENT[8:17])),
                (BROKER, b"".join(BY_BROKER[11:16])),
                (CLIENT, b"".join(BY_CLIENT[17:])),
                (BROKER, b"".join(BY_BROKER[16:])),
                options=options,
                cut=terms,
            )
            for frames, side in ((BY_CLIENT[8:], CLIENT), (BY_BROKER[9:], BROKER)):
                yield conversation.seed((side, b"".join(frames)), options=options | OPEN)
    for number, capture in enumerate(AMQP_ONE_CAPTURES):
        options = (number % 4) | number % len(_TERMS) << TERMS_SHIFT
        yield conversation.seed(*_beginning(capture.steps), options=options)


def _beginning(steps: Sequence[tuple[Side, bytes]]) -> Iterable[tuple[Side, bytes]]:
    size = 0
    for side, data in steps:
        size += len(data)
        if size > 4000:
            break
        yield side, data


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is None:
        return
    if not said.options & DECIDES:
        _pass_all(said)
    else:
        _decide(said)


def opened(said: Conversation, driver: Driver) -> Driver:
    return driver.open().sends().sends(1, None).takes(2) if said.options & OPEN else driver


def receive(driver: Driver, said: Conversation, random: Random | None = None) -> None:
    """Play to a session. A random advances the time and resolves held requests."""
    for side, chunk in said.chunks():
        if driver.closed is not None:
            assert driver.closed.reason in _REASONS, driver.closed
            assert driver.closed.detail
            break
        driver.give(side, chunk)
        if random is not None and driver.closed is None:
            if driver.held and random.random() < 0.4:
                driver.resolve(random.randint(1, next(iter(driver.held.values()))[0].most))
            driver.now_ns += random.choice((0, 1000, _HALF_A_SECOND_NS))
            driver.tick()


def _pass_all(said: Conversation) -> None:
    driver = opened(said, Driver())
    written_before = {side: len(driver.total[side]) for side in Side}
    receive(driver, said)
    for side in Side:
        if driver.closed is None:
            driver.session.end(side, 0)
            driver.take()
        written = bytes(driver.total[side.other][written_before[side.other] :])
        check_passed(side, said, written, driver.closed.reason if driver.closed else "", driver.unread[side])
    leave(driver)


def check_passed(side: Side, said: Conversation, written: bytes, closed: str, unread: bytes | bytearray) -> None:
    """Compare the forwarded data of one peer's stream with the data read by the session."""
    came = said.said(side) if closed else said.said(side).removesuffix(bytes(unread))
    if closed == "other_protocol":
        # The client is told the mandatory beginning.
        written = written.removesuffix(codec.SASL_HEADER)
    if came == written or (closed and came.startswith(written)):
        return
    *_, last = split(came) or [b""]
    if len(last) < max(8, int.from_bytes(last[:4])):
        # Of waiting data, only an incomplete frame is forwarded at the end of the stream.
        came, written = came.removesuffix(last), written.removesuffix(last)
    lanes, passed = _by_channel(came), _by_channel(written)
    assert passed.keys() <= lanes.keys(), "not what came"
    for number, lane in lanes.items():
        gone = passed.get(number, b"")
        assert lane.startswith(gone), "not what came"
        waits = split(lane[len(gone) :])
        assert closed or not waits or waits[0][8:11] == _TRANSFER, "not all that came"


def _by_channel(stream: bytes) -> dict[int, bytes]:
    """Sort frames by channel. -1: headers and invalid frames."""
    found: dict[int, bytes] = {}
    for each in split(stream):
        number = int.from_bytes(each[6:8]) if len(each) >= 8 and each[:4] != b"AMQP" else -1
        found[number] = found.get(number, b"") + each
    return found


def _decide(said: Conversation) -> None:
    random = Random(said.seed)

    def decide(request: Request) -> Verdict | None:
        dice = random.random()
        if request.most:
            if dice < 0.4:
                return None
            return Grant(random.randint(1, request.most)) if dice < 0.6 else _hold()
        return BUSY if request.refusal == "answered" and dice < 0.5 else None

    driver = opened(said, Driver(decide, terms=dict(_terms(said))))
    before = sum(map(len, driver.total.values()))
    receive(driver, said, random if said.options & _HOLDS else None)
    came = sum(len(said.said(side)) for side in Side)
    most = came + _OWN_BYTES + _EACH_BYTES * (came // _FRAME_BYTES + len(driver.requests))
    assert sum(map(len, driver.total.values())) - before <= most, "more than was said"
    leave(driver)


def _hold() -> Hold:
    return Hold(ORDERS, "rule", Ticket(lambda: None))


def _terms(said: Conversation) -> Mapping[Resource, Terms]:
    return _TERMS[said.options >> TERMS_SHIFT & len(_TERMS) - 1]


def leave(driver: Driver) -> None:
    session = driver.session
    session.describe(0)
    session.start_close("over", driver.now_ns)
    driver.take()
    for side in Side:
        assert session.backlog_bytes(side) >= 0
        assert session.missing_bytes(side) >= 1
    session.close()
