"""One connection: passed, refused and waiting calls, routes, invalid frames, and drains."""

import gzip
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import grpc_talk
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
from h2.events import ConnectionTerminated, DataReceived, PingAckReceived, PingReceived
from h2.settings import SettingCodes
from hpack import Decoder, Encoder

from limiter.rules.resource import USER, Resource
from limiter.waiting.holding import Bounds
from proxy.common.buffers import GATHERED_BYTES, KEPT_NS, Gathering, GatherRoom
from proxy.deciding.batch import Charge, Refuse, Request, Side, Verdict
from proxy.flow.broker_signals import BrokerSignals
from proxy.protocols.base import Close
from proxy.protocols.rocketmq_grpc import http2, messages
from proxy.protocols.rocketmq_grpc.calls import CUT_BYTES
from proxy.protocols.rocketmq_grpc.options import RocketMQGrpcOptions
from proxy.protocols.rocketmq_grpc.session import MAX_CALLS, MAX_STRAIN, RocketMQGrpcSession
from proxy.stats.snapshot import ClientDescription

WAIT = "[RateLimit] for orders need wait:1000microsecs, rule some rule"
MS = 1_000_000
SETTINGS = http2.frame_of(http2.SETTINGS, 0, 0)


def only(topic: str, verdict: Callable[[], Verdict]) -> Callable[[Request], Verdict | None]:
    return lambda request: verdict() if request.resources[0].name == topic else None


def status(talk: Talk, stream: int) -> tuple[int, bytes]:
    """Return code and complete message of the client's status."""
    told = talk.bodies[Side.CLIENT][stream]
    return messages.read_answer("SendMessage", told[5:]).code, told


def assert_refused(talk: Talk, stream: int, text: str = WAIT) -> None:
    code, told = status(talk, stream)
    assert code == 42_900
    assert text.encode() in told
    assert talk.headers[Side.CLIENT][stream][-1] == [(b"grpc-status", b"0")]
    assert stream in talk.ended[Side.CLIENT]
    assert talk.resets[Side.BROKER][stream] == 8


def assert_answered(talk: Talk, *streams: int) -> None:
    for stream in streams:
        assert talk.bodies[Side.CLIENT][stream] == sent()
        assert stream in talk.ended[Side.CLIENT]


def by_stream(data: bytes) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for _, _, stream, frame in http2.Frames("client").read(memoryview(data)):
        found.setdefault(stream, []).append(bytes(frame))
    return found


# --- Verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_frames_that_pass_are_the_same(size: int) -> None:
    talk = Talk()
    taken: dict[Side, bytes] = dict.fromkeys(Side, b"")
    given: dict[Side, bytes] = dict.fromkeys(Side, b"")
    carry, feed = talk.carry, talk.feed

    def note_feed(side: Side, chunk: bytearray) -> None:
        given[side] += chunk
        feed(side, chunk)

    def note_carry() -> None:
        carry()
        for side in Side:
            taken[side] += talk.toward[side]
            talk.receive(side)

    talk.feed, talk.carry, talk.lags = note_feed, note_carry, True  # type: ignore[method-assign]
    talk.pieces = lambda *_: size
    streams = [talk.call(method, send(), grpc_timeout="3S") for method in ("SendMessage", "Heartbeat", "AckMessage")]
    talk.move()
    assert_answered(talk, *streams)
    assert by_stream(given[Side.CLIENT]) == by_stream(taken[Side.BROKER])
    assert given[Side.BROKER] == taken[Side.CLIENT]


def test_a_refused_send_never_reaches_the_broker_and_its_client_gets_the_refusal() -> None:
    talk = Talk(only("orders", refuse))
    refused, free = talk.call("SendMessage", send()), talk.call("SendMessage", send("free"))
    talk.move()
    assert_refused(talk, refused)
    assert_answered(talk, free)
    assert not talk.bodies[Side.BROKER][refused]
    assert refused not in talk.resets[Side.CLIENT]


def test_client_that_still_sends_may_stop() -> None:
    talk = Talk(lambda _: refuse())
    stream = talk.call("SendMessage", send(), ends=False)
    talk.move()
    assert_refused(talk, stream)
    assert talk.resets[Side.CLIENT][stream] == 0


def test_data_behind_a_refusal_costs_no_window() -> None:
    talk = Talk(lambda _: refuse())
    talk.lags = True
    for _ in range(40):
        talk.call("SendMessage", send(body=bytes(15_000)), ends=False)
        talk.move()
        # It has not received the refusal yet.
    assert talk.client.outbound_flow_control_window >= http2.DEFAULT_WINDOW - 2 * 16_384


def test_a_client_without_room_for_the_answer_gets_trailers_only() -> None:
    talk = Talk(lambda _: refuse(), client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 20})
    stream = talk.call("SendMessage", send())
    talk.move()
    (headers,) = talk.headers[Side.CLIENT][stream]
    assert (b"grpc-status", b"8") in headers
    assert (b"grpc-message", WAIT.encode()) in headers
    assert stream in talk.ended[Side.CLIENT]


def test_held_calls_wait_and_others_overtake_them() -> None:
    talk = Talk(only("orders", hold))
    held, free = talk.call("SendMessage", send()), talk.call("SendMessage", send("free"))
    talk.move()
    assert_answered(talk, free)
    assert not talk.bodies[Side.BROKER][held]
    assert talk.session.in_flight() == 1
    talk.resolve()
    assert_answered(talk, held)
    assert talk.session.in_flight() == 0


def test_held_call_may_be_refused_later() -> None:
    talk = Talk(lambda _: hold())
    stream = talk.call("SendMessage", send())
    talk.move()
    talk.resolve(refuse=refuse())
    assert_refused(talk, stream)


@pytest.mark.parametrize("by", list(Side))
def test_reset_of_a_held_call_drops_its_ticket(by: Side) -> None:
    talk = Talk(lambda _: hold())
    stream = talk.call("SendMessage", send())
    talk.move()
    talk.peers[by].reset_stream(stream, 8)
    talk.move()
    assert talk.given_up == [talk.tickets[0][0]]
    assert talk.resets[by.other][stream] == 8
    assert talk.session.in_flight() == 0


def test_a_call_that_the_broker_ends_by_itself_is_dropped() -> None:
    talk = Talk(lambda _: hold())
    stream = talk.call("SendMessage", send(), ends=False)
    talk.move()
    talk.broker.send_headers(stream, [(":status", "200"), ("grpc-status", "4")], end_stream=True)
    talk.move()
    assert len(talk.given_up) == 1
    assert stream in talk.ended[Side.CLIENT]
    assert talk.resets == {Side.CLIENT: {stream: 0}, Side.BROKER: {stream: 8}}


def test_held_calls_leave_the_connections_window_to_others() -> None:
    talk = Talk(only("orders", hold))
    for _ in range(8):
        talk.call("SendMessage", send(body=bytes(16_000)))
        talk.move()
    free = talk.call("SendMessage", send("free"))
    talk.move()
    assert_answered(talk, free)
    while talk.tickets:
        talk.resolve()
    assert len(talk.ended[Side.CLIENT]) == 9


def test_released_calls_wait_for_the_brokers_window() -> None:
    talk = Talk(lambda _: hold())
    talk.grants[Side.BROKER] = False
    streams = []
    for _ in range(8):
        streams.append(talk.call("SendMessage", send(body=bytes(16_000))))
        talk.move()
    while talk.tickets:
        talk.resolve()
    assert len(talk.ended[Side.BROKER]) == 4
    assert talk.session.backlog_bytes(Side.BROKER) > 0
    talk.client.reset_stream(streams[4], 8)
    talk.move()
    for stream in streams[:4]:
        talk.broker.acknowledge_received_data(len(send(body=bytes(16_000))), stream)
    talk.move()
    assert talk.ended[Side.BROKER] == {*streams} - {streams[4]}
    assert talk.session.backlog_bytes(Side.BROKER) == 0


