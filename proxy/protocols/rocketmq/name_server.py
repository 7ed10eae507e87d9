"""The protocol of RocketMQ's name servers. Replaces broker addresses in their answers with Sluice's addresses.

Only answers about brokers are buffered. If the addresses in an answer cannot be read, it is forwarded unchanged,
counted and logged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from proxy.common.buffers import Gathering
from proxy.deciding.batch import Batch, Refuse, Request, Side
from proxy.protocols.base import (
    NO_BOUND,
    Buffer,
    Close,
    Description,
    ListenerAddresses,
    Protocol,
    Session,
    SessionContext,
)
from proxy.protocols.options import Tls, relays_unread
from proxy.protocols.rocketmq.answers import MAX_ANSWER_HEADER_BYTES, Pending, header_bytes_of_answer
from proxy.protocols.rocketmq.client_info import ClientInfo
from proxy.protocols.rocketmq.routes import (
    NO_ADDRESSES,
    Address,
    AddressTable,
    Host,
    advertised_addresses,
    rewrite,
    without_vip,
)
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode
from proxy.protocols.rocketmq.wire.frame import MAX_HEADER_BYTES, Begun, PartialFrame, header_bytes_of
from proxy.protocols.rocketmq.wire.header import UNPARSED, classify, read_answer

_pack_length: Final = Struct(">i").pack
_LENGTH_BYTES: Final = 4
# Requests whose answers contain broker addresses, each with a JSON key that its answer must contain.
_ABOUT_BROKERS: Final[Mapping[int, bytes]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC.value: b'"brokerDatas"',
    RequestCode.GET_BROKER_CLUSTER_INFO.value: b'"brokerAddrTable"',
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS.value: b'"topicList"',
}
# The JSON key in answers to unknown requests.
_SURELY_ABOUT_BROKERS: Final = b'"brokerAddr'
_BROKERS: Final = "rocketmq"


@dataclass(frozen=True, slots=True)
class NameServerOptions:
    """Options of a listener in front of name servers.

    Attributes:
        advertise: host name or IP address at which clients reach Sluice's listeners with protocol ``rocketmq``. By
            default, clients get the address on which a listener listens, or if that is a wildcard, the address at which
            they reached this listener.
        addresses: replacements for the addresses under which brokers are registered. By default, the address of each
            listener with protocol ``rocketmq`` replaces the address in its ``broker``. Replacements set here take
            precedence.
        tls: what to do if a client begins a TLS handshake and the listener does not terminate TLS. ``refuse`` closes
            the connection. ``pass`` relays the encrypted connection, so clients get the brokers' own addresses.
        max_frame_bytes: maximum size of a frame, including its length word. If a client sends a longer frame, Sluice
            closes the connection.
    """

    advertise: Host = ""
    addresses: AddressTable = NO_ADDRESSES
    tls: Tls = "refuse"
    max_frame_bytes: Annotated[int, Meta(ge=codes.PREFIX_BYTES)] = codes.MAX_FRAME_BYTES


class NameServerSession(Session):
    def __init__(self, context: SessionContext) -> None:
        self._options: NameServerOptions = context.options
        self._counters = context.counters
        owed = Pending()
        self._owed = owed
        self._requests = _Requests(owed, self._options.max_frame_bytes)
        self._answers = _Answers(context, owed)
        self._out: dict[Side, list[Buffer]] = {Side.CLIENT: [], Side.BROKER: []}
        self._begun = self._unread = False

    @property
    def language(self) -> str:
        return self._requests.about.language

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> None:
        if not self._begun and side is Side.CLIENT:
            self._begun = True
            self._unread = relays_unread(chunk[0], self._options.tls)
        if self._unread:
            self._out[side.other].append(chunk)
            return
        stream = self._requests if side is Side.CLIENT else self._answers
        before = stream.frames
        try:
            stream.feed(chunk, self._out[side.other], now_ns)
        finally:
            self._counters.frames[side] += stream.frames - before

    def decided(self, batch: Batch, now_ns: int) -> None: ...

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None: ...

    def describe(self, now_ns: int) -> Description:
        del now_ns
        return Description(self._requests.about.describe(), self._requests.frames)

    def take(self, side: Side) -> Sequence[Buffer]:
        out = self._out[side]
        if out:
            self._out[side] = []
        return out

    def backlog_bytes(self, side: Side) -> int:
        del side
        return 0

    def in_flight(self) -> int:
        return len(self._owed)

    def end(self, side: Side, now_ns: int) -> None:
        del now_ns
        if side is Side.BROKER:
            self._answers.end(self._out[Side.CLIENT])

    def close(self) -> None:
        self._answers.give_back()

    def between_frames(self, side: Side) -> bool:
        if self._unread:
            return False
        return (self._requests if side is Side.CLIENT else self._answers).between_frames()

    def missing_bytes(self, side: Side) -> int:
        return NO_BOUND if self._unread or side is Side.BROKER else self._requests.missing_bytes()


class _Stream:
    def __init__(self, beginning: PartialFrame) -> None:
        self.frames = 0
        self.beginning = beginning
        self.left = 0

    def between_frames(self) -> bool:
        return not self.beginning.pieces and not self.left

    def begin(self, chunk: memoryview) -> Begun | None:
        try:
            begun = self.beginning.resume(chunk)
        except Close:
            self.beginning.pieces.clear()
            raise
        self.frames += begun is not None
        return begun

    def step(self, size: int) -> int:
        step = min(self.left, size)
        self.left -= step
        return step


class _Requests(_Stream):
    def __init__(self, owed: Pending, max_frame_bytes: int) -> None:
        max_length = max_frame_bytes - _LENGTH_BYTES
        super().__init__(PartialFrame(MAX_HEADER_BYTES, lambda length, word: header_bytes_of(length, word, max_length)))
        self.about = ClientInfo()
        self._owed = owed

    def missing_bytes(self) -> int:
        return self.left or self.beginning.missing_bytes()

    def feed(self, chunk: memoryview, out: list[Buffer], now_ns: int) -> None:
        del now_ns
        position, size = 0, len(chunk)
        try:
            while position < size:
                if self.left:
                    position += self.step(size - position)
                    continue
                begun = self.begin(chunk[position:])
                if begun is None:
                    break
                self._note(begun.header, begun.header_type)
                position += begun.position
                self.left = begun.left_bytes
        except Close:
            size = position
            raise
        finally:
            if size:
                out.append(chunk[:size])

    def _note(self, raw: bytes | None, header_type: int) -> None:
        header = None if raw is None else classify(raw, header_type)
        if header is None or header.reading == UNPARSED:
            self._owed.add_unknown()
            return
        self.about.identify(header)
        if not header.flag & (FLAG_RESPONSE | FLAG_ONEWAY):
            self._owed.add(header.opaque, header.code, ())


class _Whole(msgspec.Struct, gc=False):
    head: bytes
    key: bytes  # the JSON key that its body must contain
    expected: bool
    missing: int
    room: Gathering
    body: bytearray = msgspec.field(default_factory=bytearray)


class _Answers(_Stream):
    def __init__(self, context: SessionContext, owed: Pending) -> None:
        super().__init__(PartialFrame(MAX_ANSWER_HEADER_BYTES, header_bytes_of_answer))
        self._context = context
        self._owed = owed
        self._whole: _Whole | None = None
        self._told: Mapping[Address, bytes] | None = None

    def between_frames(self) -> bool:
        return super().between_frames() and self._whole is None

    def feed(self, chunk: memoryview, out: list[Buffer], now_ns: int) -> None:
        position, size = 0, len(chunk)
        while position < size:
            if self.left:
                start, position = position, position + self.step(size - position)
                out.append(chunk[start:position])
            elif self._whole is not None:
                position += self._gather(self._whole, chunk[position:], out, now_ns)
            else:
                begun = self.begin(chunk[position:])
                if begun is None:
                    break
                position += begun.position
                self._whole = None if begun.header is None else self._begin(begun.come, begun.left_bytes)
                if self._whole is None:
                    out.append(begun.come)
                    self.left = begun.left_bytes

    def _begin(self, head: bytes, body_bytes: int) -> _Whole | None:
        answer = read_answer(head[codes.PREFIX_BYTES :])
        if answer is not None and not answer.flag & FLAG_RESPONSE:
            return None
        request = None if answer is None else self._owed.settle(answer.opaque)
        key = _SURELY_ABOUT_BROKERS if request is None else _ABOUT_BROKERS.get(request[0])
        if key is None or not body_bytes:
            return None
        room = Gathering(self._context.connection.address, self._lose)
        return _Whole(head, key, request is not None, body_bytes, room)

    def _gather(self, whole: _Whole, piece: memoryview, out: list[Buffer], now_ns: int) -> int:
        if whole.room.lost:
            raise Close("no_room", "the client did not read the response, and other connections needed the memory")
        piece = piece[: whole.missing]
        whole.missing -= len(piece)
        whole.body += piece
        if not self._context.room.grow(whole.room, len(whole.head) + len(whole.body), now_ns):
            self._unread(whole, "not enough memory to read it")
            self.left = whole.missing
        elif whole.missing:
            return len(piece)
        else:
            self._rewrite(whole)
        self.end(out)
        return len(piece)

    def _rewrite(self, whole: _Whole) -> None:
        body = bytes(whole.body)
        if whole.key not in body:
            if whole.expected:
                self._unread(whole, f"it does not contain {whole.key.decode()}")
            return
        if self._told is None:
            context, options = self._context, self._context.options
            fronts = _fronts(context.listeners())
            self._told = advertised_addresses(options.addresses, options.advertise, fronts, context.connection.local)
        rewritten = rewrite(body, self._told)
        if rewritten is None:
            self._unread(whole, "it contains an invalid address")
            return
        if rewritten.replaced or rewritten.left:
            self._count("left" if rewritten.left else "rewritten")
        if rewritten.replaced:
            length = len(whole.head) - _LENGTH_BYTES + len(rewritten.body)
            whole.head = _pack_length(length) + whole.head[_LENGTH_BYTES:]
            whole.body = bytearray(rewritten.body)

    def _unread(self, whole: _Whole, why: str) -> None:
        self._count("unread")
        size = len(whole.head) + len(whole.body) + whole.missing
        self._context.warn("name server response forwarded unchanged", f"a response of {size} bytes: {why}")

    def _count(self, outcome: str) -> None:
        counts = self._context.counters.routes
        counts[outcome] = counts.get(outcome, 0) + 1

    def end(self, out: list[Buffer]) -> None:
        if self._whole is not None:
            if not self._whole.room.lost:
                out += (self._whole.head, bytes(self._whole.body))
            self.give_back()
        elif self.beginning.pieces:
            out.append(self.beginning.take())

    def _lose(self) -> None:
        if self._whole is not None:
            self._whole.body.clear()

    def give_back(self) -> None:
        if self._whole is not None:
            self._context.room.give_back(self._whole.room)
            self._whole = None


def _fronts(listeners: Iterable[ListenerAddresses]) -> list[ListenerAddresses]:
    return [each for each in listeners if each.protocol == _BROKERS]


def _lint(options: NameServerOptions, listeners: Sequence[ListenerAddresses]) -> Iterable[tuple[str, str]]:
    fronts = _fronts(listeners)
    if not fronts and not options.addresses:
        what = "replaces no addresses, so clients bypass Sluice; add listeners of protocol rocketmq for the brokers"
        yield "", f"{what}, or set options.addresses"
    for host, port in without_vip(fronts):
        what = f"directs clients to the listener at {host}:{port}, but clients with a VIP channel connect to port"
        vip = port + codes.VIP_PORT_OFFSET
        yield "", f"{what} {vip} on that host, which has no listener; add one for the broker's VIP channel"


PROTOCOL: Final = Protocol(
    name="rocketmq-namesrv",
    kinds=(),
    default_rules=(),
    open_session=NameServerSession,
    options=NameServerOptions,
    half_closes=False,
    lint=_lint,
)
