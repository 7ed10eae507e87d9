import gc
from typing import Any

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import Described, ULong, say
from amqp10_playbook.driver import BROKER, CLIENT, ORDERS, REFUSED, SHAPED, Decide, Driver, hold, refuse

from limiter.rules.resource import Resource
from proxy.deciding.batch import Grant, Refuse
from proxy.protocols.amqp10 import renumbering
from proxy.protocols.amqp10.links import Link
from proxy.protocols.amqp10.session import AMQP10Options
from proxy.protocols.base import NO_TERMS, Close, Terms

DELIVERY = Resource("delivery", "orders")


def shaped(decide: Decide = lambda _: None) -> Driver:
    return Driver(decide, terms={ORDERS: SHAPED, DELIVERY: SHAPED}).open()


def test_everything_is_forwarded_unchanged_without_limits() -> None:
    given = codec.SASL_HEADER + say(0, "sasl_init", mechanism="ANONYMOUS") + codec.HEADER
    driver = Driver()
    driver.give(CLIENT, given)
    assert driver.written[BROKER] == given
    driver = Driver().open().sends()
    flow = say(
        5,
        "flow",
        next_incoming_id=10,
        incoming_window=400,
        next_outgoing_id=3,
        outgoing_window=5,
        handle=3,
        delivery_count=0,
        link_credit=170,
        properties={},
    )
    driver.give(BROKER, flow)
    assert driver.written[CLIENT] == flow
    sent = b"".join(
        say(1, "transfer", codec.message(b"x"), handle=0, delivery_id=n, delivery_tag=b"t") for n in range(20)
    )
    driver.give(CLIENT, sent)
    assert driver.written[BROKER] == sent
    assert driver.paid == 20
    assert not driver.requests


def test_a_delivery_of_several_frames_is_not_within_a_frame_all_the_time() -> None:
    driver = Driver().open().sends(0, None)
    driver.credit(100)
    payload = codec.message(b"x" * 100, to="/queues/free")
    for part, more in ((payload[:50], True), (payload[50:], False)):
        frame = say(1, "transfer", part, handle=0, more=more, delivery_id=0, delivery_tag=b"t")
        driver.give(CLIENT, frame[:-1])
        assert driver.session.within_frame(CLIENT)
        driver.give(CLIENT, frame[-1:])
        assert not driver.session.within_frame(CLIENT)
        assert driver.session.between_frames(CLIENT) == (not more)


def test_a_connection_without_sasl() -> None:
    driver = Driver()
    driver.give(CLIENT, codec.HEADER + say(0, "open", container_id="c"))
    driver.give(BROKER, codec.SASL_HEADER)
    assert driver.written[BROKER][:8] == codec.HEADER
    assert driver.written[CLIENT] == codec.SASL_HEADER
    assert driver.closed is None


def test_the_older_version_gets_the_supported_header() -> None:
    driver = Driver()
    driver.give(CLIENT, b"AMQP\x00\x00\x09\x01")
    assert driver.reason == "other_protocol"
    assert "amqp091" in driver.closed.detail
    driver.take()
    assert driver.written == {CLIENT: codec.SASL_HEADER, BROKER: b""}


def test_tls_is_refused_or_relayed_unread() -> None:
    driver = Driver()
    driver.give(CLIENT, b"\x16\x03\x01 hello")
    assert driver.reason == "tls"
    driver = Driver(options=AMQP10Options(tls="pass"))
    driver.give(CLIENT, b"\x16\x03\x01 hello")
    driver.give(BROKER, b"\x16\x03\x01 hi")
    assert driver.written == {CLIENT: b"\x16\x03\x01 hi", BROKER: b"\x16\x03\x01 hello"}


def test_user_and_vhost_come_behind_the_scopes_that_a_connection_has() -> None:
    driver = Driver(scopes=(Resource("certificate", "orders-service"),)).open(user="joe").sends()
    driver.credit(5)
    driver.send(0)
    scopes = [str(scope) for scope in driver.batches[0].connection.scopes]
    assert scopes == ["certificate:orders-service", "user:joe", "vhost:/"]


def test_clients_cannot_choose_a_vhost_of_a_broker_without_vhosts() -> None:
    artemis = {"properties": {codec.Symbol("product"): "apache-activemq-artemis"}}
    driver = Driver(terms={ORDERS: SHAPED}).open(hostname="vhost:tenant1", user="joe", broker=artemis)
    driver.sends(address="orders")
    driver.credit(10)
    (batch,) = driver.batches
    assert batch.requests[0].resources == (ORDERS,)
    assert [str(scope) for scope in batch.connection.scopes] == ["user:joe", "vhost:/"]


@pytest.mark.parametrize(
    ("said", "queue"),
    [(codec.RABBITMQ, None), ({}, "$management"), ({codec.Symbol("product"): "RabbitMQ-like"}, "$management")],
)
def test_address_format_follows_the_brokers_product(said: dict, queue: str | None) -> None:
    driver = Driver(terms={Resource("queue", "$management"): SHAPED})
    windows = {"incoming_window": 400, "outgoing_window": 500}
    driver.give(
        CLIENT,
        codec.HEADER
        + say(0, "open", container_id="c")
        + say(1, "begin", next_outgoing_id=0, **windows)
        + say(
            1,
            "attach",
            name="l",
            handle=0,
            role=False,
            target=Described(ULong(0x29), ["/management" if queue is None else queue]),
            initial_delivery_count=0,
        ),
    )
    driver.give(BROKER, codec.HEADER + say(0, "open", container_id="b", properties=said))
    driver.give(BROKER, say(5, "begin", remote_channel=1, next_outgoing_id=0, **windows))
    (link,) = [link for session in driver.session._sessions for link in session.links]
    assert [each.name for each in link.resources] == ([] if queue is None else [queue])