def test_held_call_is_refused_before_its_deadline() -> None:
    woken: list[int] = []
    talk = Talk(lambda _: hold(), wake=lambda: woken.append(1))
    stream = talk.call("SendMessage", send(), grpc_timeout="3S")
    later = talk.call("SendMessage", send(), grpc_timeout="3100m")
    talk.move()
    assert woken == [1]
    assert talk.session.next_tick_ns() == 2900 * MS
    talk.now_ns = 2900 * MS
    talk.tick()
    assert_refused(talk, stream, "[RateLimit] the limit would admit the request only after the client's deadline")
    assert later not in talk.ended[Side.CLIENT]
    assert len(talk.given_up) == 1
    assert talk.session.next_tick_ns() == 3000 * MS


def test_a_consumer_that_waits_until_its_deadline_gets_an_empty_long_poll() -> None:
    talk = Talk(lambda _: hold("g@orders"))
    stream = talk.call("ReceiveMessage", receive(), grpc_timeout="20S")
    talk.move()
    talk.now_ns = 19_900 * MS
    talk.tick()
    assert status(talk, stream)[0] == messages.MESSAGE_NOT_FOUND


def test_the_end_of_a_transaction_is_forwarded_at_its_deadline() -> None:
    passed: list[Request] = []
    talk = Talk(lambda _: hold(), pass_on=passed.extend)
    stream = talk.call("EndTransaction", grpc(part(1, part(2, "orders")) + number(4, 1)), grpc_timeout="3S")
    talk.move()
    talk.now_ns = 3000 * MS
    talk.tick()
    assert_answered(talk, stream)
    assert passed == [talk.tickets[0][0]]
    assert talk.batches[-1].charges == [Charge(passed[0].resources, 1, passed[0].size_bytes)]


def end_transaction() -> bytes:
    return grpc(part(1, part(2, "orders")) + number(4, 1))


def test_ends_of_transactions_are_decided_each_by_itself() -> None:
    talk = Talk(lambda _: hold())
    streams = [talk.call("EndTransaction", end_transaction()) for _ in range(3)]
    talk.move()
    (batch,) = talk.batches
    assert len(batch.groups) == 3
    talk.resolve(1)
    assert talk.ended[Side.BROKER] == {streams[1]}


def test_ends_of_transactions_that_are_held_are_bounded_as_configured() -> None:
    passed: list[Request] = []
    size_bytes = len(end_transaction())
    configured = [Bounds(requests_per_connection=2), Bounds(size_bytes_per_connection=2 * size_bytes)]
    talk = Talk(lambda _: hold(), pass_on=passed.extend, held_bounds=lambda: configured[0])
    while configured:
        streams = [talk.call("EndTransaction", end_transaction()) for _ in range(3)]
        talk.move()
        asked, charged = talk.batches
        assert passed == [asked.requests[2]]
        assert_answered(talk, streams[2])
        assert charged.charges == [Charge(passed.pop().resources, 1, size_bytes)]
        talk.batches.clear()
        talk.tickets.pop()
        talk.resolve()
        talk.client.reset_stream(streams[1], 8)
        talk.move()
        talk.tickets.clear()
        configured.pop(0)


def test_many_deadlines_need_few_ticks() -> None:
    talk = Talk(lambda _: hold())
    for at in range(100):
        talk.call("SendMessage", send(), grpc_timeout=f"{3000 + at}m")
        talk.move()
    ticks = 0
    while (due_ns := talk.session.next_tick_ns()) is not None:
        talk.now_ns = due_ns
        talk.tick()
        ticks += 1
    assert ticks <= 3
    assert len(talk.ended[Side.CLIENT]) == 100


def test_an_alarm_refuses_sends() -> None:
    talk = Talk()
    talk.session.alarm("Sluice is short of disk", 0)
    stored, read = talk.call("SendMessage", send()), talk.call("ReceiveMessage", receive())
    talk.move()
    assert_refused(talk, stored, "Sluice is short of disk")
    assert read in talk.ended[Side.BROKER]
    talk.session.alarm("", 0)
    stored = talk.call("SendMessage", send())
    talk.move()
    assert_answered(talk, stored)


# --- Requests -------------------------------------------------------------------------------------


def test_a_request_costs_its_messages_and_bytes() -> None:
    ids: list[bytes] = []
    talk = Talk(lambda request: ids.append(talk.session.message_id(request)))
    talk.call("SendMessage", send(count=3))
    talk.call("ReceiveMessage", receive())
    talk.move()
    sends, takes = talk.batches[0].requests
    assert (sends.messages, sends.size_bytes) == (3, len(send(count=3)))
    assert talk.batches[0].ids is talk.session
    assert ids == [b"01AB", b""]
    assert (takes.consumes, takes.by_answer, takes.messages) == (True, True, 0)


def test_without_limits_of_subscriptions_consumers_pass_unasked() -> None:
    talk = Talk(lambda _: refuse(), limits_kind=lambda kind: kind != "subscription")
    stream = talk.call("ReceiveMessage", receive())
    talk.move()
    assert_answered(talk, stream)


def test_messages_are_charged_as_a_consumer_gets_them() -> None:
    talk = Talk()
    item = grpc(part(2, message(body=bytes(40_000))))
    talk.answered = lambda *_: (
        grpc(part(1, number(1, 20000))),
        item[:15_000],
        item[15_000:30_000],
        item[30_000:],
        item[:9],
    )
    talk.client.increment_flow_control_window(60_000)
    talk.call("ReceiveMessage", receive())
    talk.move()
    (charge,) = talk.batches[-1].charges
    assert charge == Charge((Resource("subscription", "g@orders"),), 1, len(item) - 5, consumes=True)


def test_a_long_request_is_decided_by_its_beginning_and_the_rest_is_charged() -> None:
    talk = Talk()
    request = send(body=bytes(30_000), count=5)
    stream = talk.call("SendMessage", request[:16_000], ends=False)
    talk.move()
    assert not talk.batches
    for at in range(16_000, len(request), 16_000):
        talk.client.send_data(stream, request[at : at + 16_000], end_stream=at + 16_000 >= len(request))
        talk.move()
    assert_answered(talk, stream)
    assert talk.bodies[Side.BROKER][stream] == request
    (asked,) = talk.batches[0].requests
    assert asked.size_bytes == len(request)
    assert CUT_BYTES > 30_000
    charged = sum(charge.messages for batch in talk.batches for charge in batch.charges)
    assert asked.messages + charged == 5


def test_the_rest_of_a_held_request_joins_it() -> None:
    talk = Talk(lambda _: hold())
    request = send(body=bytes(60_000))
    stream = talk.call("SendMessage", request[:16_000], ends=False)
    for at in range(16_000, len(request), 16_000):
        talk.client.send_data(stream, request[at : at + 16_000], end_stream=at + 16_000 >= len(request))
        talk.move()
    talk.resolve()
    assert_answered(talk, stream)
    assert talk.bodies[Side.BROKER][stream] == request


def test_a_held_call_keeps_no_more_than_its_message() -> None:
    talk = Talk(lambda _: hold())
    stream = talk.call("SendMessage", send(), ends=False)
    talk.move()
    talk.client.send_data(stream, b"")
    talk.move()
    assert not talk.given_up
    talk.client.send_data(stream, send())
    talk.move()
    assert_refused(talk, stream, "cannot be read")
    assert len(talk.given_up) == 1
    assert talk.session.in_flight() == 0


def test_a_message_of_many_frames_is_forwarded_in_few() -> None:
    talk = Talk()
    request = send(body=bytes(20_000))
    stream = talk.call("SendMessage", request[:1], ends=False)
    for at in range(1, len(request), 100):
        talk.client.send_data(stream, request[at : at + 100], end_stream=at + 100 >= len(request))
        talk.move()
    assert talk.bodies[Side.BROKER][stream] == request
    assert sum(isinstance(event, DataReceived) for event in talk.events[Side.BROKER]) == 2
    assert_answered(talk, stream)


