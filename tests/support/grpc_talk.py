"""A session of ``rocketmq-grpc`` between two peers of the library h2, which check every window and header block.

h2 raises for each violation of HTTP/2: DATA beyond a window, a header block that does not fit its table, a frame on a
closed stream. So a conversation without an error is correct in these respects.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, StreamEnded, StreamReset

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, ConnectionInfo, Hold, Refuse, Request, Side, Ticket, Verdict
from proxy.protocols.base import SessionContext, WireCounters
from proxy.protocols.rocketmq_grpc.options import RocketMQGrpcOptions
from proxy.protocols.rocketmq_grpc.session import RocketMQGrpcSession

SERVICE = "/apache.rocketmq.v2.MessagingService/"


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def part(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def grpc(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


def message(topic: str = "orders", body: bytes = b"hello") -> bytes:
    return part(1, part(2, topic)) + part(3, part(3, "01AB") + number(6, 1)) + part(4, body)


def send(topic: str = "orders", body: bytes = b"hello", count: int = 1) -> bytes:
    return grpc(count * part(1, message(topic, body)))


def sent(code: int = 20000) -> bytes:
    return grpc(part(1, number(1, code)) + part(2, part(2, "0123456789ABCDEF")))


def receive(group: str = "g", topic: str = "orders") -> bytes:
    return grpc(part(1, part(2, group)) + part(2, part(1, part(2, topic))) + number(4, 32))


def endpoints(host: str, port: int) -> bytes:
    return number(1, 1) + part(2, part(1, host) + number(2, port))


def routes(host: str, port: int, queues: int = 8, topic: str = "orders") -> bytes:
    broker = part(1, "broker") + part(3, endpoints(host, port))
    queue = part(1, part(2, topic)) + number(2, 3) + part(4, broker)
    return grpc(part(1, number(1, 20000)) + queues * part(2, queue))


def refuse(topic: str = "orders") -> Refuse:
    return Refuse(Resource("topic", topic), "some rule", 1000)


def hold(topic: str = "orders") -> Hold:
    return Hold(Resource("topic", topic), "some rule", Ticket(lambda: None))


def context(**changes: Any) -> SessionContext:
    info = ConnectionInfo(1, "main", "main", "10.0.0.9:4711", "10.0.0.9", local="10.0.0.1")
    given: dict[str, Any] = {
        "connection": info,
        "counters": WireCounters(),
        "wake": lambda: None,
        "wants_responses": False,
        "limits_kind": lambda _: True,
        "options": RocketMQGrpcOptions(),
    }
    return SessionContext(**(given | changes))


class Talk:
    """One conversation.

    ``decide``: the verdict on a request. ``pieces``: returns the number of waiting bytes of a side that are delivered
    next. ``answered``: the broker's answer, by stream, sent at the end of the request. Others wait for ``answer``.
    ``bodies``, ``headers``, ``resets``: by peer and stream. ``ended``: streams whose end a peer has seen. ``lags``:
    data for peers waits for ``receive`` or ``move``. ``grants``: a peer opens its windows again as it reads.
    ``tickets``: of held requests, in order.
    """

    def __init__(
        self,
        decide: Callable[[Request], Verdict | None] = lambda _: None,
        *,
        pieces: Callable[[Side, int], int] = lambda _, waiting: waiting,
        client_settings: Mapping[int, int] | None = None,
        broker_settings: Mapping[int, int] | None = None,
        **changes: Any,
    ) -> None:
        self.decide = decide
        self.pieces = pieces
        self.now_ns = 0
        self.given_up: list[Request] = []
        self.context = context(give_up=self.given_up.extend, **changes)
        self.session = RocketMQGrpcSession(self.context)
        self.peers = {
            Side.CLIENT: H2Connection(H2Configuration(client_side=True, header_encoding=None)),
            Side.BROKER: H2Connection(H2Configuration(client_side=False, header_encoding=None)),
        }
        # In flight to the session, and from there to each peer.
        self.waiting = {side: bytearray() for side in Side}
        self.toward = {side: bytearray() for side in Side}
        self.lags = False
        self.bodies: dict[Side, defaultdict[int, bytes]] = {side: defaultdict(bytes) for side in Side}
        self.headers: dict[Side, defaultdict[int, list[Any]]] = {side: defaultdict(list) for side in Side}
        self.resets: dict[Side, dict[int, int]] = {side: {} for side in Side}
        self.ended: dict[Side, set[int]] = {side: set() for side in Side}
        self.events: dict[Side, list[Event]] = {side: [] for side in Side}
        self.tickets: list[tuple[Request, Ticket]] = []
        self.answered: Callable[[int, bytes], Sequence[bytes] | None] = lambda *_: (sent(),)
        self.grants = dict.fromkeys(Side, True)
        self.batches: list[Batch] = []
        for side, settings in ((Side.CLIENT, client_settings), (Side.BROKER, broker_settings)):
            self.peers[side].initiate_connection()
            if settings:
                self.peers[side].update_settings(dict(settings))
        self.move()

    @property
    def client(self) -> H2Connection:
        return self.peers[Side.CLIENT]

    @property
    def broker(self) -> H2Connection:
        return self.peers[Side.BROKER]

    def call(
        self, method: str, request: bytes = b"", *, ends: bool = True, stream: int | None = None, **more: str
    ) -> int:
        """Begin a call, with its request if there is one. Return its stream."""
        stream = stream or self.client.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + method),
            (":authority", "proxy:8081"),
            ("content-type", "application/grpc"),
            *((name.replace("_", "-"), value) for name, value in more.items()),
        ]
        self.client.send_headers(stream, headers, end_stream=ends and not request)
        if request:
            self.client.send_data(stream, request, end_stream=ends)
        return stream

    def answer(self, stream: int, data: Sequence[bytes]) -> None:
        broker = self.broker
        broker.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        for each in data:
            broker.send_data(stream, each)
        broker.send_headers(stream, [("grpc-status", "0")], end_stream=True)

    def move(self) -> None:
        """Move bytes until both peers wait."""
        while True:
            for side in Side:
                self.receive(side)
            self.collect()
            sides = [side for side in Side if self.waiting[side]]
            if not sides:
                return
            self.deliver(sides[0], self.pieces(sides[0], len(self.waiting[sides[0]])))

    def collect(self) -> None:
        for side, peer in self.peers.items():
            self.waiting[side] += peer.data_to_send() or b""

    def deliver(self, side: Side, size: int) -> None:
        """Give the session some bytes of a peer, and the peers the result."""
        size = max(1, min(size, len(self.waiting[side])))
        chunk = bytearray(self.waiting[side][:size])
        del self.waiting[side][:size]
        self.feed(side, chunk)

    def feed(self, side: Side, chunk: bytearray) -> None:
        rest = memoryview(chunk)
        while rest:
            batch = self.session.receive(side, rest, self.now_ns)
            self.decided(batch)
            self.carry()
            left = self.session.left_bytes(side)
            rest = rest[len(rest) - left :]
        # The session must not keep the chunk.
        chunk[:] = b"\xee" * len(chunk)

    def decided(self, batch: Batch | None) -> None:
        if batch is None:
            return
        self.batches.append(batch)
        for index, request in enumerate(batch.requests):
            verdict = self.decide(request)
            if verdict is not None and index not in batch.verdicts:
                batch.add_verdicts({index: verdict})
        self.session.decided(batch, self.now_ns)
        for index, verdict in batch.verdicts.items():
            if isinstance(verdict, Hold):
                self.tickets.append((batch.requests[index], verdict.ticket))

    def tick(self) -> None:
        self.decided(self.session.tick(self.now_ns))
        self.carry()
        self.move()

    def resolve(self, at: int = 0, refuse: Refuse | None = None) -> None:
        request, _ = self.tickets.pop(at)
        if not any(request is each for each in self.given_up):
            self.session.resolved(request, refuse, self.now_ns)
            self.carry()
            self.move()

    def carry(self) -> None:
        """Take the session's output. Peers with a lag get it later."""
        for side in Side:
            self.toward[side] += b"".join(map(bytes, self.session.take(side)))
            if not self.lags:
                self.receive(side)

    def receive(self, side: Side, size: int = 1 << 30) -> None:
        data = bytes(self.toward[side][:size])
        del self.toward[side][:size]
        if data:
            for event in self.peers[side].receive_data(data):
                self._take(side, event)

    def _take(self, side: Side, event: Any) -> None:
        peer = self.peers[side]
        self.events[side].append(event)
        if hasattr(event, "headers"):
            self.headers[side][event.stream_id].append(event.headers)
        if isinstance(event, DataReceived):
            self.bodies[side][event.stream_id] += event.data
            if self.grants[side] and event.flow_controlled_length:
                peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamReset):
            self.resets[side][event.stream_id] = int(event.error_code)
        elif isinstance(event, StreamEnded):
            assert event.stream_id not in self.ended[side], f"a second end of {event.stream_id}"
            self.ended[side].add(event.stream_id)
            if side is Side.BROKER:
                answer = self.answered(event.stream_id, self.bodies[side][event.stream_id])
                if answer is not None and event.stream_id not in self.resets[side]:
                    self.answer(event.stream_id, answer)
