import gc

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, ORDERS, Decide, Driver, hold, refuse

from limiter.rules.resource import Resource
from proxy.deciding.batch import Later
from proxy.protocols.amqp091.after_consume import Hub
from proxy.protocols.amqp091.channel import Channel, Content, Lane, Method
from proxy.protocols.amqp091.session import AMQP091Options, AMQP091Session
from proxy.protocols.amqp091.stream import Stream
from proxy.protocols.base import Close
from proxy.stats.snapshot import ClientDescription

PUBLISH = b"".join(frames.publish(1, "", "orders", b"some text"))


def publish(number: int, channel: int = 1, key: str = "orders", exchange: str = "") -> bytes:
    return b"".join(frames.publish(channel, exchange, key, b"%d" % number))


def publish_frames(number: int, channel: int) -> list[bytes]:
    return list(frames.publish(channel, "", "orders", b"%d" % number))


def bodies(messages: list[frames.Message]) -> list[int]:
    return [int(message.body) for message in messages if message.body]


def test_waiting_time_counts_from_arrival() -> None:
    driver = Driver(hold).open((1, 2))
    driver.later = lambda _: True
    for now_s, (channel, key) in enumerate(((1, "orders"), (1, "orders"), (2, "orders"), (1, "other"))):
        driver.now_ns = now_s * 10**9
        driver.give(CLIENT, b"".join(frames.publish(channel, "", key, b"text")))
    # A barrier, and publishes behind it.
    driver.give(CLIENT, frames.method(1, 90, 20) + b"".join(frames.publish(1, "", "behind", b"text")))

    def oldest() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for resource, since_ns in driver.session.waiting():
            found.setdefault(resource.name, []).append(since_ns // 10**9)
        return found

    assert oldest() == {"orders": [0, 2], "other": [3], "behind": [3]}
    driver.now_ns = 100 * 10**9
    driver.resolve()
    driver.tick()
    assert oldest() == {"orders": [1, 2], "other": [3], "behind": [3]}
    while driver.held or driver.woken:
        driver.resolve()
        driver.tick()
    assert oldest() == {}


def test_two_peers_whose_contents_are_to_come_again_later_do_not_keep_asking() -> None:
    driver = Driver(hold, limits=["delivery"]).open()
    driver.give(CLIENT, publish(1) + publish(2))
    driver.give(BROKER, b"".join(frames.deliver(1, 1, b"1") + frames.deliver(1, 2, b"2")))
    driver.decide = lambda _: Later()
    driver.resolve()
    driver.resolve()
    for _ in range(3):
        assert driver.woken
        driver.tick()
    assert not driver.woken
    assert driver.session.next_tick_ns() == 10_000_000
    asked = len(driver.batches)
    driver.now_ns, driver.decide = 10_000_000, lambda _: None
    driver.tick()
    driver.tick()
    assert len(driver.batches) == asked + 2
    assert (driver.to_broker()[-1].body, driver.to_client()[-1].body) == (b"2", b"2")


def test_a_message_of_several_frames_is_not_within_a_frame_all_the_time() -> None:
    driver = Driver().open()
    method, header, body = frames.publish(1, "", "orders", b"some text")
    for frame in (method, header, body):
        driver.give(CLIENT, frame[:-1])
        assert driver.session.within_frame(CLIENT)
        driver.give(CLIENT, frame[-1:])
        assert not driver.session.within_frame(CLIENT)
        assert driver.session.between_frames(CLIENT) == (frame is body)
    driver.give(BROKER, frames.ack(1, 1)[:5])
    assert driver.session.within_frame(BROKER)


def resources(*publishes: list[bytes], vhost: str = "/", limits: tuple[str, ...] = ()) -> list[list[str]]:
    driver = Driver(limits=limits).open(vhost=vhost)
    driver.give(CLIENT, b"".join(b"".join(each) for each in publishes))
    return [[str(each) for each in request.resources] for request in driver.requests]


def test_a_publish_is_charged_to_a_queue_or_an_exchange() -> None:
    sent = (frames.publish(1, "", "orders"), frames.publish(1, "events", "eu.created"))
    assert resources(*sent) == [["queue:orders"], ["exchange:events"]]
    assert resources(*sent, limits=("routing_key",)) == [
        ["queue:orders"],
        ["exchange:events", "routing_key:events/eu.created"],
    ]
    assert resources(*sent, vhost="tenant/1", limits=("routing_key",)) == [
        ["queue:tenant%2F1/orders"],
        ["exchange:tenant%2F1/events", "routing_key:tenant%2F1/events/eu.created"],
    ]


def test_a_publish_is_charged_to_its_copies() -> None:
    copies: dict[str, str | list[str] | bytes] = {"a": b"t\1", "CC": ["b", "orders"], "BCC": ["c/d"], "x": "CC"}
    sent = (frames.publish(1, "", "orders", headers=copies), frames.publish(1, "events", "k", headers=copies))
    assert resources(*sent, limits=("routing_key",)) == [
        ["queue:orders", "queue:b", "queue:c%2Fd"],
        [
            "exchange:events",
            "routing_key:events/k",
            "routing_key:events/b",
            "routing_key:events/orders",
            "routing_key:events/c%2Fd",
        ],
    ]


@pytest.mark.parametrize("announced", [101, 1 << 40, (1 << 64) - 1])
def test_a_body_that_no_broker_takes_is_not_charged(announced: int) -> None:
    driver = Driver(options=AMQP091Options(max_message_bytes=100)).open()
    longest = b"".join(frames.publish(1, "", "orders", bytes(100)))
    begin, header, *_ = frames.publish(1, "", "orders", b"x")
    too_long = begin + header.replace((1).to_bytes(8, "big"), announced.to_bytes(8, "big"))
    driver.give(CLIENT, longest + too_long)
    assert [request.size_bytes for request in driver.requests] == [len(longest), len(too_long)]
    assert driver.written[BROKER] == longest + too_long


@pytest.mark.parametrize(("vhost", "name"), [("tenant1", "tenant1"), ("/", "/"), ("a/b", "a%2Fb")])
def test_requests_are_those_of_user_and_vhost(vhost: str, name: str) -> None:
    driver = Driver().open(vhost=vhost)
    driver.give(CLIENT, PUBLISH)
    assert driver.batches[0].connection.scopes == (Resource("user", "guest"), Resource("vhost", name))
    assert driver.requests[0].refusal == "impossible"


def test_a_method_waits_for_earlier_publishes_and_everything_waits_behind_it() -> None:
    driver = Driver(hold).open([1, 2])
    driver.give(CLIENT, publish(1))
    driver.decide = lambda _: None
    driver.give(CLIENT, frames.ack(1, 7) + frames.declare(1) + publish(2, key="other") + frames.ack(1, 8))
    driver.give(CLIENT, frames.declare(2) + publish(3, 2) + frames.confirm_select(1) + publish(4, key="other"))
    assert driver.written[BROKER] == frames.ack(1, 7) + frames.declare(2) + publish(3, 2)
    driver.forget().settle()
    assert driver.written[BROKER] == (
        publish(1)
        + frames.declare(1)
        + publish(2, key="other")
        + frames.ack(1, 8)
        + frames.confirm_select(1)
        + publish(4, key="other")
    )
    assert [request.refusal for request in driver.requests] == ["impossible"] * 3 + ["answered"]


def test_a_channel_closed_by_the_broker_gives_up_waiting_publishes() -> None:
    driver = Driver(hold).open([1, 2])
    driver.give(CLIENT, publish(1) + publish(2) + frames.declare(1) + publish(3, 2))
    driver.give(BROKER, frames.close(1, 404))
    assert len(driver.given_up) == 1
    assert driver.written[CLIENT] == frames.close(1, 404)
    # A broker no longer handles it.
    assert driver.written[BROKER] == frames.declare(1)
    driver.forget().give(CLIENT, publish(4) + frames.close_ok(1) + frames.channel_open(1))
    driver.decide = lambda _: None
    driver.give(CLIENT, publish(5))
    assert driver.written[BROKER] == frames.close_ok(1) + frames.channel_open(1) + publish(5)
    driver.settle()
    assert bodies(driver.to_broker()) == [5, 3]
    assert driver.session.in_flight() == 0


def test_a_waiting_close_continues_when_the_broker_closes_the_channel() -> None:
    driver = Driver(hold).open()
    driver.give(CLIENT, publish(1) + frames.close(1))
    driver.forget()
    driver.give(BROKER, frames.close(1, 404))
    assert driver.written[BROKER] == frames.close_ok(1)
    driver.give(BROKER, frames.close_ok(1))
    assert not driver.written[CLIENT]
    assert driver.session.in_flight() == 0


@pytest.mark.parametrize("decide", [lambda _: None, hold])
def test_nothing_is_forwarded_behind_a_clients_close(decide: Decide) -> None:
    frames_behind = (
        frames.blocked("memory"),
        frames.tune_ok(2047),
        frames.close(0),
        # The broker has not closed.
        frames.close_ok(0),
        # Also for channels that are not open.
        frames.channel_open(2),
        *publish_frames(2, 0),
        *publish_frames(3, 2),
    )
    whole, cut = Driver(decide).open(), Driver(decide).open()
    whole.give(CLIENT, publish(1) + frames.close(0) + b"".join(frames_behind))
    for frame in (publish(1), frames.close(0), *frames_behind):
        cut.give(CLIENT, frame)
    for driver in (whole, cut):
        waited = decide is hold
        if waited:
            driver.give(BROKER, frames.close_ok(1))
        driver.settle()
        left, closed = (frames.close(1) + frames.channel_open(1), frames.close(1)) if waited else (b"", b"")
        assert driver.written[BROKER] == left + publish(1) + closed + frames.close(0)
        assert driver.session.between_frames(CLIENT)


def test_a_client_agrees_to_the_brokers_close_behind_its_own() -> None:
    driver = Driver().open()
    driver.give(CLIENT, frames.close(0))
    driver.give(BROKER, frames.close(0, 320))
    driver.give(CLIENT, frames.blocked("memory") + frames.close_ok(0))
    assert driver.written[BROKER] == frames.close(0) + frames.close_ok(0)
    assert driver.session.closing is BROKER


def test_oneway_publishes_are_forwarded_after_the_client_left() -> None:
    driver = Driver(hold).open([1, 2, 3], confirms=[2])
    driver.give(CLIENT, publish(1) + frames.declare(1) + publish(2) + publish(3, 2) + frames.declare(2) + publish(4, 3))
    driver.give(CLIENT, publish(5, 3)[:-1])
    assert driver.session.has_undelivered(CLIENT)
    assert [request.refusal for request in driver.given_up] == ["answered"]
    driver.tick()
    assert driver.written[BROKER] == frames.declare(2) + frames.close(1) + frames.close(2) + frames.close(3)
    driver.forget().give(BROKER, frames.close_ok(1) + frames.close_ok(2) + frames.close_ok(3))
    driver.settle()
    first = frames.channel_open(1) + frames.channel_open(3) + publish(1) + frames.declare(1)
    assert driver.written[BROKER] == first + publish(4, 3) + frames.close(3) + publish(2) + frames.close(1)
    assert not driver.session.has_undelivered(CLIENT)
    assert driver.session.in_flight() == 0


def test_confirms_get_the_clients_numbers() -> None:
    driver = Driver().open(confirms=[1])
    driver.decide = lambda request: refuse(request) if request.resources == (ORDERS,) else None
    driver.give(CLIENT, publish(1, key="a") + publish(2) + publish(3, key="a") + publish(4, key="a") + publish(5))
    assert driver.written[CLIENT] == frames.nack(1, 2) + frames.nack(1, 5)
    assert bodies(driver.to_broker()) == [1, 3, 4]
    driver.forget().give(BROKER, frames.ack(1, 1) + frames.ack(1, 3, multiple=True))
    assert driver.written[CLIENT] == frames.ack(1, 1) + frames.ack(1, 3) + frames.ack(1, 4)
    assert driver.session.in_flight() == 0


def delivery(number: int, channel: int = 1) -> bytes:
    return b"".join(frames.deliver(channel, number, b"%d" % number, "c" if channel == 1 else "d"))


def test_a_message_that_was_asked_for_is_a_delivery_of_its_queue() -> None:
    driver = Driver(limits=("delivery",)).open()
    get_ok = frames.method(1, 60, 71, bytes(9) + frames.short("") + frames.short("orders") + bytes(4))
    for queue in ("orders", "other"):
        driver.give(CLIENT, frames.method(1, 60, 70, b"\0\0" + frames.short(queue) + b"\0"))
    got = b"".join(frames.content(1, get_ok, b"text"))
    driver.give(BROKER, frames.method(1, 60, 72, b"\0") + got)
    assert driver.written[CLIENT] == frames.method(1, 60, 72, b"\0") + got
    assert [str(each) for request in driver.requests for each in request.resources] == ["delivery:other"]


def charged_to(driver: Driver, tag: str = "c") -> list[str]:
    driver.give(BROKER, b"".join(frames.deliver(1, 1, b"text", tag)))
    return [str(each) for each in driver.requests[-1].resources]


def test_a_consumer_named_by_the_broker_is_known_even_without_an_answer_to_the_client() -> None:
    driver = Driver(limits=("delivery",)).open()
    begins, asks = (frames.consume(1, "orders", "", no_wait=no_wait) for no_wait in (True, False))
    driver.give(CLIENT, begins + frames.consume(1, "other", "c"))
    assert driver.written[BROKER] == asks + frames.consume(1, "other", "c")
    driver.give(BROKER, frames.consume_ok(1, "amq.ctag-1") + frames.consume_ok(1, "c"))
    assert driver.written[CLIENT] == frames.consume_ok(1, "c")
    assert charged_to(driver, "amq.ctag-1") == ["delivery:orders"]
    assert charged_to(driver, "c") == ["delivery:other"]
    # A broker never gives such a tag.
    assert charged_to(driver, "x") == ["delivery:other"]


@pytest.mark.parametrize("no_wait", [False, True])
def test_a_consumer_is_known_until_the_broker_ends_it(*, no_wait: bool) -> None:
    driver = Driver(limits=("delivery",)).open()
    driver.give(CLIENT, frames.consume(1, "orders", "c") + frames.consume(1, "other", "d"))
    driver.give(BROKER, frames.consume_ok(1, "c") + frames.consume_ok(1, "d"))
    begins = frames.consume(1, "other", "c", no_wait=no_wait)
    driver.forget().give(CLIENT, frames.cancel(1, "c", no_wait=True) + begins)
    assert driver.written[BROKER] == frames.cancel(1, "c") + begins
    # Either may be meant.
    assert charged_to(driver) == ["delivery:orders", "delivery:other"][: 1 + no_wait]
    answer = b"" if no_wait else frames.consume_ok(1, "c")
    driver.forget().give(BROKER, frames.cancel_ok(1, "c") + answer)
    assert driver.written[CLIENT] == answer
    assert charged_to(driver) == ["delivery:other"]
    driver.forget().give(CLIENT, frames.cancel(1, "c"))
    driver.give(BROKER, frames.cancel_ok(1, "c"))
    assert driver.written[CLIENT] == frames.cancel_ok(1, "c")


def test_a_channel_has_a_bounded_number_of_known_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.protocols.amqp091.publishes.MAX_CONSUMERS", 9)
    driver = Driver().open()
    for number in range(9):
        driver.give(CLIENT, frames.consume(1, "q", str(number), no_wait=True))
    with pytest.raises(Close, match="bad_frame"):
        driver.give(CLIENT, frames.consume(1, "q", "one more", no_wait=True))


def test_consumers_that_have_ended_are_forgotten() -> None:
    driver = Driver().open()
    for _ in range(100):
        driver.give(CLIENT, frames.consume(1, "q", "", no_wait=True) + frames.cancel(1, "t", no_wait=True))
        driver.give(BROKER, frames.consume_ok(1, "t") + frames.cancel_ok(1, "t"))
    channel = driver.session._channels[1]
    assert not channel.consumers
    assert not channel.consuming
    assert not channel.cancelling
    assert not driver.written[CLIENT]


@pytest.mark.parametrize("passive", [0, 1])
@pytest.mark.parametrize("no_wait", [0, 16])
def test_no_name_is_the_queue_that_was_declared_last(passive: int, no_wait: int) -> None:
    driver = Driver(limits=("delivery",)).open()
    driver.give(CLIENT, frames.declare(1, "free"))
    driver.give(BROKER, frames.declare_ok(1, "free"))
    driver.give(CLIENT, frames.declare(1, "orders", passive | no_wait) + frames.get(1, "") + frames.consume(1, "", "c"))
    # Neither is the last one declared.
    driver.give(CLIENT, frames.declare(1, "other", no_wait))
    if not no_wait:
        driver.give(BROKER, frames.declare_ok(1, "orders"))
    driver.give(BROKER, b"".join(frames.got(1, b"text")))
    assert [str(each) for each in driver.requests[-1].resources] == ["delivery:orders"]
    driver.give(BROKER, frames.consume_ok(1, "c"))
    assert charged_to(driver) == ["delivery:orders"]


def test_a_queue_that_the_broker_names_has_that_name() -> None:
    driver = Driver(limits=("delivery",)).open()
    driver.give(CLIENT, frames.declare(1, "other") + frames.declare(1, "") + frames.consume(1, "", "c"))
    driver.give(BROKER, frames.declare_ok(1, "other") + frames.declare_ok(1, "amq.gen-1") + frames.consume_ok(1, "c"))
    assert charged_to(driver) == ["delivery:amq.gen-1"]
    driver.give(CLIENT, frames.declare(1, "", 16) + frames.consume(1, "", "d", no_wait=True))
    driver.give(BROKER, frames.consume_ok(1, "d"))
    assert charged_to(driver, "d") == ["delivery:amq.gen-"]


def test_requests_without_end_that_the_broker_does_not_answer_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.protocols.amqp091.publishes.MAX_UNANSWERED", 9)
    for flood in (
        [frames.get(1, "q")] * 10,
        [frames.consume(1, "q", "")] * 10,
        [frames.cancel(1, f"{tag}", no_wait=True) for tag in range(10)],
    ):
        driver = Driver().open()
        driver.give(CLIENT, b"".join(flood[:9]))
        with pytest.raises(Close, match="bad_frame"):
            driver.give(CLIENT, flood[9])
        driver.session.start_close("bad", 0)
        driver.take()
        assert driver.written[CLIENT] == frames.close(0, 506, "bad")


def test_a_side_of_which_too_much_waits_is_not_read() -> None:
    hub = Hub()
    options = AMQP091Options(max_waiting_bytes=10_000, max_waiting_bytes_in_all=15_000)
    one = Driver(hold, options=options, hub=hub).open()
    other = Driver(hold, options=options, hub=hub).open()
    one.give(CLIENT, publish(1) * 8)
    assert not one.session.paused(CLIENT)
    other.give(CLIENT, publish(1) * 8)
    assert one.session.paused(CLIENT)
    assert other.session.paused(CLIENT)
    assert not one.session.paused(BROKER)
    other.session.close()
    assert not one.session.paused(CLIENT)
    one.give(CLIENT, publish(1) * 8)
    assert one.session.paused(CLIENT)
    one.settle()
    assert not one.session.paused(CLIENT)
    assert hub.waiting_bytes == 0


def test_much_is_read_in_parts() -> None:
    driver = Driver().open()
    data = publish(1) * 1000
    batch = driver.receive(CLIENT, data)
    assert batch is not None
    assert 16 < len(batch.requests) < 128
    driver.finish(batch)
    driver.give(CLIENT, driver.left[CLIENT])
    assert driver.written[BROKER] == data


def test_incomplete_publish_waits_for_no_other_connection() -> None:
    hub = Hub(waiting_bytes=1 << 30)
    driver = Driver(hub=hub).open()
    method, header, body = frames.publish(1, "", "orders", b"text")
    driver.give(CLIENT, method)
    assert hub.waiting_bytes > 1 << 30
    assert not driver.session.paused(CLIENT)
    driver.give(CLIENT, header + body)
    assert hub.waiting_bytes == 1 << 30
    driver.give(CLIENT, method)
    driver.session.close()
    assert hub.waiting_bytes == 1 << 30


def test_a_publish_that_is_longer_than_its_arguments_ends_the_connection() -> None:
    driver = Driver().open()
    with pytest.raises(Close) as ended:
        driver.give(CLIENT, frames.method(1, 60, 40, b"\0\0" + frames.short("") + frames.short("orders") + b"\0\0"))
    assert ended.value.reason == "bad_frame"
    driver.session.start_close(ended.value.detail, 0)
    driver.take()
    assert driver.to_client()[0].arguments[:2] == (502).to_bytes(2)


def test_nothing_lives_on_after_a_session() -> None:
    kinds = Channel, Lane, Method, Content, Stream, AMQP091Session
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, kinds) for each in gc.get_objects())
        driver = Driver(hold, limits=["delivery"]).open([1, 2], confirms=[1])
        driver.give(CLIENT, publish(1) + frames.publish(2, "", "orders")[0])
        driver.give(BROKER, frames.deliver(1, 1, b"text")[0])
        assert sum(isinstance(each, kinds) for each in gc.get_objects()) > before + 10
        driver.session.close()
        for kept in (driver.held, driver.requests, driver.batches):
            kept.clear()
        del driver.session, driver.loan
        assert [each for each in gc.get_objects() if isinstance(each, kinds)][before:] == []
    finally:
        gc.enable()