# Its first message names another topic behind its body, which the Proxy would use.
TWO_TOPICS = grpc(part(1, part(1, part(2, "orders")) + part(4, bytes(60_000)) + part(1, part(2, "other"))))


def send_in_pieces(talk: Talk, request: bytes, method: str = "SendMessage") -> int:
    """Send it until the client gets an answer."""
    stream = talk.call(method, request[:16_000], ends=False)
    for at in range(16_000, len(request), 16_000):
        talk.move()
        if stream not in talk.ended[Side.CLIENT] and stream not in talk.resets[Side.CLIENT]:
            talk.client.send_data(stream, request[at : at + 16_000], end_stream=at + 16_000 >= len(request))
    talk.move()
    return stream


def test_a_request_whose_rest_could_mean_another_topic_is_taken_back() -> None:
    talk = Talk()
    stream = send_in_pieces(talk, TWO_TOPICS)
    assert len(talk.batches[0].requests) == 1
    assert_refused(talk, stream, "cannot be read")
    assert stream not in talk.ended[Side.BROKER]


def test_a_held_request_whose_rest_could_change_the_topic_is_refused_at_release() -> None:
    talk = Talk(lambda _: hold())
    stream = send_in_pieces(talk, TWO_TOPICS)
    talk.resolve()
    assert_refused(talk, stream, "cannot be read")
    assert stream not in talk.ended[Side.BROKER]
    assert talk.session.backlog_bytes(Side.BROKER) == 0


def test_a_request_that_is_taken_back_after_an_answer_has_begun_is_reset() -> None:
    talk = Talk()
    stream = talk.call("SendMessage", TWO_TOPICS[:16_000], ends=False)
    talk.client.send_data(stream, TWO_TOPICS[16_000:32_000])
    talk.client.send_data(stream, TWO_TOPICS[32_000:48_000])
    talk.move()
    talk.broker.send_headers(stream, [(":status", "200")])
    talk.move()
    talk.client.send_data(stream, TWO_TOPICS[48_000:], end_stream=True)
    talk.move()
    assert talk.resets == {Side.CLIENT: {stream: 8}, Side.BROKER: {stream: 8}}


def test_a_request_without_a_topic_passes_as_the_proxy_refuses_it() -> None:
    talk = Talk(lambda _: refuse())
    stream = talk.call("SendMessage", send(topic=""))
    talk.move()
    assert_answered(talk, stream)
    assert not talk.batches


def test_a_call_that_is_reset_with_its_request_is_not_asked_about() -> None:
    talk = Talk(lambda _: refuse())
    stream = talk.call("SendMessage", send())
    other = talk.call("SendMessage", send())
    talk.client.reset_stream(stream, 8)
    talk.move()
    assert len(talk.batches[0].requests) == 1
    assert_refused(talk, other)
    assert stream not in talk.bodies[Side.BROKER]


def test_a_verdict_for_a_call_that_is_over_comes_too_late() -> None:
    talk = Talk()
    stream = talk.call("SendMessage", send())
    talk.collect()
    batch = talk.session.receive(Side.CLIENT, memoryview(bytes(talk.waiting[Side.CLIENT])), 0)
    assert batch is not None
    # While it is being decided.
    talk.session.receive(Side.BROKER, memoryview(http2.rst_stream(stream, 7)), 0)
    batch.add_verdicts({0: hold()})
    talk.session.decided(batch, 0)
    talk.session.resolved(batch.requests[0], None, 0)
    assert talk.given_up == list(batch.requests)
    assert talk.session.in_flight() == 0


@pytest.mark.parametrize(
    "request_",
    [
        grpc(b"\xff\xff\xff"),
        grpc(gzip.compress(send()[5:]), flag=1),
        grpc(send()[5:], flag=7),
        send()[:-1],
        b"\x00\x00",
        grpc(part(1, part(4, bytes(60_000)))),
    ],
    ids=["protobuf", "compressed", "flag", "cut", "prefix", "no topic"],
)
def test_an_unreadable_request_is_refused_while_limits_apply(request_: bytes) -> None:
    for limiting in (True, False):
        talk = Talk(limiting=lambda: limiting)  # noqa: B023 - asked in this round
        stream = talk.call("SendMessage", request_[:16_000], ends=len(request_) <= 16_000)
        talk.move()
        for at in range(16_000, len(request_), 16_000):
            if stream not in talk.ended[Side.CLIENT]:
                talk.client.send_data(stream, request_[at : at + 16_000], end_stream=at + 16_000 >= len(request_))
                talk.move()
        assert talk.context.counters.undecodable == {"none": 1}
        if limiting:
            assert_refused(talk, stream, "cannot be read")
        else:
            assert talk.bodies[Side.BROKER][stream] == request_


# Longer than the part used for deciding, with another name behind that.
LONG_RECEIVE = grpc(receive()[5:] + part(100, bytes(60_000)) + part(1, part(2, "other")))


@pytest.mark.parametrize("method", sorted(messages.LIMITED - {"SendMessage"}))
def test_only_a_send_is_decided_by_its_beginning(method: str) -> None:
    talk = Talk()
    stream = send_in_pieces(talk, LONG_RECEIVE, method)
    assert_refused(talk, stream, "cannot be read")
    assert not talk.batches


def test_compressed_requests_of_other_methods_pass() -> None:
    talk = Talk()
    stream = talk.call("AckMessage", grpc(gzip.compress(send()[5:]), flag=1), grpc_encoding="gzip")
    talk.move()
    assert_answered(talk, stream)
    assert not talk.context.counters.undecodable


def test_messages_that_are_gathered_make_room_for_others() -> None:
    room = GatherRoom(budget_bytes=150_000)
    talk, other = Talk(room=room), Talk(room=room)
    streams = []
    for at in range(6):
        streams.append(talk.call("SendMessage", send(body=bytes(30_000))[: 16_000 + at], ends=False))
        talk.move()
    assert room.taken_bytes > 0
    # Longer than a frame is kept while others need room.
    other.now_ns = 6_000 * MS
    for _ in range(6):
        other.call("SendMessage", send(body=bytes(30_000))[:16_000], ends=False)
        other.move()
    talk.tick()
    for stream in streams:
        assert_refused(talk, stream, "no memory left")
    talk.session.close()
    other.session.close()
    assert room.taken_bytes == 0


@pytest.mark.parametrize("by", ["the broker's reset", "a tick"])
def test_room_for_messages_is_given_back(by: str) -> None:
    room = GatherRoom()
    talk = Talk(lambda _: refuse(), room=room)
    request = send(body=bytes(30_000))
    # Longer than a frame without a reservation.
    streams = []
    for _ in range(5):
        streams.append(talk.call("SendMessage", request[:16_000], ends=False))
        talk.move()
    assert room.taken_bytes > 0
    if by == "the broker's reset":
        for stream in streams:
            talk.broker.reset_stream(stream, 2)
        talk.move()
    else:
        other = Gathering("10.0.0.8")
        assert room.grow(other, GATHERED_BYTES, KEPT_NS)
        talk.tick()
        assert len(talk.ended[Side.CLIENT]) == 5
        room.give_back(other)
    assert room.taken_bytes == 0


@pytest.mark.parametrize("is_evicted", [False, True])
def test_an_incomplete_frame_for_which_there_is_no_memory_ends_the_connection(*, is_evicted: bool) -> None:
    room = GatherRoom(budget_bytes=300_000)
    talk = Talk(room=room, broker_settings={SettingCodes.MAX_FRAME_SIZE: 1 << 20})
    other = Gathering("10.0.0.8")
    incomplete = http2.frame_of(http2.DATA, 0, 1, bytes(400_000))[:200_000]
    if is_evicted:
        talk.feed(Side.CLIENT, bytearray(incomplete))
    assert room.grow(other, 290_000, KEPT_NS)
    with pytest.raises(Close) as caught:
        talk.tick() if is_evicted else talk.feed(Side.CLIENT, bytearray(incomplete))
    assert caught.value.reason == "no_room"
    talk.session.close()
    assert room.taken_bytes == 290_000