def test_user_and_vhost_are_scopes() -> None:
    driver = Driver().open(hostname="vhost:tenant1", user="joe").sends()
    driver.credit(5)
    driver.send(0)
    (batch,) = driver.batches
    assert [str(scope) for scope in batch.connection.scopes] == ["user:joe", "vhost:tenant1"]
    assert batch.paid[0].resources == (Resource("queue", "tenant1/orders"),)


def test_a_client_that_sends_more_than_it_has_credit_for_is_closed() -> None:
    driver = shaped(lambda request: Grant(2) if request.most > 2 else None).sends()
    driver.credit(100)
    driver.decide = hold
    driver.send(0)
    driver.send(1)
    assert driver.closed is None
    driver.send(2)
    assert driver.reason == "transfer_limit_exceeded"


def test_a_link_gets_the_credit_that_is_granted() -> None:
    driver = shaped(lambda request: Grant(2) if request.most > 2 else None).sends()
    (flow,) = driver.credit(170)
    assert (flow["delivery_count"], flow["link_credit"]) == (0, 2)
    assert driver.requests[0].most == 2


def test_a_held_request_becomes_a_flow_of_our_own() -> None:
    driver = shaped(hold).sends()
    (flow,) = driver.credit(170)
    assert flow["link_credit"] == 0
    driver.resolve(2)
    (flow,) = driver.to(CLIENT)
    assert flow.channel == 5
    assert (flow["handle"], flow["delivery_count"] + flow["link_credit"]) == (3, 2)
    assert (flow["next_incoming_id"], flow["incoming_window"]) == (10, 400)
    assert (flow["next_outgoing_id"], flow["outgoing_window"]) == (2**32 - 4, 500)
    driver.send(0)
    driver.send(1)
    driver.tick()
    driver.resolve(1)
    (flow,) = driver.to(CLIENT)
    assert flow["delivery_count"] + flow["link_credit"] == 3
    assert driver.paid == 2
    assert driver.charged == 3


def test_another_link_of_the_session_keeps_full_speed() -> None:
    driver = shaped(hold).sends().sends(1, "/queues/free")
    driver.credit(170)
    (flow,) = driver.credit(170, handle=1)
    assert flow["link_credit"] == 170
    assert len(driver.send(0, handle=1)) == 1


def test_credit_that_is_not_used_stays_paid_until_the_end_of_its_link() -> None:
    driver = shaped().sends()
    driver.credit(170)
    assert driver.charged == 2
    driver.tick()
    for _ in range(12):
        driver.now_ns += 250_000_000
        driver.tick()
    assert driver.charged == 2
    driver.send(0)
    driver.tick()
    assert driver.paid == 1
    driver.client(1, "detach", handle=0, closed=True)
    driver.tick()
    assert driver.charged == 1


def test_a_link_that_detaches_gives_up_its_request() -> None:
    driver = shaped(hold).sends()
    driver.credit(170)
    driver.client(1, "detach", handle=0, closed=True)
    assert len(driver.given_up) == 1
    assert not driver.held


def test_a_session_that_ends_gives_back_its_links_permits() -> None:
    driver = shaped().sends().sends(1)
    driver.credit(170)
    driver.credit(170, handle=1)
    assert driver.charged == 4
    driver.client(1, "end")
    driver.tick()
    assert driver.charged == 0
    assert driver.broker(5, "end")[0].name == "end"
    assert not driver.session.describe(0).links


def test_a_broken_connection_gives_back_its_links_permits() -> None:
    driver = shaped().sends().takes(1)
    driver.credit(170)
    driver.client(1, "flow", next_outgoing_id=10, incoming_window=9, outgoing_window=9, handle=1, link_credit=50)
    driver.send(0)
    assert driver.charged == 5
    batch = driver.session.settle(driver.now_ns)
    assert batch is not None
    assert {charge.resources: charge.messages for charge in batch.charges} == {(ORDERS,): -2, (DELIVERY,): -2}
    assert driver.session.settle(driver.now_ns) is None


def test_removed_rules_release_all_credit() -> None:
    driver = shaped(hold).sends().sends(1)
    driver.credit(170)
    driver.terms.clear()
    driver.version = 1
    driver.tick()
    assert len(driver.given_up) == 1
    (flow,) = driver.to(CLIENT)
    assert flow["delivery_count"] + flow["link_credit"] == 170
    driver.tick()
    assert driver.charged == 0


def test_a_new_rule_shapes_a_link_that_is_there() -> None:
    driver = Driver(hold).open().sends()
    driver.credit(2)
    driver.terms[ORDERS] = SHAPED
    driver.version = 1
    driver.send(0)
    driver.send(1)
    (flow,) = driver.credit(170, count=2)
    assert flow["delivery_count"] + flow["link_credit"] == 2


def test_no_credit_is_granted_during_an_alarm() -> None:
    driver = shaped().sends().sends(1, "/queues/free").takes(2)
    driver.session.alarm("disk", driver.now_ns)
    assert driver.credit(10)[0]["link_credit"] == 0
    assert driver.credit(10, handle=1)[0]["link_credit"] == 0
    (flow,) = driver.client(
        1,
        "flow",
        next_incoming_id=2**32 - 4,
        incoming_window=9,
        next_outgoing_id=10,
        outgoing_window=9,
        handle=2,
        delivery_count=2**32 - 5,
        link_credit=1,
    )
    assert flow["link_credit"] == 1
    driver.session.alarm("", driver.now_ns)
    driver.tick()
    flows = {flow["handle"]: flow["link_credit"] for flow in driver.to(CLIENT)}
    assert flows == {3: 2, 4: 10}


def test_credit_granted_during_an_alarm_is_returned() -> None:
    driver = shaped(hold).sends()
    driver.credit(170)
    driver.session.alarm("disk", driver.now_ns)
    driver.resolve(2)
    assert driver.to(CLIENT) == []
    driver.tick()
    assert driver.charged == 0
    driver.session.alarm("", driver.now_ns)
    driver.tick()
    assert len(driver.held) == 1