def test_a_chunk_with_headers_has_the_length_of_their_contents() -> None:
    driver = Driver().open()
    copies = {"CC": [str(number) for number in range(200)]}
    many = b"".join(frames.publish(1, "", "orders", headers=copies))
    batch = driver.receive(CLIENT, many * 10)
    assert batch is not None
    assert len(batch.requests) == 1
    assert driver.session.left_bytes(CLIENT) == 9 * len(many)


@pytest.mark.parametrize("cut", [0, 3, 6])
def test_nothing_but_channel_0_is_taken_before_the_connection_is_open(cut: int) -> None:
    driver = Driver()
    driver.give(CLIENT, frames.greeting())
    early = frames.channel_open(1) + publish(1)
    # Shorter than a prefix, nothing is known.
    driver.give(CLIENT, early[:cut])
    with pytest.raises(Close) as ended:
        driver.give(CLIENT, early[cut:])
    assert ended.value.reason == "bad_frame"
    assert not driver.requests
    driver.forget()
    driver.session.start_close(ended.value.detail, 0)
    driver.take()
    (said,) = driver.to_client()
    assert (said.method, said.arguments[:2]) == ((10, 50), (503).to_bytes(2))
    assert not driver.written[BROKER]


def test_repeated_client_properties_are_ignored() -> None:
    driver = Driver(limits=["user"]).open()
    driver.give(CLIENT, frames.greeting(vhost="tenant1", user="other")[8:] + publish(1))
    assert driver.batches[0].connection.scopes == (Resource("user", "guest"), Resource("vhost", "/"))
    assert driver.requests[0].resources == (ORDERS,)