def test_memory_that_is_taken_when_it_is_no_longer_needed_costs_nothing() -> None:
    room = GatherRoom()
    talk, other = Talk(room=room), Gathering("10.0.0.8")
    talk.answered = lambda *_: None
    request = send(body=bytes(30_000))
    streams = []
    for _ in range(5):
        streams.append(talk.call("SendMessage", request[:16_000], ends=False))
        talk.move()
    assert room.grow(other, GATHERED_BYTES, KEPT_NS)
    room.give_back(other)
    # Its tick comes late.
    for stream in streams:
        talk.client.reset_stream(stream, 8)
    talk.move()
    for _ in range(2):
        stream = talk.call("SendMessage", request[:16_000], ends=False)
        talk.move()
        talk.client.send_data(stream, request[16_000:], end_stream=True)
        talk.move()
        assert talk.bodies[Side.BROKER][stream] == request


def test_calls_of_other_services_pass() -> None:
    talk = Talk(lambda _: refuse())
    stream = talk.call("../../grpc.health.v1.Health/Check", send())
    talk.move()
    assert_answered(talk, stream)
    assert not talk.batches


# --- Routes ---------------------------------------------------------------------------------------

QUERY = grpc(part(1, part(2, "orders")) + part(2, endpoints("10.0.0.1", 8081)))


@pytest.mark.parametrize("queues", [1, 8, 2000])
def test_routes_name_the_address_that_the_client_has_used(queues: int) -> None:
    talk = Talk(broker_settings={SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    answer = routes("10.9.9.9", 10911, queues)
    talk.answered = lambda *_: None
    stream = talk.call("QueryRoute", QUERY)
    talk.move()
    talk.broker.send_headers(stream, [(":status", "200")])
    for at in range(0, len(answer), 10_000):
        talk.broker.send_data(stream, answer[at : at + 10_000])
        talk.move()
    talk.broker.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == routes("10.0.0.1", 8081, queues)
    assert stream in talk.ended[Side.CLIENT]
    assert talk.context.counters.routes == {"rewritten": 1}


def test_endpoints_that_are_too_long_are_not_repeated_for_each_queue() -> None:
    talk = Talk()
    talk.answered = lambda *_: (routes("10.9.9.9", 10911),)
    stream = talk.call("QueryRoute", grpc(part(1, part(2, "orders")) + part(2, endpoints("h" * 1024, 8081))))
    talk.move()
    assert len(talk.bodies[Side.CLIENT][stream]) < 2048


def test_routes_name_the_advertised_address() -> None:
    talk = Talk(options=RocketMQGrpcOptions(advertise="192.0.2.7:9999"))
    talk.answered = lambda *_: (routes("10.9.9.9", 10911),)
    stream = talk.call("QueryRoute", QUERY)
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == routes("192.0.2.7", 9999)


def test_routes_that_cannot_be_read_pass_with_a_warning() -> None:
    warned: list[tuple[str, str]] = []
    talk = Talk(warn=lambda *words: warned.append(words))
    answers = [grpc(b"\xff"), grpc(gzip.compress(routes("10.9.9.9", 1)[5:]), flag=1)]
    talk.answered = lambda *_: (answers[0],)
    for answer in list(answers):
        stream = talk.call("QueryRoute", QUERY)
        talk.move()
        assert talk.bodies[Side.CLIENT][stream] == answer
        answers.pop(0)
    assert talk.context.counters.routes == {"unread": 2}
    assert len(warned) == 2


def routes_that_wait(talk: Talk, *trailers: tuple[str, str], ends: bool = True) -> tuple[int, bytes]:
    """Have an answer about routes come that is longer than its stream's window, once rewritten."""
    talk.answered = lambda *_: None
    talk.grants[Side.CLIENT] = False
    stream = talk.call("QueryRoute", grpc(part(1, part(2, "orders")) + part(2, endpoints("h" * 200, 8081))))
    talk.move()
    talk.broker.send_headers(stream, [(":status", "200")])
    talk.broker.send_data(stream, routes("10.9.9.9", 10911, 100))
    if ends:
        talk.broker.send_headers(stream, [("grpc-status", "0"), *trailers], end_stream=True)
    talk.move()
    return stream, routes("h" * 200, 8081, 100)


def test_routes_that_became_longer_wait_for_the_streams_window() -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 20_000})
    stream, answer = routes_that_wait(talk)
    assert len(answer) > 20_000
    assert stream not in talk.ended[Side.CLIENT]
    talk.client.increment_flow_control_window(20_000, stream)
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == answer
    assert stream in talk.ended[Side.CLIENT]


def test_routes_reach_a_client_whose_streams_begin_without_a_window() -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 0})
    talk.answered = lambda *_: (routes("10.9.9.9", 10911),)
    stream = talk.call("QueryRoute", QUERY, ends=False)
    talk.client.increment_flow_control_window(10_000, stream)
    talk.client.end_stream(stream)
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == routes("10.0.0.1", 8081)


@pytest.mark.parametrize("reset_by", list(Side))
def test_no_other_answer_waits_for_routes_that_wait(reset_by: Side) -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 20_000})
    stream, _ = routes_that_wait(talk)
    for _ in range(3):
        other = talk.call("SendMessage", send())
        talk.move()
        talk.answer(other, (sent(),))
        talk.move()
        assert_answered(talk, other)
    assert stream not in talk.ended[Side.CLIENT]
    assert talk.session.in_flight() == 1
    if reset_by is Side.CLIENT:
        talk.client.reset_stream(stream, 8)
        talk.move()
        assert talk.session._to_client.queued_bytes == talk.session.in_flight() == 0
    assert talk.session._to_client.waiting == 0


def test_routes_that_the_broker_resets_while_they_wait_are_dropped() -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 20_000})
    stream, _ = routes_that_wait(talk, ends=False)
    talk.broker.reset_stream(stream, 2)
    talk.move()
    assert talk.resets[Side.CLIENT] == {stream: 2}
    assert talk.session._to_client.queued_bytes == 0


def test_trailers_of_routes_that_wait_may_change_the_table() -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 20_000})
    stream, answer = routes_that_wait(talk, ("x-a", "1"))
    for at in range(3):
        other = talk.call("SendMessage", send())
        talk.move()
        talk.broker.send_headers(other, [(":status", "200"), ("x-a", "1"), ("x-b", str(at // 2))])
        talk.broker.send_headers(other, [("grpc-status", "0")], end_stream=True)
        talk.move()
        assert (b"x-a", b"1") in talk.headers[Side.CLIENT][other][0]
    talk.client.increment_flow_control_window(20_000, stream)
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == answer
    assert talk.headers[Side.CLIENT][stream][1] == [(b"grpc-status", b"0"), (b"x-a", b"1")]
    assert not talk.session._routes


def test_routes_come_through_a_window_smaller_than_a_frame() -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 300})
    talk.answered = lambda *_: (routes("10.9.9.9", 10911, 100),)
    stream = talk.call("QueryRoute", QUERY)
    talk.move()
    talk.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 400})
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == routes("10.0.0.1", 8081, 100)
    assert stream in talk.ended[Side.CLIENT]


def test_routes_that_a_setting_lets_through_are_forgotten() -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 20_000})
    stream, answer = routes_that_wait(talk)
    talk.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 60_000})
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == answer
    assert not talk.session._routes


def test_an_answer_about_routes_may_end_with_its_data() -> None:
    talk = Talk()
    talk.answered = lambda *_: None
    stream = talk.call("QueryRoute", QUERY)
    talk.move()
    talk.broker.send_headers(stream, [(":status", "200")])
    talk.broker.send_data(stream, routes("10.9.9.9", 10911), end_stream=True)
    talk.move()
    assert talk.bodies[Side.CLIENT][stream] == routes("10.0.0.1", 8081)
    assert stream in talk.ended[Side.CLIENT]
    assert talk.session.in_flight() == 0