def consumes(driver: Driver, credit: int, count: int | None = 2**32 - 5, **fields: Any) -> list[codec.Said]:
    return driver.client(
        1,
        "flow",
        next_incoming_id=2**32 - 4,
        incoming_window=9,
        next_outgoing_id=10,
        outgoing_window=9,
        handle=0,
        delivery_count=count,
        link_credit=credit,
        **fields,
    )


def deliver(driver: Driver, number: int) -> list[codec.Said]:
    return driver.broker(5, "transfer", codec.message(b"x"), handle=3, delivery_id=number, delivery_tag=b"t")


def test_a_consumers_credit_reaches_the_broker_as_far_as_it_is_granted() -> None:
    driver = shaped(hold).takes()
    (flow,) = consumes(driver, 100)
    assert flow["link_credit"] == 0
    assert driver.requests[0].consumes
    driver.resolve(2)
    (flow,) = driver.to(BROKER)
    assert flow.channel == 1
    assert (flow["handle"], flow["delivery_count"], flow["link_credit"]) == (0, 2**32 - 5, 2)
    assert len(deliver(driver, 0)) == len(deliver(driver, 1)) == 1
    driver.tick()
    driver.resolve(3)
    (flow,) = driver.to(BROKER)
    assert (flow["delivery_count"] + flow["link_credit"]) % 2**32 == 0
    assert driver.paid == 2
    assert driver.batches[-1].paid == [] or driver.batches[-1].paid[0].consumes


def test_a_draining_consumer_is_answered_once_everything_is_granted() -> None:
    driver = shaped(hold).takes()
    consumes(driver, 3, drain=True)
    answer = {"next_incoming_id": 10, "incoming_window": 9, "outgoing_window": 9, "handle": 3, "drain": True}
    # There was nothing to drain yet, and the client need not know.
    (flow,) = driver.broker(5, "flow", **answer, next_outgoing_id=2**32 - 4, delivery_count=2**32 - 5, link_credit=0)
    assert flow["handle"] is None
    driver.resolve(2)
    (flow,) = driver.to(BROKER)
    assert flow["drain"] is True
    assert flow["link_credit"] == 2
    deliver(driver, 0)
    driver.to(CLIENT)
    # The queue is empty, so the broker discards the rest.
    (flow,) = driver.broker(5, "flow", **answer, next_outgoing_id=2**32 - 3, delivery_count=2**32 - 3, link_credit=0)
    assert (flow["delivery_count"], flow["link_credit"] or 0, flow["drain"]) == (2**32 - 2, 0, True)


def links_of(driver: Driver) -> list[Link]:
    return [link for session in driver.session._sessions for link in session.links]


def refused(decide: Decide = refuse, terms: Terms = REFUSED) -> Driver:
    driver = Driver(decide, terms={ORDERS: terms}).open().sends()
    # It has used as much before.
    (link,) = links_of(driver)
    link.credit.window = 256
    driver.credit(100)
    return driver.forget()


def test_a_refused_message_is_rejected_and_its_credit_given_again() -> None:
    driver = refused()
    assert driver.send(0) == []
    rejected, flow = driver.to(CLIENT)
    assert rejected.channel == 5
    assert rejected.name == "disposition"
    assert (rejected["role"], rejected["first"], rejected["settled"]) == (True, 0, True)
    assert int(rejected["state"].descriptor) == 0x25
    error = rejected["state"].value[0].value
    assert error[0] == "amqp:resource-limit-exceeded"
    assert error[1] == "SYSTEM_BUSY: queue:orders exceeds the limit of rule queue:orders; try again in 2 ms"
    assert flow["delivery_count"] + flow["link_credit"] == 101
    assert (flow["next_incoming_id"], flow["incoming_window"]) == (11, 400)


def test_a_sender_is_told_of_a_slow_broker() -> None:
    driver = refused(lambda _: Refuse(ORDERS, "adaptive listener:*", 1_500))
    driver.send(0)
    error = driver.to(CLIENT)[0]["state"].value[0].value
    why = "exceeds its share of an overloaded broker, set by rule adaptive listener:*; try again in 2 ms"
    assert error[1] == f"SYSTEM_BUSY: queue:orders {why}"


def test_numbers_differ_from_then_on() -> None:
    refuses = {1, 2, 4}
    driver = refused(lambda request: refuse(request) if request.size_bytes in refuses else None)
    sizes = iter(range(10))
    driver.decide = lambda request: refuse(request) if next(sizes) in refuses else None
    heard = [driver.send(number) for number in range(6)]
    assert [[said["delivery_id"] for said in each] for each in heard] == [[0], [], [], [1], [], [2]]
    driver.forget()
    # The broker accepts everything: three ranges of the client's.
    ranges = [
        (said["first"], said["last"])
        for said in driver.broker(5, "disposition", role=True, first=0, last=2, settled=True)
    ]
    assert ranges == [(0, 0), (3, 3), (5, 5)]
    (flow,) = driver.client(
        1,
        "flow",
        next_incoming_id=2**32 - 4,
        incoming_window=9,
        next_outgoing_id=16,
        outgoing_window=9,
        handle=0,
        delivery_count=6,
        link_credit=97,
    )
    assert (flow["next_outgoing_id"], flow["delivery_count"]) == (13, 3)
    (flow,) = driver.credit(100, count=3, next_incoming_id=13)
    assert (flow["next_incoming_id"], flow["delivery_count"], flow["link_credit"]) == (16, 6, 100)
    assert driver.session.in_flight() == 0