def test_frames_are_not_longer_than_by_default_before_the_connection_is_open() -> None:
    driver = Driver()
    driver.give(CLIENT, frames.greeting(frame_max=0))
    with pytest.raises(Close):
        driver.give(CLIENT, frames.frame(1, 0, bytes(200_000))[:100])
    driver = Driver().open(frame_max=0)
    driver.give(CLIENT, frames.frame(1, 0, bytes(200_000))[:100])


def test_heartbeats_are_sent_to_an_idle_peer() -> None:
    driver = Driver(refuse).open(confirms=[1], heartbeat_s=10)
    assert driver.woken
    beat = bytes((8, 0, 0, 0, 0, 0, 0, 0xCE))
    due_ns = driver.session.next_tick_ns()
    assert due_ns == 5_000_000_000
    driver.now_ns = due_ns
    driver.tick()
    driver.forget()
    # Neither was answered.
    driver.now_ns += 5_000_000_000
    driver.tick()
    assert not driver.written[BROKER]
    assert not driver.written[CLIENT]
    driver.give(CLIENT, publish(1))
    driver.now_ns += 5_000_000_000
    driver.tick()
    assert driver.written[BROKER] == beat
    assert driver.written[CLIENT] == frames.nack(1, 1)


def test_the_broker_refuses_one_channel_too_many_whatever_its_number() -> None:
    driver = Driver().open()
    opened = frames.channel_open(65535) + b"".join(frames.publish(65535, "", "q", b"x"))
    driver.give(CLIENT, opened)
    assert driver.written[BROKER] == opened
    assert len(driver.requests) == 1
    more = b"".join(map(frames.channel_open, range(2, 2050)))
    driver.give(CLIENT, more)
    assert driver.written[BROKER].endswith(more)
    assert len(driver.session._channels) == 2047


