"""Random conversations over one connection of RocketMQ's gRPC, between two peers that check windows and header blocks.

64 streams and more at once, cut anywhere: calls of all kinds that pass, are refused, wait or are reset, with slow
readers, small windows and late answers.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import pytest
from grpc_talk import (
    Talk,
    endpoints,
    grpc,
    hold,
    message,
    number,
    part,
    receive,
    refuse,
    routes,
    send,
    sent,
)
from h2.events import DataReceived
from h2.settings import SettingCodes

from proxy.deciding.batch import Request, Side, Verdict
from proxy.protocols.rocketmq_grpc import messages

STREAMS: Final = 64
HERE: Final = endpoints("10.0.0.1", 8081)
SETTINGS: Final[tuple[dict[int, int], ...]] = (
    {},
    {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20},
    {SettingCodes.INITIAL_WINDOW_SIZE: 3000},
    {SettingCodes.INITIAL_WINDOW_SIZE: 40_000, SettingCodes.HEADER_TABLE_SIZE: 0},
    {SettingCodes.HEADER_TABLE_SIZE: 65_536, SettingCodes.MAX_FRAME_SIZE: 70_000},
)


class Call:
    def __init__(self, method: str, request: bytes, answer: tuple[bytes, ...], fate: str) -> None:
        self.method = method
        self.request = request
        self.left = request
        self.answer = answer
        # The rest of the broker's answer, once it has begun.
        self.answer_left: bytes | None = None
        self.fate = fate
        self.stream = 0
        # By the client, by the broker correctly, and by the broker before it has the request.
        self.is_reset = self.is_answered = self.is_early = False


class Conversation:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.calls: dict[int, Call] = {}
        self.topics: dict[str, str] = {}
        self.talk = Talk(
            self.decide,
            pieces=lambda _, waiting: waiting if random.random() < 0.5 else random.randint(1, 60),
            client_settings=random.choice(SETTINGS),
            broker_settings=random.choice(SETTINGS),
        )
        self.talk.answered = lambda *_: None
        self.talk.lags = True
        # Data that peers have read without opening their windows again.
        self.talk.grants = dict.fromkeys(Side, False)
        self.read: dict[Side, list[tuple[int, int]]] = {side: [] for side in Side}
        self.seen = dict.fromkeys(Side, 0)

    def decide(self, request: Request) -> Verdict | None:
        fate = self.topics[request.resources[0].name.rpartition("@")[2]]
        if fate == "refused":
            return refuse()
        return hold() if fate.startswith("held") else None

    def new_call(self, at: int) -> Call:
        random = self.random
        fate = random.choice(("passes", "passes", "refused", "held, passes", "held, refused"))
        topic = f"topic{at}"
        self.topics[topic] = fate
        kind = random.randrange(8)
        if kind == 0:
            target = grpc(part(1, part(2, topic)) + part(2, HERE))
            return Call("QueryRoute", target, (routes("10.9.9.9", 1, random.choice((1, 40, 900))),), "passes")
        if kind == 1:
            return Call("Heartbeat", grpc(part(1, part(2, "g"))), (grpc(number(1, 1)),), "passes")
        if kind == 2:
            items = tuple(grpc(part(2, message(topic, random.randbytes(random.randrange(3000))))) for _ in range(4))
            # A refused Receive would be odd, but it is possible.
            return Call("ReceiveMessage", receive(topic=topic), items, fate)
        if kind == 3:
            return Call("SendMessage", send(topic, random.randbytes(random.randrange(120_000)), 1), (sent(),), fate)
        return Call(
            "SendMessage", send(topic, random.randbytes(random.randrange(200)), random.randint(1, 3)), (sent(),), fate
        )

    def run(self) -> None:
        random, talk = self.random, self.talk
        todo = [self.new_call(at) for at in range(STREAMS + 16)]
        steps: tuple[Callable[[], object], ...] = (
            self.begin,
            self.send_some,
            self.send_some,
            self.answer_some,
            self.answer_early,
        )
        steps += (self.reset_some, self.grant, self.resolve, self.tick)
        self.todo = todo
        while todo or random.random() < 0.98:
            random.choice(steps)()
            talk.collect()
            for _ in range(random.randrange(4)):
                side = random.choice(tuple(Side))
                if talk.waiting[side]:
                    talk.deliver(side, talk.pieces(side, len(talk.waiting[side])))
                if random.random() < 0.7:
                    talk.receive(side, random.choice((9, 100, 1 << 30)))
        self.finish()

    def begin(self) -> None:
        for _ in range(self.random.randrange(12)):
            if self.todo:
                call = self.todo.pop()
                user = (
                    f"MQv2-HMAC-SHA1 Credential={self.random.choice('abc')}, SignedHeaders=x-mq-date-time, Signature=0"
                )
                call.stream = self.talk.call(call.method, ends=False, authorization=user)
                self.calls[call.stream] = call

    def send_some(self, sizes: Sequence[int] = (1, 7, 500, 20_000, 70_000), most: int = 8) -> None:
        client = self.talk.client
        for call in self.random.sample(list(self.calls.values()), min(most, len(self.calls))):
            if call.left and self.is_open(call):
                window = min(client.local_flow_control_window(call.stream), client.max_outbound_frame_size)
                size = min(len(call.left), window, self.random.choice(sizes))
                if call.method == "QueryRoute":
                    # Clients send it in one frame, from which the addresses are read.
                    size = len(call.left) if window >= len(call.left) else 0
                if size > 0:
                    client.send_data(call.stream, call.left[:size], end_stream=size == len(call.left))
                    call.left = call.left[size:]

    def is_open(self, call: Call) -> bool:
        stream = call.stream
        return (
            not call.is_reset
            and stream not in self.talk.resets[Side.CLIENT]
            and not (stream in self.talk.ended[Side.CLIENT] and not call.left)
        )

    def answer_some(self, share: float = 0.3) -> None:
        talk, broker = self.talk, self.talk.broker
        for call in list(self.calls.values()):
            stream = call.stream
            if stream not in talk.ended[Side.BROKER] or call.is_answered or stream in talk.resets[Side.BROKER]:
                continue
            if call.answer_left is None and self.random.random() < share:
                call.answer_left = b"".join(call.answer)
                broker.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
            while call.answer_left:
                size = min(
                    broker.local_flow_control_window(stream), broker.max_outbound_frame_size, len(call.answer_left)
                )
                if size <= 0 or self.random.random() > share + 0.5:
                    break
                broker.send_data(stream, call.answer_left[:size])
                call.answer_left = call.answer_left[size:]
            if call.answer_left == b"":
                call.is_answered = True
                broker.send_headers(stream, [("grpc-status", "0"), (f"x-{stream}", "1")], end_stream=True)

    def answer_early(self) -> None:
        """Let the broker end a call of which it has only the headers, or part of the request."""
        talk = self.talk
        for call in self.calls.values():
            stream = call.stream
            is_open = stream in talk.headers[Side.BROKER] and stream not in talk.resets[Side.BROKER]
            if is_open and stream not in talk.ended[Side.BROKER] and not call.is_early and self.random.random() < 0.01:
                call.is_answered = call.is_early = True
                trailers = [(":status", "200"), ("grpc-status", "13"), (f"x-early-{stream}", "1")]
                talk.broker.send_headers(stream, trailers, end_stream=True)

    def reset_some(self) -> None:
        if self.random.random() < 0.1 and self.calls:
            call = self.random.choice(list(self.calls.values()))
            if self.is_open(call) and call.stream not in self.talk.ended[Side.CLIENT]:
                call.is_reset = True
                self.talk.client.reset_stream(call.stream, 8)

    def grant(self) -> None:
        """Open windows again for some of the data read."""
        for side, peer in self.talk.peers.items():
            events = self.talk.events[side]
            for event in events[self.seen[side] :]:
                if isinstance(event, DataReceived):
                    self.read[side].append((event.stream_id, event.flow_controlled_length))
            self.seen[side] = len(events)
            for stream, size in self.read[side]:
                peer.acknowledge_received_data(size, stream)
            self.read[side].clear()

    def tick(self) -> None:
        self.talk.decided(self.talk.session.tick(self.talk.now_ns))
        self.talk.carry()

    def resolve(self) -> None:
        if self.talk.tickets:
            self.resolve_one(self.random.randrange(len(self.talk.tickets)))

    def resolve_one(self, at: int) -> None:
        request, _ = self.talk.tickets[at]
        fate = self.topics[request.resources[0].name.rpartition("@")[2]]
        request, _ = self.talk.tickets.pop(at)
        if not any(request is each for each in self.talk.given_up):
            self.talk.session.resolved(request, None if fate == "held, passes" else refuse(), self.talk.now_ns)
            self.talk.carry()

    def finish(self) -> None:
        talk = self.talk
        for _ in range(200):
            self.send_some((70_000,), len(self.calls))
            while talk.tickets:
                self.resolve_one(0)
            self.answer_some(1)
            self.grant()
            self.tick()
            talk.move()
            if all(map(self.is_over, self.calls.values())):
                break
        for call in self.calls.values():
            self.check(call)
        session = talk.session
        assert session.in_flight() == session.unanswered() == 0
        to_broker, to_client = session._to_broker, session._to_client
        assert to_broker.waiting == to_client.waiting == to_broker.queued_bytes == to_client.queued_bytes == 0
        assert to_broker.credit == talk.client.outbound_flow_control_window
        assert to_broker.window == talk.broker.inbound_flow_control_window
        assert to_client.credit == talk.broker.outbound_flow_control_window
        assert to_client.window == talk.client.inbound_flow_control_window
        # Both windows are complete.
        assert to_broker.credit >= to_broker.window - 16_384
        assert to_client.credit >= to_client.window - 16_384
        assert not session._calls

    def is_over(self, call: Call) -> bool:
        if call.stream in self.talk.ended[Side.CLIENT]:
            return not call.left or call.stream in self.talk.resets[Side.CLIENT]
        return call.is_reset

    def check(self, call: Call) -> None:
        talk, stream = self.talk, call.stream
        got, told = talk.bodies[Side.BROKER][stream], talk.bodies[Side.CLIENT][stream]
        assert call.request.startswith(got)
        if call.is_reset:
            return
        assert stream in talk.ended[Side.CLIENT]
        if call.is_early:
            # Either answer.
            assert len(talk.headers[Side.CLIENT][stream]) == (2 if told else 1)
            return
        assert len(talk.headers[Side.CLIENT][stream]) == 2
        if "refused" in call.fate:
            assert not got
            assert talk.resets[Side.BROKER][stream] == 8
            code = messages.read_answer(call.method, told[5:]).code
            was_held = call.fate.startswith("held") and call.method == "ReceiveMessage"
            assert code == (40_404 if was_held else 42_900)
            return
        assert got == call.request
        assert stream not in talk.resets[Side.BROKER]
        expected = b"".join(call.answer)
        if call.method == "QueryRoute":
            expected = grpc(messages.rewrite_routes("QueryRoute", expected[5:], HERE))
        assert told == expected


def test_conversations_are_as_without_a_session_but_for_refused_calls(factor: int) -> None:
    for seed in range(30 * factor):
        Conversation(Random(seed)).run()


@pytest.mark.long
def test_a_thousand_conversations() -> None:
    for seed in range(1000, 2000):
        Conversation(Random(seed)).run()