def test_no_frame_is_longer_than_the_other_peer_takes_because_its_numbers_are() -> None:
    driver = Driver(refuse, terms={ORDERS: REFUSED}).open(max_frame_size=600, broker={"max_frame_size": 600})
    driver.sends().sends(1, "/queues/free")
    for handle in range(2):
        driver.credit(100, handle=handle)
    driver.forget()
    last = 2**32 - 1
    for number in (last - 1, last):
        assert driver.send(number) == []
    driver.to(CLIENT)
    driver.decide = lambda _: None
    frames, sent = b"", {0: b"", 1: b""}
    for number, handle in enumerate((1, 0, 1)):
        fields = {"handle": handle, "delivery_id": number, "delivery_tag": b"0"}
        left = 600 - len(say(1, "transfer", codec.message(bytes(300)), **fields))
        payload = codec.message(bytes(300 + left))
        sent[handle] += payload
        frames += say(1, "transfer", payload, **fields)
    driver.give(CLIENT, frames)
    sizes, data = [], bytes(driver.written[BROKER])
    while data:
        sizes.append(int.from_bytes(data[:4], "big"))
        data = data[sizes[-1] :]
    assert max(sizes) <= 600
    said = driver.to(BROKER)
    assert [each["delivery_id"] for each in said if each["delivery_id"] is not None] == [last - 1, last, 0]
    for handle, payload in sent.items():
        assert b"".join(each.payload for each in said if each["handle"] == handle) == payload
    (flow,) = driver.client(
        1, "flow", next_incoming_id=2**32 - 4, incoming_window=9, next_outgoing_id=15, outgoing_window=9
    )
    assert flow["next_outgoing_id"] == 10 + len(said)
    # The other direction.
    driver.to(CLIENT)
    state = Described(ULong(0x25), [Described(ULong(0x1D), [codec.Symbol("amqp:a"), "e" * 500])])
    frame = say(5, "disposition", role=True, first=0, last=0, settled=True, state=state)
    state.value[0].value[1] += "e" * (600 - len(frame))
    frame = say(5, "disposition", role=True, first=0, last=0, settled=True, state=state)
    assert len(frame) == 600
    driver.give(BROKER, frame)
    assert len(driver.written[CLIENT]) <= 600
    (told,) = driver.to(CLIENT)
    assert (told["first"], told["last"]) == (2, 2)


def test_deliveries_beyond_the_drop_bound_are_forwarded_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renumbering, "MAX_BREAKS", 4)
    driver = refused()
    for number in range(0, 8, 2):
        driver.decide = refuse
        assert driver.send(number) == []
        driver.decide = lambda _: None
        assert len(driver.send(number + 1)) == 1
    driver.decide = refuse
    driver.tick()
    charged = [charge for batch in driver.batches for charge in batch.charges]
    (passed,) = driver.send(8)
    assert passed["delivery_id"] == 4
    driver.tick()
    (charge,) = [charge for batch in driver.batches for charge in batch.charges][len(charged) :]
    assert (charge.resources, charge.messages, charge.asks, charge.counts) == ((ORDERS,), 1, "refusing", True)
    assert charge.size_bytes == driver.requests[-1].size_bytes
    # Once the broker has answered, there is room again.
    driver.broker(5, "disposition", role=True, first=0, last=4, settled=True)
    assert driver.session.in_flight() == 0
    assert driver.send(9) == []


def test_no_more_is_swallowed_in_one_chunk_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renumbering, "MAX_BREAKS", 4)
    driver = refused()
    chunk = b"".join(say(1, "transfer", b"x", handle=0, delivery_id=number, delivery_tag=b"t") for number in range(10))
    driver.give(CLIENT, chunk)
    assert [said["delivery_id"] for said in driver.to(BROKER)] == list(range(6))
    assert [said["first"] for said in driver.to(CLIENT) if said.name == "disposition"] == list(range(4))


@pytest.mark.parametrize("terms", [NO_TERMS, REFUSED])
def test_an_aborted_delivery_needs_no_answer(terms: Terms) -> None:
    driver = refused(lambda _: None, terms)
    driver.send(0)
    driver.client(1, "transfer", b"a" * 50, handle=0, delivery_id=1, delivery_tag=b"t", more=True)
    assert driver.session.in_flight() == 2
    driver.client(1, "transfer", handle=0, aborted=True)
    assert driver.session.in_flight() == 1
    driver.send(2)
    driver.client(1, "transfer", handle=0, delivery_id=3, delivery_tag=b"t", aborted=True)
    assert driver.session.in_flight() == 2
    # Some brokers answer anyway.
    driver.broker(5, "disposition", role=True, first=0, last=1, settled=True)
    assert driver.session.in_flight() == 1
    driver.broker(5, "disposition", role=True, first=2, last=2, settled=True)
    assert driver.session.in_flight() == 0


@pytest.mark.parametrize("counts_at_last", [False, True])
def test_a_flow_within_a_refused_delivery_does_not_count_it(counts_at_last: bool) -> None:  # noqa: FBT001
    driver = refused()
    driver.client(1, "transfer", b"a" * 50, handle=0, delivery_id=0, delivery_tag=b"t", more=True)
    numbers = {"next_incoming_id": 2**32 - 4, "incoming_window": 9, "outgoing_window": 9, "handle": 0}
    count = 0 if counts_at_last else 1
    (flow,) = driver.client(
        1, "flow", **numbers, next_outgoing_id=11, delivery_count=count, link_credit=100 - count, available=0
    )
    assert (flow["delivery_count"], flow["link_credit"]) == (0, 100)
    driver.client(1, "transfer", b"a" * 50, handle=0)
    (flow,) = driver.client(1, "flow", **numbers, next_outgoing_id=12, delivery_count=1, link_credit=100, available=0)
    assert (flow["delivery_count"], flow["link_credit"]) == (0, 100)