def beyond_frame_max(field_bytes: int) -> list[bytes]:
    """Return a method of channel 0, a delivery and a return, each with a frame above frame_max that is not its body."""
    headers = {"x-death": "x" * field_bytes}
    arguments = frames.short("c") + bytes((0, 0, 0, 0, 0, 0, 0, 1, 0)) + frames.short("") + frames.short("q")
    return [
        frames.method(0, 10, 70, frames.long("x" * field_bytes)),
        *frames.content(1, frames.method(1, 60, 60, arguments), b"body", headers=headers),
        *frames.content(1, frames.method(1, 60, 50, b"\1\x38" + bytes(3)), b"", headers=headers),
    ]


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("longest", [100, 4096, 1 << 20])
def test_the_broker_bounds_bodies_only_to_frame_max(longest: int, *, limited: bool) -> None:
    driver = Driver(limits=["delivery"] if limited else []).open()
    driver.give(CLIENT, frames.consume(1, "q", "c"))
    driver.forget()
    chunk = b"".join(beyond_frame_max(10_000))
    for at in range(0, len(chunk), longest):
        driver.give(BROKER, chunk[at : at + longest])
    assert driver.written[CLIENT] == chunk
    method, header, *_ = frames.deliver(1, 2, bytes(frames.FRAME_MAX))
    with pytest.raises(Close, match="bad_frame"):
        driver.give(BROKER, method + header + frames.frame(3, 1, bytes(frames.FRAME_MAX)))