def test_an_answer_about_routes_is_gathered_up_to_a_bound() -> None:
    talk = Talk()
    talk.answered = lambda *_: None
    stream = talk.call("QueryRoute", QUERY)
    talk.move()
    talk.broker.send_headers(stream, [(":status", "200")])
    begin = bytes(1) + (5 << 20).to_bytes(4, "big")
    talk.broker.send_data(stream, begin)
    with pytest.raises(Close) as caught:
        send_data_on_and_on(talk, stream)
    assert caught.value.reason == "answer_too_long"
    talk.session.start_close("too long", 0)
    assert pack(">I", http2.INTERNAL_ERROR) + b"too long" in b"".join(talk.session.take(Side.CLIENT))


def send_data_on_and_on(talk: Talk, stream: int) -> None:
    for _ in range(400):
        talk.broker.send_data(stream, bytes(16_000))
        talk.move()


# --- The broker -------------------------------------------------------------------------


def test_header_blocks_are_re_encoded_once_one_was_dropped() -> None:
    talk = Talk(lambda _: refuse())
    talk.lags = True
    refused = talk.call("SendMessage", send())
    talk.collect()
    talk.deliver(Side.CLIENT, 80)
    talk.receive(Side.BROKER)
    # The broker answers while its call is refused.
    talk.broker.send_headers(refused, [(":status", "200"), ("x-dropped", "1"), ("grpc-status", "4")], end_stream=True)
    talk.move()
    assert_refused(talk, refused)
    talk.decide = lambda _: None
    for at in range(300):
        stream = talk.call("SendMessage", send())
        talk.move()
        assert_answered(talk, stream)
        stream = talk.call("Heartbeat")
        talk.answered = lambda *_: None
        talk.move()
        headers = [(":status", "200"), ("x-dropped", "1"), (f"x-{at}", str(at) * 50)]
        talk.broker.send_headers(stream, headers, end_stream=True)
        talk.answered = lambda *_: (sent(),)
        talk.move()
        assert (b"x-dropped", b"1") in talk.headers[Side.CLIENT][stream][0]
    talk.client.update_settings({SettingCodes.HEADER_TABLE_SIZE: 100})
    talk.move()
    stream = talk.call("SendMessage", send())
    talk.move()
    assert_answered(talk, stream)


def test_a_dropped_block_may_have_been_the_one_that_shortens_the_table() -> None:
    talk = Talk(only("orders", refuse))
    talk.client.update_settings({SettingCodes.HEADER_TABLE_SIZE: 64})
    talk.move()
    given_up = talk.call("Heartbeat", ends=False)
    talk.move()
    talk.client.reset_stream(given_up, 8)
    # The broker answers before it knows of that.
    talk.broker.send_headers(given_up, [(":status", "200"), ("grpc-status", "4")], end_stream=True)
    talk.collect()
    talk.deliver(Side.CLIENT, 1 << 20)
    talk.deliver(Side.BROKER, 1 << 20)
    refused, free = talk.call("SendMessage", send()), talk.call("SendMessage", send("free"))
    talk.move()
    assert_refused(talk, refused)
    assert_answered(talk, free)


def test_own_header_blocks_follow_a_table_that_was_shortened() -> None:
    talk = Talk(only("orders", refuse))
    talk.call("SendMessage", send("free"))
    talk.move()
    talk.client.update_settings({SettingCodes.HEADER_TABLE_SIZE: 64})
    talk.move()
    refused = [talk.call("SendMessage", send()) for _ in range(2)]
    talk.move()
    free = talk.call("SendMessage", send("free"))
    talk.move()
    for stream in refused:
        assert_refused(talk, stream)
    assert_answered(talk, free)


def test_pings_do_not_wait_for_the_clients_window() -> None:
    talk = Talk(lambda _: refuse())
    talk.grants[Side.CLIENT] = False
    for _ in range(950):
        talk.call("SendMessage", send())
        talk.move()
    # Sluice's answers wait for the client's window.
    assert len(talk.ended[Side.CLIENT]) < 950
    talk.broker.ping(b"12345678")
    talk.move()
    assert isinstance(talk.events[Side.CLIENT][-1], PingReceived)


def test_pings_behind_a_refusal_are_answered_here() -> None:
    talk = Talk(only("orders", refuse))
    pings = {}
    for topic in ("free", "orders", "orders", "free"):
        talk.call("SendMessage", send(topic))
        talk.move()
        for _ in range(2):
            talk.client.ping(b"01234567")
        talk.move()
        pings[len(pings)] = sum(isinstance(event, PingReceived) for event in talk.events[Side.BROKER])
    assert list(pings.values()) == [2, 2, 2, 4]
    answered = [event for event in talk.events[Side.CLIENT] if isinstance(event, PingAckReceived)]
    assert [event.ping_data for event in answered] == [b"01234567"] * 8


def test_keepalives_behind_a_refusal_reach_the_broker() -> None:
    talk = Talk(lambda _: refuse())
    talk.call("SendMessage", send())
    talk.move()
    talk.now_ns = 10_000 * MS
    talk.client.ping(b"01234567")
    talk.move()
    assert isinstance(talk.events[Side.BROKER][-1], PingReceived)


def test_answers_of_sends_are_signals() -> None:
    signals = BrokerSignals()
    talk = Talk(signals=signals, wants_responses=True)
    codes = [20_000, 42_900]
    talk.answered = lambda *_: (sent(codes.pop(0)),)
    talk.grants = dict.fromkeys(Side, True)
    talk.call("SendMessage", send(count=3))
    talk.call("SendMessage", send(count=2))
    waiting = talk.call("Heartbeat", grpc(b""), ends=False)
    talk.collect()
    talk.lags = True
    talk.deliver(Side.CLIENT, 1 << 20)
    assert (talk.session.unanswered(), talk.session.in_flight()) == (5, 3)
    talk.now_ns = 7 * MS
    talk.move()
    assert (signals.answers, signals.busy, list(signals.round_trips_ns)) == (5, 2, [7 * MS])
    assert talk.context.counters.round_trip.durations().sum_s == 0.007
    assert [response.status for response in talk.session.take_responses()] == [20_000, 42_900]
    assert talk.session.unanswered() == 0
    talk.client.reset_stream(waiting)
    talk.move()
    assert talk.session.in_flight() == 0


def test_long_polls_are_not_in_flight() -> None:
    talk = Talk()
    talk.answered = lambda *_: None
    talk.call("Telemetry", grpc(part(2, part(7, number(1, 1) + part(2, "5.0.8")))), ends=False)
    talk.call("ReceiveMessage", receive())
    talk.move()
    assert talk.session.in_flight() == 0
    assert talk.session.between_frames(Side.CLIENT)


def test_the_client_is_known_by_its_headers_and_settings() -> None:
    talk = Talk()
    credential = "MQv2-HMAC-SHA1 Credential=key7, SignedHeaders=x-mq-date-time, Signature=00FF"
    talk.call("SendMessage", send(), x_mq_client_id="host@1@2", authorization=credential, x_mq_language="JAVA")
    talk.call("Telemetry", grpc(part(2, part(7, number(1, 1) + part(2, "5.0.8")))), ends=False)
    talk.move()
    described = talk.session.describe(0)
    assert described.client == ClientDescription("host@1@2", "JAVA", "5.0.8")
    assert described.resources == ("topic:orders",)
    assert (talk.session.language, talk.session.product) == ("JAVA", "rocketmq-clients 5.0.8")
    assert talk.batches[0].connection.scopes == (Resource(USER, "key7"),)
    assert not talk.batches[0].connection.spools


def credential(key: str) -> str:
    return f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature=00FF"