def test_settled_messages_are_never_refused() -> None:
    driver = refused()
    assert len(driver.send(0, settled=True)) == 1
    assert not driver.requests
    driver.tick()
    assert driver.paid == 1
    # From here on it is as if the link settled all.
    assert len(driver.send(1)) == 1
    driver.tick()
    assert driver.charged == 2
    assert not [request for request in driver.requests if not request.most]


@pytest.mark.parametrize("mode", [None, 0, 2])
def test_settled_messages_wait_for_credit_whatever_their_link_has_announced(mode: int | None) -> None:
    driver = Driver(hold, terms={ORDERS: REFUSED}).open().sends(snd_settle_mode=mode)
    (flow,) = driver.credit(170)
    assert flow["link_credit"] == 2
    for number in range(2):
        assert len(driver.send(number, settled=True)) == 1
    driver.tick()
    ((request, _),) = driver.held.values()
    assert (request.resources, request.asks, request.refusal) == ((ORDERS,), "all", "impossible")
    assert driver.to(CLIENT) == []
    driver.resolve(1)
    (flow,) = driver.to(CLIENT)
    assert flow["delivery_count"] + flow["link_credit"] == 3
    assert driver.charged == 3


def test_another_link_of_a_client_that_has_sent_settled_messages_waits_for_credit() -> None:
    driver = Driver(hold, terms={ORDERS: REFUSED}).open().sends(snd_settle_mode=2)
    driver.credit(170)
    driver.send(0, settled=True)
    driver.client(1, "detach", handle=0, closed=True)
    driver.broker(5, "detach", handle=3, closed=True)
    driver.sends(1, name="another", snd_settle_mode=2)
    (flow,) = driver.credit(170, handle=1)
    assert flow["link_credit"] == 0
    # Those of others do not.
    driver.now_ns += 10_000_000_000
    driver.sends(2, name="later", snd_settle_mode=2)
    (flow,) = driver.credit(170, handle=2)
    assert flow["link_credit"] == 2


def test_the_refusal_of_a_too_large_message_states_the_size() -> None:
    too_large = Refuse(ORDERS, "queue:orders", 0, most=1000, most_of="bytes")
    driver = refused(lambda _: too_large)
    driver.send(0, b"x" * 2000)
    error = driver.to(CLIENT)[0]["state"].value[0].value
    assert error[1] == ("SYSTEM_BUSY: queue:orders accepts at most 1000 bytes at a time because of rule queue:orders")


def test_a_message_larger_than_its_limit_is_decided() -> None:
    driver = refused(terms=Terms(delays=True, max_bytes=1000))
    driver.tick()
    driver.forget()
    assert len(driver.send(0, b"x" * 100)) == 1
    assert driver.send(1, b"x" * 2000) == []
    # Its frames are kept while it may be small enough.
    driver.forget()
    assert driver.client(1, "transfer", b"a" * 500, handle=0, delivery_id=2, delivery_tag=b"t", more=True) == []
    (sent,) = driver.client(1, "transfer", b"a" * 300, handle=0)[1:]
    assert len(sent.payload) == 300
    driver.client(1, "transfer", b"a" * 500, handle=0, delivery_id=3, delivery_tag=b"t", more=True)
    assert driver.client(1, "transfer", b"a" * 600, handle=0, more=True) == []
    assert driver.client(1, "transfer", b"a" * 600, handle=0) == []
    dispositions = [said for said in driver.to(CLIENT) if said.name == "disposition"]
    assert [said["first"] for said in dispositions] == [3]


def anonymous(decide: Decide = refuse) -> Driver:
    driver = Driver(decide, terms={ORDERS: REFUSED}).open().sends(0, None)
    driver.credit(100)
    return driver.forget()


def test_anonymous_link_gets_credit_again_once_the_limit_it_paid_for_is_gone() -> None:
    driver = Driver(hold, terms={ORDERS: REFUSED}).open()
    driver.now_ns = 1
    driver.sends(0, None)
    driver.credit(170)
    driver.send(0, payload=codec.message(b"x", to="/queues/orders"), settled=True)
    driver.tick()
    assert driver.session.describe(0).links[0].credit == 1
    driver.terms, driver.version = {Resource("queue", "free"): REFUSED}, driver.version + 1
    driver.tick()
    assert driver.session.describe(0).links[0].credit == 2


def test_messages_of_an_anonymous_link_are_decided_by_their_own_address() -> None:
    driver = anonymous()
    assert driver.send(0, payload=codec.message(b"x", to="/queues/orders")) == []
    (passed,) = driver.send(1, payload=codec.message(b"x", to="/queues/free"))
    assert passed["delivery_id"] == 0
    assert [request.resources for request in driver.requests] == [(ORDERS,)]
    assert driver.batches[-1].paid[0].resources == (Resource("queue", "free"),)


def test_frames_are_kept_back_until_an_address_is_known() -> None:
    driver = anonymous(lambda _: None).sends(1, "/queues/free")
    driver.credit(100, handle=1)
    driver.forget()
    payload = codec.message(b"x" * 10, to="/queues/orders", annotations={codec.Symbol("a"): "b" * 100})
    assert driver.client(1, "transfer", payload[:50], handle=0, delivery_id=0, delivery_tag=b"t", more=True) == []
    # The rest of the channel waits behind it, in order.
    assert driver.send(1, handle=1) == []
    heard = driver.client(1, "transfer", payload[50:], handle=0)
    assert [(said["handle"], said["delivery_id"]) for said in heard] == [(0, 0), (1, 1), (0, None)]
    assert heard[0].payload + heard[2].payload == payload


def test_a_delivery_without_an_address_is_rejected() -> None:
    driver = anonymous(lambda _: None)
    part = codec.encode(Described(ULong(0x72), {codec.Symbol("a"): "b" * 80_000}))
    for at, each in enumerate(codec.in_chunks(part, 5000)):
        first = {"delivery_id": 0, "delivery_tag": b"t"} if at == 0 else {}
        driver.client(1, "transfer", each, handle=0, more=True, **first)
    driver.client(1, "transfer", b"", handle=0)
    assert not driver.written[BROKER]
    assert [said.name for said in driver.to(CLIENT)] == ["flow", "disposition"]