@pytest.mark.parametrize("kind", [1, 2, 8])
def test_a_frame_of_the_broker_is_gathered_up_to_a_bound(kind: int) -> None:
    longest = (16 << 20).to_bytes(4)
    driver = Driver().open()
    driver.give(BROKER, bytes((kind, 0, 1)) + longest)
    with pytest.raises(Close, match="bad_frame"):
        Driver().open().give(BROKER, bytes((kind, 0, 1)) + b"\1\0\0\1")


def test_an_invalid_frame_ends_the_connection() -> None:
    for bad, code in (
        (PUBLISH[:-1] + b"\0", 501),
        (frames.frame(3, 1, b"text"), 505),
        (frames.publish(1, "", "q", b"text")[0] + frames.declare(1), 505),
        (frames.frame(7, 1, b""), 501),
        (b"\1\0\1\xff\xff\xff\xff", 501),
        (frames.method(1, 60, 40, b"\0\0\xff"), 502),
    ):
        driver = Driver().open()
        with pytest.raises(Close, match="bad_frame"):
            driver.give(CLIENT, frames.ack(1, 3) + bad)
        driver.session.start_close("bad", 0)
        driver.take()
        assert driver.written[BROKER].startswith(frames.ack(1, 3))
        assert driver.written[CLIENT] == frames.close(0, code, "bad")