def test_each_call_is_its_own_users() -> None:
    woken: list[int] = []
    talk = Talk(wake=lambda: woken.append(1))
    for key in ("one", "two", "one"):
        talk.call("SendMessage", send(), authorization=credential(key))
    talk.call("Heartbeat", grpc(b""), authorization=credential("three"))
    talk.call("SendMessage", send())
    talk.move()
    assert woken
    talk.tick()
    talk.tick()
    assert [(batch.connection.scopes, len(batch.requests)) for batch in talk.batches] == [
        ((Resource(USER, "one"),), 2),
        ((Resource(USER, "two"),), 1),
        ((), 1),
    ]
    talk.tick()
    assert len(talk.batches) == 3


def test_an_answer_does_not_take_the_requests_of_other_users() -> None:
    talk = Talk()
    streams = [talk.call("SendMessage", send(), authorization=credential(key)) for key in ("one", "two")]
    talk.move()
    assert talk.ended[Side.CLIENT] == {streams[0]}
    talk.tick()
    assert_answered(talk, *streams)
    assert [batch.side for batch in talk.batches] == [Side.CLIENT] * 2


def test_each_users_deliveries_are_charged_to_it() -> None:
    talk = Talk()
    talk.answered = lambda *_: (grpc(part(2, message())),)
    for key in ("one", "two"):
        talk.call("ReceiveMessage", receive(), authorization=credential(key))
        talk.move()
    talk.tick()
    charged = {batch.connection.scopes[0].name: len(batch.charges) for batch in talk.batches if batch.charges}
    assert charged == {"one": 1, "two": 1}


def test_several_users_deliveries_are_charged_at_the_end() -> None:
    talk = Talk()
    talk.answered = lambda *_: None
    streams = [talk.call("ReceiveMessage", receive(), authorization=credential(key)) for key in ("one", "two")]
    talk.move()
    talk.tick()
    for stream in streams:
        talk.broker.send_headers(stream, [(":status", "200")])
        talk.broker.send_data(stream, grpc(part(2, message())))
    talk.move()
    batch = talk.session.settle(0)
    assert batch is not None
    assert [charge.messages for charge in batch.charges] == [1, 1]


def test_invalid_text_is_not_shown() -> None:
    talk = Talk()
    talk.call("Heartbeat", grpc(b""), x_mq_client_id="a\x7f", x_mq_language="evil\x01")
    talk.call("Telemetry", grpc(part(2, part(7, part(2, "5\n")))), ends=False)
    talk.move()
    assert (talk.session.language, talk.session.product) == ("", "")
    assert talk.session.describe(0).client == ClientDescription("", "", "")


# --- The end --------------------------------------------------------------------------------------


def test_a_draining_client_opens_no_more_calls_and_waits_for_those_in_flight() -> None:
    talk = Talk(lambda _: hold())
    held = talk.call("SendMessage", send())
    talk.move()
    session = talk.session
    assert not session.between_frames(Side.CLIENT)
    assert not session.close_client("shutting down", 0)
    late = talk.call("SendMessage", send())
    talk.lags = True
    talk.collect()
    talk.deliver(Side.CLIENT, 1 << 20)
    assert session.in_flight() == 1
    talk.receive(Side.BROKER)
    assert talk.resets[Side.BROKER] == {late: 8}
    session.start_close("now", 0)
    (again,) = session.take(Side.CLIENT)
    assert bytes(again[9:13]) == pack(">I", held)
    request, _ = talk.tickets.pop()
    session.resolved(request, None, 0)
    talk.broker.clear_outbound_data_buffer()
    talk.carry()
    talk.receive(Side.BROKER)
    assert talk.ended[Side.BROKER] == {held}


def test_a_drain_waits_for_answers_that_wait_for_the_clients_window() -> None:
    talk = Talk(lambda _: refuse())
    talk.grants[Side.CLIENT] = False
    while not talk.session._to_client.queued_bytes:
        talk.call("SendMessage", send())
        talk.move()
    assert talk.session.in_flight() == 1
    assert not talk.session.between_frames(Side.CLIENT)
    talk.client.increment_flow_control_window(1000)
    talk.move()
    assert talk.session.in_flight() == 0


@pytest.mark.parametrize("has_told", [False, True])
def test_answers_of_a_broker_that_has_left_wait_for_the_clients_window(*, has_told: bool) -> None:
    talk = Talk(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 20_000})
    stream, answer = routes_that_wait(talk)
    if has_told:
        talk.broker.close_connection()
        talk.move()
    session = talk.session
    assert not session.has_undelivered(Side.CLIENT)
    for _ in range(2):
        assert session.has_undelivered(Side.BROKER)
        talk.carry()
    goodbyes = [event for event in talk.events[Side.CLIENT] if isinstance(event, ConnectionTerminated)]
    assert [event.last_stream_id for event in goodbyes] == [stream] * (1 + has_told)
    talk.lags = True
    talk.feed(Side.CLIENT, bytearray(http2.window_update(stream, 20_000)))
    # The library reads nothing behind a GOAWAY.
    last = [frame for _, _, _, frame in http2.Frames("broker").read(memoryview(bytes(talk.toward[Side.CLIENT])))]
    assert sum(len(frame) - http2.FRAME_HEADER_BYTES for frame in last[:-1]) == len(answer) - 20_000
    assert last[-1][3] == http2.HEADERS
    assert not session.has_undelivered(Side.BROKER)


def test_nothing_is_kept_for_a_client_that_has_not_heard_of_the_broker() -> None:
    one = begun()
    refuse_sends(one, range(1, 5, 2), refuse())
    assert not one.has_undelivered(Side.BROKER)


def test_a_drain_does_not_wait_for_a_consumer_that_is_held() -> None:
    talk = Talk(lambda _: hold("g@orders"))
    talk.call("ReceiveMessage", receive(), grpc_timeout="20S")
    talk.move()
    assert len(talk.tickets) == 1
    assert talk.session.in_flight() == 0


def test_the_brokers_goaway_drops_the_calls_that_it_has_not_taken() -> None:
    talk = Talk(lambda _: hold())
    streams = [talk.call("SendMessage", send()) for _ in range(2)]
    talk.move()
    talk.feed(Side.BROKER, bytearray(http2.goaway(streams[0], 0, "")))
    assert talk.given_up == [talk.tickets[1][0]]
    assert talk.session.in_flight() == 1
    # A second GOAWAY must not name a later stream.
    talk.session.start_close("now", 0)
    assert b"".join(talk.session.take(Side.CLIENT)) == http2.goaway(streams[0], 0, "now")


def test_a_close_has_a_reason() -> None:
    talk = Talk()
    talk.call("Telemetry", ends=False)
    talk.move()
    talk.session.start_close("Sluice is shutting down", 0)
    talk.carry()
    last = talk.events[Side.CLIENT][-1]
    assert (last.last_stream_id, last.error_code, last.additional_data) == (1, 0, b"Sluice is shutting down")  # type: ignore[attr-defined]


def test_a_goaway_of_either_peer_closes_the_connection() -> None:
    for side in Side:
        talk = Talk()
        talk.peers[side].close_connection()
        talk.move()
        assert talk.session.closing is side


def test_a_consumers_deliveries_are_charged_at_the_end() -> None:
    talk = Talk()
    talk.answered = lambda *_: None
    stream = talk.call("ReceiveMessage", receive())
    talk.move()
    talk.broker.send_headers(stream, [(":status", "200")])
    talk.broker.send_data(stream, grpc(part(2, message())))
    talk.move()
    batch = talk.session.settle(0)
    assert batch is not None
    assert [charge.messages for charge in batch.charges] == [1]


# --- The beginning --------------------------------------------------------------------------------


def session(**changes: Any) -> RocketMQGrpcSession:
    return RocketMQGrpcSession(grpc_talk.context(**changes))


def test_a_preface_may_come_in_pieces() -> None:
    one = session()
    for byte in http2.PREFACE + SETTINGS:
        assert one.receive(Side.CLIENT, memoryview(bytes((byte,))), 0) is None
    assert b"".join(one.take(Side.BROKER)) == http2.PREFACE + SETTINGS
    assert one.between_frames(Side.CLIENT)