def test_kept_frames_are_decided_before_the_window_is_used_up() -> None:
    driver = anonymous(lambda _: None)
    driver.credit(100, incoming_window=3)
    part = codec.encode(Described(ULong(0x72), {codec.Symbol("a"): "b" * 80}))
    for number in range(3):
        first = {"delivery_id": 0, "delivery_tag": b"t"} if number == 0 else {}
        driver.client(1, "transfer", part[number : number + 1], handle=0, more=True, **first)
    assert driver.woken
    driver.forget()
    driver.tick()
    # Swallowed deliveries are not part of the window, or the rest could not arrive.
    (flow,) = driver.to(CLIENT)
    assert (flow["next_incoming_id"], flow["incoming_window"], flow["link_credit"]) == (13, 3, 3)
    driver.client(1, "transfer", part[3:], handle=0)
    assert [said.name for said in driver.to(CLIENT)] == ["disposition"]


@pytest.mark.parametrize("ends", ["goes on", "detach", "end", "cut"])
def test_settled_messages_of_an_anonymous_link_are_charged_and_more_credit_is_paid_before(ends: str) -> None:
    driver = Driver(hold, terms={ORDERS: REFUSED}).open().sends(0, None)
    driver.now_ns = 1
    # Their destinations are unknown before, so the credit is small at first.
    (flow,) = driver.credit(170)
    assert flow["link_credit"] == 2
    payload = codec.message(b"x", to="/queues/orders")
    for number in range(2):
        assert len(driver.send(number, payload=payload, settled=True)) == 1
    charges = []
    if ends == "cut":
        batch = driver.session.settle(1)
        charges = [] if batch is None else [*batch.charges]
    elif ends != "goes on":
        driver.client(1, ends, **({"handle": 0, "closed": True} if ends == "detach" else {}))
    driver.tick()
    charges += [charge for batch in driver.batches for charge in batch.charges]
    assert sum(charge.messages for charge in charges) == 2
    if ends != "goes on":
        assert not driver.held
        return
    assert driver.paid == 2
    ((request, _),) = driver.held.values()
    assert (request.resources, request.messages) == ((ORDERS,), 1)
    assert driver.to(CLIENT) == []
    driver.resolve(1)
    (flow,) = driver.to(CLIENT)
    assert flow["delivery_count"] + flow["link_credit"] == 3
    assert driver.charged == 3
    # Another one of its client has no known destination.
    driver.sends(1, None, name="another")
    (flow,) = driver.credit(170, handle=1)
    assert flow["link_credit"] == 0
    assert [each.resources for each, _ in driver.held.values()] == [(ORDERS,)]


def test_credit_that_was_paid_for_something_else_is_given_back() -> None:
    driver = Driver(terms={ORDERS: REFUSED}).open().sends(0, None)
    driver.credit(170)
    for number, queue in enumerate(("orders", "orders", "free", "free", "orders")):
        driver.send(number, payload=codec.message(b"x", to=f"/queues/{queue}"), settled=True)
        driver.tick()
    driver.client(1, "detach", handle=0, closed=True)
    driver.tick()
    assert driver.charged == 3
    assert driver.paid == 5


def test_settled_messages_to_elsewhere_get_all_credit() -> None:
    driver = anonymous(hold)
    for number in range(4):
        driver.send(number, payload=codec.message(b"x", to="/queues/free"), settled=True)
        driver.tick()
    assert driver.charged == 0
    assert driver.paid == 4
    assert not driver.held
    flow = driver.to(CLIENT)[-1]
    assert flow["delivery_count"] + flow["link_credit"] > 6


def test_a_name_is_attached_again_before_the_broker_has_answered() -> None:
    driver = shaped(hold)
    target = Described(ULong(0x29), ["/queues/orders"])
    driver.client(1, "attach", name="n", handle=0, role=False, target=target, initial_delivery_count=0)
    driver.client(1, "detach", handle=0)
    driver.client(1, "attach", name="n", handle=0, role=False, target=target, initial_delivery_count=0)
    driver.broker(5, "attach", name="n", handle=3, role=True, target=target)
    driver.broker(5, "detach", handle=3)
    driver.broker(5, "attach", name="n", handle=4, role=True, target=target)
    assert driver.credit(9, handle=1)[0]["link_credit"] == 0
    driver.resolve(1)
    assert driver.to(CLIENT)[0]["link_credit"] == 1


def test_a_link_that_the_broker_detaches_is_at_an_end() -> None:
    driver = shaped().sends()
    driver.credit(170)
    driver.broker(5, "detach", handle=3, closed=True)
    driver.tick()
    assert driver.charged == 0
    # Deliveries that the client had sent before are forwarded.
    assert len(driver.send(0)) == 1
    assert driver.session.in_flight() == 0


def test_a_flow_that_cannot_be_read_gives_no_credit() -> None:
    driver = Driver().open().sends()
    # A next-incoming-id is a number.
    assert not driver.credit(10, next_incoming_id=True)
    assert driver.reason == "bad_frame"


@pytest.mark.parametrize("name", ["detach", "end", "close"])
def test_credit_for_a_link_detached_by_the_broker_is_forwarded_unchanged(name: str) -> None:
    driver = Driver().open().takes()
    fields = {"handle": 3} if name == "detach" else {}
    driver.broker(0 if name == "close" else 5, name, **fields)
    window = {"incoming_window": 400, "outgoing_window": 500}
    flow = say(1, "flow", next_outgoing_id=10, handle=0, delivery_count=2**32 - 5, link_credit=10, **window)
    driver.give(CLIENT, flow)
    assert driver.written[BROKER] == flow