def test_the_broker_answers_frames_of_a_channel_that_is_not_open() -> None:
    driver = Driver(refuse).open()
    driver.give(CLIENT, publish(1, 7) + publish(2, 7)[:-4])
    driver.give(CLIENT, publish(2, 7)[-4:])
    assert driver.written[BROKER] == publish(1, 7) + publish(2, 7)
    assert not driver.requests


def test_both_peers_get_a_connection_close() -> None:
    driver = Driver().open()
    driver.session.start_close("drained", 0)
    driver.take()
    assert driver.written[CLIENT] == driver.written[BROKER] == frames.close(0, 320, "CONNECTION_FORCED - drained")


def test_client_without_pending_answers_is_closed_before_all_is_forwarded() -> None:
    driver = Driver(hold).open([1, 2], confirms=[2])
    driver.give(CLIENT, publish(1) + publish(2))
    driver.forget()
    driver.decide = lambda _: None
    driver.give(CLIENT, publish(3, 2))
    assert not driver.session.close_client("a drain", 0)
    driver.give(BROKER, frames.ack(2, 1))
    driver.forget()
    assert driver.session.close_client("a drain", 0)
    driver.settle()
    assert driver.written[CLIENT] == frames.close(0, 320, "CONNECTION_FORCED - a drain")
    assert bodies(driver.to_broker()) == [1, 2]