@pytest.mark.parametrize(
    ("beginning", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "other_protocol"),
        (b"PRI * HTTP/1.1\r\n", "other_protocol"),
        (b"PROXY TCP4 1.2.3.4", "other_protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n", "proxy_protocol"),
        (b"\x16\x03\x01", "tls"),
    ],
)
def test_other_protocols_are_distinguished(beginning: bytes, reason: str) -> None:
    with pytest.raises(Close) as caught:
        session().receive(Side.CLIENT, memoryview(beginning), 0)
    assert caught.value.reason == reason


def test_tls_may_pass_unread() -> None:
    one = session(options=RocketMQGrpcOptions(tls="pass"))
    assert one.receive(Side.CLIENT, memoryview(b"\x16\x03\x01"), 0) is None
    assert one.receive(Side.BROKER, memoryview(b"\x16\x03\x03"), 0) is None
    assert (one.take(Side.BROKER), one.take(Side.CLIENT)) == ([b"\x16\x03\x01"], [b"\x16\x03\x03"])
    assert not one.between_frames(Side.CLIENT)
    assert one.missing_bytes(Side.CLIENT) > 1


def test_nothing_is_sent_before_the_brokers_settings() -> None:
    one = session()
    peer = Talk()
    peer.lags = True
    peer.call("SendMessage", send())
    data = http2.PREFACE + SETTINGS + peer.client.data_to_send()
    batch = one.receive(Side.CLIENT, memoryview(data), 0)
    assert batch is not None
    batch.add_verdicts({0: refuse()})
    one.decided(batch, 0)
    assert not one.take(Side.CLIENT)
    one.receive(Side.BROKER, memoryview(SETTINGS), 0)
    out = b"".join(one.take(Side.CLIENT))
    assert out.startswith(SETTINGS)
    assert WAIT.encode() in out


# --- Attacks --------------------------------------------------------------------------------------

HEADERS = http2.frame_of(http2.HEADERS, http2.END_HEADERS, 1, b"\x83\x86" + http2.literal(b":path", b"/x"))

_SEND_PATH = http2.literal(b":path", grpc_talk.SERVICE.encode() + b"SendMessage")
SEND = http2.frame_of(http2.HEADERS, http2.END_HEADERS, 1, b"\x83\x86" + _SEND_PATH)


def begun(by: Side = Side.CLIENT) -> RocketMQGrpcSession:
    one = session()
    one.receive(Side.CLIENT, memoryview(http2.PREFACE + SETTINGS), 0)
    if by is Side.BROKER:
        one.receive(Side.BROKER, memoryview(SETTINGS), 0)
    one.take(Side.BROKER)
    return one


def assert_closed(data: bytes, reason: str, by: Side = Side.CLIENT, one: RocketMQGrpcSession | None = None) -> None:
    one = one or begun(by)
    with pytest.raises(Close) as caught:
        receive_all(one, by, data)
    assert caught.value.reason == reason


def receive_all(one: RocketMQGrpcSession, by: Side, data: bytes) -> None:
    while data:
        one.receive(by, memoryview(data), 0)
        left = one.left_bytes(by)
        data = data[len(data) - left :] if left else b""


def headers(stream: int, flags: int = http2.END_HEADERS) -> bytes:
    return HEADERS[:4] + bytes((flags,)) + pack(">I", stream) + HEADERS[9:]


def test_bytes_that_are_slow_to_read_leave_turns_to_others() -> None:
    block = b"\x83\x86" + http2.literal(b":path", b"/x" * 4500)
    blocks = [http2.frame_of(http2.HEADERS, http2.END_HEADERS, stream, block) for stream in range(1, 41, 2)]
    one = begun()
    one.receive(Side.CLIENT, memoryview(b"".join(blocks)), 0)
    assert one.left_bytes(Side.CLIENT) == len(b"".join(blocks[4:]))
    one = begun(Side.BROKER)
    one.receive(Side.BROKER, memoryview(http2.window_update(0, 100_000)), 0)
    for stream in (1, 3, 5, 7):
        one.receive(Side.CLIENT, memoryview(SEND[:5] + pack(">I", stream) + SEND[9:]), 0)
    part_of_one = send(body=bytes(40_000))[:600]
    frames = [http2.frame_of(http2.DATA, 0, 1 + index % 4 * 2, part_of_one) for index in range(150)]
    one.receive(Side.CLIENT, memoryview(b"".join(frames)), 0)
    assert one.left_bytes(Side.CLIENT) == len(b"".join(frames[128:]))


@pytest.mark.parametrize(
    "frame",
    [
        http2.frame_of(http2.PING, 0, 0, bytes(8)),
        SETTINGS,
        http2.frame_of(http2.SETTINGS, http2.ACK, 0),
        http2.frame_of(http2.PRIORITY, 0, 1, bytes(5)),
        http2.frame_of(0x77, 0, 0),
        http2.frame_of(http2.DATA, 0, 1),
    ],
    ids=["ping", "settings", "ack", "priority", "unknown", "empty data"],
)
def test_a_flood_of_frames_that_bring_nothing_ends_the_connection(frame: bytes) -> None:
    one = begun()
    one.receive(Side.CLIENT, memoryview(headers(1)), 0)
    assert_closed(frame * (MAX_STRAIN + 1), "flood", one=one)
    one.receive(Side.BROKER, memoryview(SETTINGS), 0)
    one.start_close("enough", 0)
    out = b"".join(one.take(Side.CLIENT))
    assert out.endswith(pack(">II", 1, http2.ENHANCE_YOUR_CALM) + b"enough")


def test_rapid_resets_end_the_connection() -> None:
    resets = b"".join(
        headers(stream, http2.END_HEADERS | http2.END_STREAM) + http2.rst_stream(stream, 8)
        for stream in range(1, MAX_STRAIN, 2)
    )
    assert_closed(resets, "flood")


def test_data_between_rapid_resets_does_not_hide_them() -> None:
    one, data = begun(), b""
    for stream in range(3, MAX_STRAIN, 2):
        data += headers(stream) + http2.frame_of(http2.DATA, 0, stream, b"x") * 5 + http2.rst_stream(stream, 8)
    assert_closed(data, "flood", one=one)


def test_many_calls_may_reach_their_deadline_at_once() -> None:
    one, streams = begun(), range(1, 6000, 2)
    receive_all(one, Side.CLIENT, b"".join(map(headers, streams)))
    for stream in streams:
        one.receive(Side.CLIENT, memoryview(http2.rst_stream(stream, 8)), 3000 * MS)


def test_resets_that_come_slowly_do_not() -> None:
    one = begun()
    for stream in range(1, 2 * MAX_STRAIN, 2):
        one.receive(Side.CLIENT, memoryview(headers(stream) + http2.rst_stream(stream, 8)), stream * 5 * MS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (headers(1, 0) + http2.frame_of(http2.CONTINUATION, 0, 1) * 10_000, "headers_too_long"),
        (headers(1, 0) + http2.frame_of(http2.CONTINUATION, 0, 1, bytes(16_000)) * 5, "headers_too_long"),
        (headers(1, 0) + http2.frame_of(http2.PING, 0, 0, bytes(8)), "bad_frame"),
        (headers(1, 0) + http2.frame_of(http2.CONTINUATION, 4, 3), "bad_frame"),
        (http2.frame_of(http2.CONTINUATION, 4, 1), "bad_frame"),
        (http2.frame_of(http2.DATA, 0, 1, bytes(20_000)), "frame_too_long"),
        (http2.frame_of(http2.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), "bad_headers"),
        (http2.frame_of(http2.HEADERS, 4, 1, b"\x3f\xff\xff\x7f"), "bad_headers"),
        (headers(2), "bad_frame"),
        (headers(1) + headers(1, http2.END_HEADERS | http2.END_STREAM), "bad_frame"),
        (headers(3) + headers(1), "bad_frame"),
        (http2.frame_of(http2.DATA, 0, 1, b"x"), "bad_frame"),
        (headers(1) + http2.frame_of(http2.DATA, 1, 1, b"x") * 2, "bad_frame"),
        (SEND + http2.frame_of(http2.DATA, http2.PADDED, 1, b"\x05123"), "bad_frame"),
        (http2.frame_of(http2.PUSH_PROMISE, 4, 1, bytes(4)), "bad_frame"),
        (headers(1) + http2.frame_of(http2.DATA, 0, 0, b"x"), "bad_frame"),
        (headers(1) + http2.rst_stream(3, 8), "bad_frame"),
        (headers(1) + http2.rst_stream(0, 8), "bad_frame"),
        (headers(1) + http2.window_update(0, 0), "bad_frame"),
        (headers(1) + http2.window_update(3, 1), "bad_frame"),
        (http2.frame_of(http2.WINDOW_UPDATE, 0, 0, bytes(3)), "bad_frame"),
        (http2.frame_of(http2.SETTINGS, 0, 0, bytes(5)), "bad_frame"),
        (http2.frame_of(http2.SETTINGS, 0, 0, pack(">HI", 4, 1 << 31)), "bad_frame"),
        (http2.frame_of(http2.SETTINGS, 0, 0, pack(">HI", 5, 1 << 24)), "bad_frame"),
        (http2.window_update(0, http2.MAX_WINDOW), "window_overdrawn"),
        (headers(1) + http2.frame_of(http2.DATA, 0, 1, bytes(16_000)) * 5, "window_overdrawn"),
    ],
)
def test_impossible_frames_of_a_client_end_the_connection(data: bytes, reason: str) -> None:
    assert_closed(data, reason)