def test_credit_for_a_link_detached_by_the_client_is_forwarded_unchanged() -> None:
    driver = Driver().open().sends()
    driver.client(1, "detach", handle=0)
    window = {"incoming_window": 400, "outgoing_window": 500}
    flow = say(5, "flow", next_incoming_id=10, next_outgoing_id=0, handle=3, delivery_count=0, link_credit=10, **window)
    driver.give(BROKER, flow)
    assert driver.written[CLIENT] == flow


def test_a_link_that_is_limited_gets_no_credit_when_the_client_has_left_it() -> None:
    driver = shaped().sends()
    driver.client(1, "detach", handle=0)
    assert driver.credit(10)[0]["link_credit"] == 0


def test_links_are_described() -> None:
    driver = shaped(hold).sends().takes(1)
    driver.now_ns = 1_000_000
    driver.credit(170)
    (first, second) = driver.session.describe(driver.now_ns + 5_000_000).links
    assert (first.waits_ms, second.waits_ms) == (5, 0)
    assert (first.name, first.session, first.sends, first.resource) == ("sender-0", 1, True, "queue:orders")
    assert (first.address, second.address) == ("/queues/orders", "/queues/orders")
    assert (first.credit, first.withheld, first.used) == (0, 170, 0)
    assert (second.name, second.sends, second.resource) == ("receiver-1", False, "delivery:orders")


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0\x04\x02\0\0\0",
        b"\0\0\0\x08\x01\0\0\0",
        b"\0\0\0\x0c\x02\x01\0\x01aaaa",
        codec.frame(1, b"\0\x53\x14\xc0\x02\x09\x40"),
        say(1, "begin", next_outgoing_id=0, incoming_window=1, outgoing_window=1),
        say(1, "transfer", handle=77, delivery_id=0),
        say(0, "open", container_id="again"),
    ],
)
def test_a_bad_frame_ends_the_connection(frame: bytes) -> None:
    driver = Driver().open().sends()
    driver.credit(10)
    driver.send(0)
    driver.forget()
    good = say(1, "transfer", handle=0, delivery_id=1, delivery_tag=b"t")
    driver.give(CLIENT, good + frame + good)
    assert driver.reason == "bad_frame"
    assert driver.written[BROKER] == good
    driver.forget()
    driver.session.start_close(driver.closed.detail, 0)
    driver.take()
    to_client, to_broker = driver.to(CLIENT)[0], driver.to(BROKER)[0]
    assert to_client.name == to_broker.name == "close"
    assert to_client["error"].value[0] == "amqp:connection:framing-error"
    assert to_broker["error"].value[0] == "amqp:connection:forced"


def test_close_has_the_reason() -> None:
    driver = Driver().open()
    driver.session.start_close("Sluice is shutting down", 0)
    driver.take()
    (said,) = driver.to(CLIENT)
    assert said["error"].value == ["amqp:connection:forced", "Sluice is shutting down"]
    assert not driver.session.receive_closing(BROKER, memoryview(b""))
    assert driver.session.receive_closing(BROKER, memoryview(say(0, "close")))


def test_closing_names_the_first_closer() -> None:
    driver = Driver().open()
    driver.client(0, "close")
    assert driver.session.closing is None
    driver.broker(0, "close")
    assert driver.session.closing is CLIENT


def test_empty_frames_are_sent_to_an_idle_peer() -> None:
    driver = Driver().open(idle_time_out=1000)
    beats = 0
    # The broker is reachable, although it sends the client nothing.
    for _ in range(8):
        driver.now_ns += 250_000_000
        driver.session.receive(BROKER, memoryview(b""), driver.now_ns)
        driver.tick()
        beats += bytes(driver.written[CLIENT]) == codec.EMPTY
        driver.forget()
    assert beats == 4
    assert not driver.written[BROKER]


def test_a_drain_waits_for_unsettled_deliveries() -> None:
    driver = Driver().open().sends()
    driver.credit(10)
    for number in range(4):
        driver.send(number)
    driver.send(4, settled=True)
    assert driver.session.in_flight() == 4
    driver.broker(5, "disposition", role=True, first=0, last=2, settled=True)
    assert driver.session.in_flight() == 1
    driver.broker(5, "detach", handle=3, closed=True)
    assert driver.session.in_flight() == 0


@pytest.mark.parametrize("terms", [NO_TERMS, REFUSED])
def test_one_delivery_at_a_time_is_timed_until_it_is_settled(terms: Terms) -> None:
    driver = refused(lambda _: None, terms)
    driver.send(0, settled=True)
    for number in range(1, 4):
        driver.now_ns = number * 1000
        driver.send(number)
    answered = {"role": True, "settled": True}
    driver.now_ns = 10_000
    driver.broker(5, "disposition", first=2, last=3, **answered)
    assert not any(driver.counters.round_trip.durations().counts)
    driver.broker(5, "disposition", first=1, **answered)
    timed = driver.counters.round_trip.durations()
    assert (sum(timed.counts), timed.sum_s) == (1, 9e-6)
    # The next delivery, unless its link ends before.
    driver.send(4)
    driver.now_ns += 5000
    driver.broker(5, "disposition", first=4, **answered)
    assert sum(driver.counters.round_trip.durations().counts) == 2
    driver.send(5)
    driver.broker(5, "detach", handle=3, closed=True)
    assert sum(driver.counters.round_trip.durations().counts) == 2