@pytest.mark.parametrize("given", [publish(1, 2) + publish(2), publish(1) + frames.declare(1), publish(1)[:-1]])
def test_client_with_pending_answers_is_not_closed(given: bytes) -> None:
    driver = Driver(hold).open([1, 2], confirms=[2])
    driver.give(CLIENT, given)
    assert not driver.session.close_client("a drain", 0)


def test_undecided_publishes_count_as_lost() -> None:
    driver = Driver(hold).open([1, 2])
    driver.give(CLIENT, publish(1) + publish(2) + publish(3) + frames.declare(1) + publish(4))
    driver.give(CLIENT, publish(5, 2))
    driver.session.close()
    assert [request.handle.number for request in driver.given_up] == []
    assert len(driver.lost) == 3
    assert {request.refusal for request in driver.lost} == {"impossible"}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"AMQP\3\1\0\0", 'is AMQP 1.0; use protocol = "amqp"'),
        (b"AMQP\0\1\0\0", 'is AMQP 1.0; use protocol = "amqp"'),
        (b"AMQP\0\0\x09\1", "is AMQP 0.9.1, but the broker speaks another protocol"),
        (b"GET / HT", "is not AMQP 0.9.1"),
    ],
)
def test_hint_for_another_protocol_is_useful(header: bytes, said: str) -> None:
    driver = Driver()
    driver.give(CLIENT, header)
    with pytest.raises(Close) as closed:
        driver.give(BROKER, b"AMQP\0\1\0\0")
    assert said in closed.value.detail