def test_headers_that_cannot_be_read_are_not_logged() -> None:
    secret = http2.literal(b"authorization", b"Signature=0011") + b"\x7f\xff\xff\xff\xff\xff"
    with pytest.raises(Close) as caught:
        begun().receive(Side.CLIENT, memoryview(http2.frame_of(http2.HEADERS, 4, 1, secret)), 0)
    assert "Signature" not in str(caught.value)
    assert "\\x" not in str(caught.value)


def test_a_bomb_of_headers_ends_the_connection() -> None:
    entry = b"\x40" + http2.literal(b"x", b"y" * 3000)[1:]
    assert_closed(http2.frame_of(http2.HEADERS, 4, 1, entry + b"\xbe" * 1000), "bad_headers")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (http2.frame_of(http2.PUSH_PROMISE, 4, 1, bytes(4)), "bad_frame"),
        (http2.frame_of(http2.DATA, 0, 1, bytes(16_000)) * 5, "window_overdrawn"),
        (http2.frame_of(http2.HEADERS, 4, 1, b"\x7f\xff\xff\xff\xff\xff"), "bad_headers"),
    ],
)
def test_impossible_frames_of_a_broker_end_the_connection(data: bytes, reason: str) -> None:
    assert_closed(data, reason, Side.BROKER)


def test_the_broker_begins_with_settings() -> None:
    assert_closed(http2.frame_of(http2.PING, 0, 0, bytes(8)), "bad_frame", Side.BROKER, begun())


def test_a_client_has_a_bound_of_open_calls() -> None:
    assert_closed(b"".join(headers(1 + 2 * at) for at in range(MAX_CALLS + 1)), "too_many_calls")


def raw_send(stream: int) -> bytes:
    number = pack(">I", stream)
    return SEND[:5] + number + SEND[9:] + http2.frame_of(http2.DATA, http2.END_STREAM, stream, send())


def test_a_client_that_takes_no_answers_is_left() -> None:
    one = begun()
    one.receive(Side.BROKER, memoryview(SETTINGS), 0)
    refusal = Refuse(Resource("topic", "orders"), "r" * 200, 1)
    refuse_sends(one, range(1, 2 * MAX_CALLS, 2), refusal)
    with pytest.raises(Close) as caught:
        refuse_sends(one, range(2 * MAX_CALLS + 1, 200_000, 2), refusal)
    assert caught.value.reason == "window_overdrawn"
    one.start_close("enough", 0)
    assert b"".join(one.take(Side.CLIENT)).endswith(pack(">I", http2.FLOW_CONTROL_ERROR) + b"enough")


def refuse_sends(one: RocketMQGrpcSession, streams: range, refusal: Refuse) -> None:
    for stream in streams:
        batch = one.receive(Side.CLIENT, memoryview(raw_send(stream)), 0)
        assert batch is not None
        batch.add_verdicts({0: refusal})
        one.decided(batch, 0)
        one.take(Side.BROKER)
        one.take(Side.CLIENT)


# --- A million refusals ---------------------------------------------------------------------------


class RawClient:
    """A client without a library, which opens its window like one: once half of it was read."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self.window = http2.DEFAULT_WINDOW
        self.read_bytes = self.answers = 0

    def take(self, data: bytes) -> bytes:
        """Parse data. Return the bytes to send."""
        for kind, flags, _, frame in http2.Frames("broker").read(memoryview(data)):
            if kind == http2.HEADERS:
                fields = dict(self.decoder.decode(http2.block_of(frame, flags), raw=True))
                assert fields.get(b":status", b"200") == b"200"
                assert fields.get(b"grpc-status", b"0") == b"0"
                self.answers += flags & http2.END_STREAM
            elif kind == http2.DATA:
                size = len(frame) - http2.FRAME_HEADER_BYTES
                self.window -= size
                self.read_bytes += size
                assert self.window >= 0
        if self.read_bytes <= http2.DEFAULT_WINDOW // 2:
            return b""
        size, self.read_bytes = self.read_bytes, 0
        self.window += size
        return http2.window_update(0, size)


def test_windows_are_right_after_many_refusals() -> None:
    refuse_many(3000)


@pytest.mark.long
def test_a_million_refusals_cost_no_memory_and_no_window() -> None:
    refuse_many(100_000)
    before_bytes = resident_bytes()
    refuse_many(1_000_000)
    assert resident_bytes() - before_bytes < 4 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def refuse_many(calls: int) -> None:
    """Refuse 19 of 20 sends over one connection, and let the broker answer the others."""
    one, client, encoder = begun(), RawClient(), Encoder()
    one.receive(Side.BROKER, memoryview(SETTINGS), 0)
    broker_window = credit = http2.DEFAULT_WINDOW
    broker_credit = http2.DEFAULT_WINDOW
    refusal = refuse()
    for at in range(calls):
        stream = 2 * at + 1
        credit -= len(send())
        assert credit >= 0
        batch = one.receive(Side.CLIENT, memoryview(raw_send(stream)), 0)
        assert batch is not None
        passes = at % 20 == 0
        if not passes:
            batch.verdicts[0] = refusal
        one.decided(batch, 0)
        if passes:
            fields = [(":status", "200"), (f"x-{at // 1000}", str(at))]
            headers = http2.headers_of(0, stream, encoder.encode(fields))
            trailers = http2.headers_of(http2.END_STREAM, stream, encoder.encode([("grpc-status", "0")]))
            broker_window -= len(send())
            broker_credit -= len(sent())
            assert broker_credit >= 0
            answer = headers + http2.frame_of(http2.DATA, 0, stream, sent()) + trailers
            if broker_window < 32_000:
                answer += http2.window_update(0, http2.DEFAULT_WINDOW - broker_window)
                broker_window = http2.DEFAULT_WINDOW
            assert one.receive(Side.BROKER, memoryview(answer), 0) is None
        for out in one.take(Side.BROKER):
            if out[3] == http2.WINDOW_UPDATE:
                broker_credit += http2.word_of(out)
        said = client.take(b"".join(one.take(Side.CLIENT)))
        if said:
            assert one.receive(Side.CLIENT, memoryview(said), 0) is None
        credit = one._to_broker.credit
    assert client.answers == calls
    assert one.in_flight() == 0
    assert one._to_client.window == client.window
    assert one._to_client.credit >= client.window + client.read_bytes - http2.DEFAULT_WINDOW // 2 - 16_384
    assert one._to_broker.credit >= one._to_broker.window - 16_384