def test_too_many_sessions_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.protocols.amqp10.session.MAX_SESSIONS", 3)
    driver = Driver().open()
    for channel in range(2, 6):
        driver.client(channel, "begin", next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    assert isinstance(driver.closed, Close)
    assert driver.closed.reason == "too_many_sessions"


def test_a_connection_shows_that_a_limit_makes_it_wait() -> None:
    driver = shaped(hold)
    driver.now_ns = 1_000_000_000
    driver.sends().credit(170)
    assert driver.stage.state(driver.now_ns) == "throttled"
    (stage,) = driver.session.stages()
    assert (stage.kind, stage.name) == ("resource", "queue:orders")
    assert stage in driver.stage.followers()
    driver.decide = lambda _: None
    driver.resolve(170)
    for _ in range(2):
        due_ns = driver.session.next_tick_ns()
        assert due_ns is not None
        driver.now_ns = due_ns
        driver.tick()
    assert not driver.session.stages()
    driver.now_ns += 60_000_000_000
    assert driver.stage.state(driver.now_ns) == "running"


def test_numbers_stay_right_over_many_settled() -> None:
    driver = Driver(refuse, terms={ORDERS: REFUSED}).open().sends(0).sends(1, "/queues/free")
    driver.credit(1000)
    driver.credit(1 << 31, handle=1, incoming_window=1 << 31)
    driver.forget()
    driver.send(0, handle=1)
    driver.send(1)
    driver.forget()  # 1 was swallowed
    number = 2
    for step in range(6):
        (heard,) = driver.send(number, handle=1, settled=True)
        assert heard["delivery_id"] == (number - 1) & 0xFFFFFFFF, step
        number = (number + (1 << 29)) & 0xFFFFFFFF  # as after this many deliveries


def test_a_misleading_flow_of_a_sender_still_has_its_window() -> None:
    driver = Driver(lambda r: Grant(2) if r.most > 2 else None, terms={ORDERS: SHAPED}).open().sends()
    driver.credit(100, drain=True)
    driver.decide = hold
    driver.forget()
    heard = driver.client(
        1,
        "flow",
        next_incoming_id=2**32 - 4,
        incoming_window=77,
        next_outgoing_id=10,
        outgoing_window=500,
        handle=0,
        delivery_count=1,
        link_credit=1,
        drain=True,
    )
    assert [each["incoming_window"] for each in heard] == [77]


def test_only_transfers_that_are_kept_back_use_up_the_window() -> None:
    driver = Driver(lambda _: None, terms={ORDERS: REFUSED}).open().sends(0, None).sends(1, "/queues/free")
    driver.credit(100)
    driver.credit(400, handle=1)
    for n in range(300):
        driver.send(n, handle=1)
    driver.broker(5, "flow", next_incoming_id=310, incoming_window=100, next_outgoing_id=2**32 - 4, outgoing_window=500)
    driver.forget()
    payload = codec.message(b"x" * 10, to="/queues/orders", annotations={codec.Symbol("a"): "b" * 100})
    driver.client(1, "transfer", payload[:50], handle=0, delivery_id=300, delivery_tag=b"t", more=True)
    assert not driver.woken
    driver.tick()
    assert len(driver.client(1, "transfer", payload[50:], handle=0)) == 2


def test_kept_frames_are_forwarded_before_a_close() -> None:
    driver = Driver(lambda _: None, terms={ORDERS: REFUSED}).open().sends(0, None).sends(1, "/queues/free")
    driver.credit(100)
    driver.credit(100, handle=1)
    driver.forget()
    part = codec.encode(Described(ULong(0x72), {codec.Symbol("a"): "b" * 80}))
    driver.client(1, "transfer", part[:5], handle=0, delivery_id=0, delivery_tag=b"t", more=True)
    assert driver.send(1, handle=1, settled=True) == []
    heard = driver.client(0, "close")
    driver.tick()
    heard += driver.to(BROKER)
    assert [s.name for s in heard] == ["transfer", "transfer", "close"]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("terms", [NO_TERMS, REFUSED, SHAPED])
def test_frames_after_a_close_pass_unread_and_uncharged(terms: Terms, at_once: bool) -> None:  # noqa: FBT001
    driver = Driver(lambda _: None, terms={ORDERS: terms}).open().sends(0, None).sends(1)
    driver.credit(100)
    driver.credit(100, handle=1)
    driver.send(0, handle=1)
    driver.forget()
    paid, asked = driver.paid, len(driver.requests)
    behind = b"".join(
        say(1, "transfer", codec.message(b"x", to="/queues/orders"), handle=n % 2, delivery_id=n, delivery_tag=b"t")
        for n in range(1, 40)
    )
    for given in [say(0, "close") + behind] if at_once else [say(0, "close"), behind[:50], behind[50:]]:
        driver.give(CLIENT, given)
    driver.tick()
    assert bytes(driver.written[BROKER]) == say(0, "close") + behind
    assert (driver.paid, len(driver.requests)) == (paid, asked)
    assert driver.session.between_frames(CLIENT)


def test_links_of_a_session_that_the_broker_has_ended_are_not_remembered() -> None:
    driver = Driver().open()
    driver.broker(5, "end")
    gc.collect()
    before = sum(isinstance(o, Link) for o in gc.get_objects())
    for n in range(500):
        driver.client(
            1,
            "attach",
            name=f"l{n}",
            handle=0,
            role=False,
            target=Described(ULong(0x29), ["/queues/o"]),
            initial_delivery_count=0,
        )
        driver.client(1, "detach", handle=0, closed=True)
    gc.collect()
    after = sum(isinstance(o, Link) for o in gc.get_objects())
    assert after - before < 10


@pytest.mark.parametrize("state", [0x24, 0x25, 0x26])
def test_settled_messages_are_answered_whatever_the_outcome(state: int) -> None:
    driver = Driver().open().sends()
    driver.credit(10)
    for number in range(3):
        message = codec.message(b"x")
        driver.give(CLIENT, say(1, "transfer", message, handle=0, delivery_id=number, delivery_tag=b"%d" % number))
    settled = {"role": True, "settled": True, "state": Described(ULong(state), [])}
    driver.give(BROKER, say(5, "disposition", first=0, last=1, **settled))
    assert (driver.signals.answers, driver.signals.busy, driver.session.unanswered()) == (2, 0, 1)