def test_another_version_gets_the_brokers_answer_and_no_more() -> None:
    driver = Driver()
    driver.give(CLIENT, b"AMQP\3\1\0\0 and more")
    driver.give(CLIENT, b" and more")
    assert driver.written[BROKER] == b"AMQP\3\1\0\0"
    with pytest.raises(Close, match="other_protocol"):
        driver.give(BROKER, b"AMQP\3\1\0\0 frames")
    driver.take()
    assert driver.written[CLIENT] == b"AMQP\3\1\0\0 frames"


def test_tls_is_refused_or_relayed() -> None:
    with pytest.raises(Close, match="tls"):
        Driver().give(CLIENT, b"\x16\3\1")
    driver = Driver(options=AMQP091Options(tls="pass"))
    driver.give(CLIENT, b"\x16\3\1")
    driver.give(BROKER, b"\x16\3\3")
    assert (driver.written[BROKER], driver.written[CLIENT]) == (b"\x16\3\1", b"\x16\3\3")
    assert not driver.session.within_frame(CLIENT)
    with pytest.raises(Close, match="proxy_protocol"):
        Driver().give(CLIENT, b"PROXY")


def test_a_confirmed_publish_is_timed() -> None:
    driver = Driver().open(confirms=[1])
    round_trip = driver.session._context.counters.round_trip
    driver.give(CLIENT, publish(1) + publish(2))
    driver.now_ns = 3_000_000
    driver.give(BROKER, frames.ack(1, 1))
    assert sum(round_trip._counts) == 0
    driver.give(BROKER, frames.ack(1, 2))
    assert sum(round_trip._counts) == 1


def test_a_connection_is_described() -> None:
    driver = Driver().open(confirms=[1])
    driver.give(CLIENT, publish(1) + publish(2, exchange="events"))
    driver.decide = refuse
    driver.give(CLIENT, publish(3))
    described = driver.session.describe(0)
    assert described.client == ClientDescription("orders-1", "Python", "1.3.2", "pika", "guest")
    assert described.refused == 1
    assert described.resources == ("queue:orders", "exchange:events")
    assert described.more_resources == 0
