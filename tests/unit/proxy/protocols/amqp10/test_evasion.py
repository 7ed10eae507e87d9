"""Attempts of a client to get past a limit, or to let others pay."""

from random import Random

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import say
from amqp10_playbook.driver import BROKER, CLIENT, ORDERS, REFUSED, SHAPED, Driver, hold, refuse

from limiter.rules.resource import Resource
from proxy.deciding.batch import Charge
from proxy.protocols.amqp10.credit import PAID_NS, Hub
from proxy.protocols.base import Advance, Terms

FREE = Resource("queue", "free")
DELIVERY = Resource("delivery", "orders")


@pytest.mark.parametrize("terms", [SHAPED, Terms(delays=True, max_bytes=1000)])
def test_transfers_beyond_credit_are_dropped_without_charge(terms: Terms) -> None:
    driver = Driver(hold, terms={ORDERS: terms}).open().sends()
    driver.credit(170)
    flood = [
        say(1, "transfer", codec.message(b"x"), handle=0, delivery_id=number, delivery_tag=b"t", settled=True)
        for number in range(500)
    ]
    driver.give(CLIENT, b"".join(flood))
    assert driver.reason == "transfer_limit_exceeded"
    assert not driver.to(BROKER)
    assert driver.paid == 0
    assert not [charge for batch in driver.batches for charge in batch.charges]


def test_messages_before_a_rule_are_not_charged_to_it() -> None:
    driver = Driver().open().takes()
    credit = {"next_incoming_id": 2**32 - 4, "incoming_window": 1 << 20, "next_outgoing_id": 10, "outgoing_window": 5}
    driver.client(1, "flow", handle=0, delivery_count=2**32 - 5, link_credit=1000, **credit)
    for number in range(500):
        driver.broker(5, "transfer", codec.message(b"x"), handle=3, delivery_id=number, delivery_tag=b"t")
    driver.terms, driver.version = {DELIVERY: SHAPED}, 1
    driver.limits.add("delivery")
    driver.broker(5, "transfer", codec.message(b"x"), handle=3, delivery_id=500, delivery_tag=b"t")
    driver.tick()
    assert driver.charged == 1


def test_rule_changes_apply_to_anonymous_links() -> None:
    driver = Driver(terms={FREE: SHAPED}).open().sends(0, None)
    driver.credit(10)
    driver.send(0, payload=codec.message(b"x", to="/queues/orders"))
    assert not driver.requests
    driver.terms, driver.version = {ORDERS: REFUSED}, 1
    driver.send(1, payload=codec.message(b"x", to="/queues/orders"))
    assert [request.resources for request in driver.requests] == [(ORDERS,)]


def test_a_link_pays_for_a_removed_limit_for_a_while_and_is_then_granted_more() -> None:
    driver = Driver(terms={ORDERS: SHAPED}).open().sends(0, None)
    driver.credit(170)
    for number in range(4):
        driver.send(number, payload=codec.message(b"x", to="/queues/orders"), settled=True)
        driver.tick()
        driver.terms, driver.version = {ORDERS: SHAPED} if number < 1 else {FREE: REFUSED}, number
    driver.tick()
    while (at_ns := driver.session.next_tick_ns()) is not None and driver.now_ns < 2 * PAID_NS:
        driver.now_ns = at_ns
        driver.tick()
    flow = driver.to(CLIENT)[-1]
    assert flow["delivery_count"] + flow["link_credit"] > 4


def test_no_more_is_given_back_than_was_charged() -> None:
    terms = Terms(delays=True, max_bytes=100)
    driver = Driver(terms={ORDERS: terms}).open().sends(snd_settle_mode=1)
    driver.credit(170)
    for number in range(2):
        driver.send(number, bytes(5000), settled=True)
    driver.tick()
    # A single permit never charges more than a limit admits at once.
    assert max(request.size_bytes for request in driver.requests) == 100
    driver.client(1, "detach", handle=0, closed=True)
    driver.tick()
    prepaid = sum(request.messages for request in driver.requests) - 2
    (back,) = [each for batch in driver.batches for each in batch.charges if isinstance(each, Charge) and each.messages]
    assert (back.messages, back.size_bytes) == (-prepaid, -100 * prepaid)


def test_credit_given_and_taken_back_in_one_write_is_not_fully_forwarded() -> None:
    driver = Driver(hold, terms={DELIVERY: SHAPED}).open().takes()
    fields = {"next_incoming_id": 2**32 - 4, "incoming_window": 99, "next_outgoing_id": 10, "outgoing_window": 5}
    flows = [
        say(1, "flow", handle=0, delivery_count=2**32 - 5, link_credit=credit, **fields) for credit in (300, 0, 300, 0)
    ]
    driver.give(CLIENT, b"".join(flows))
    assert [said["link_credit"] for said in driver.to(BROKER)] == [0] * 4


OTHER = Resource("queue", "other")


def copied(*keys: str, before: int = 0) -> bytes:
    annotations = {codec.Symbol("x-a"): "a" * before, codec.Symbol("x-cc"): list(keys)}
    return codec.message(b"x", annotations=annotations)


@pytest.mark.parametrize("own", [None, SHAPED, REFUSED])
def test_a_message_whose_copies_are_over_a_limit_is_rejected(own: Terms | None) -> None:
    terms = {OTHER: SHAPED} | ({} if own is None else {ORDERS: own})
    driver = Driver(terms=terms).open().sends()
    driver.credit(170)
    assert len(driver.send(0, payload=copied("other"))) == 1
    decided = [request for request in driver.requests if not request.most]
    assert [request.resources for request in decided] == [(ORDERS, OTHER) if own is REFUSED else (OTHER,)]
    assert (decided[0].asks, decided[0].may_wait) == ("all", False)
    driver.decide = refuse
    driver.to(CLIENT)
    assert driver.send(1, payload=copied("other")) == []
    assert "disposition" in [said.name for said in driver.to(CLIENT)]
    # Messages without a limited destination pass.
    driver.decide = lambda _: None
    for number, payload in ((2, copied("free")), (3, codec.message(b"x"))):
        assert len(driver.send(number, payload=payload)) == 1


def test_copies_named_behind_the_first_frame_are_found() -> None:
    driver = Driver(refuse, terms={OTHER: SHAPED}).open().sends()
    driver.credit(170)
    payload = copied("other", before=5000)
    chunks = list(codec.in_chunks(payload, 1000))
    for at, each in enumerate(chunks):
        first = {"delivery_id": 0, "delivery_tag": b"t"} if at == 0 else {}
        assert driver.client(1, "transfer", each, handle=0, more=at < len(chunks) - 1, **first) == []
    assert driver.to(CLIENT)[0].name == "disposition"
    # Of others nothing is kept once they are known to be unlimited.
    chunks = list(codec.in_chunks(codec.message(b"x" * 5000), 1000))
    assert len(driver.client(1, "transfer", chunks[0], handle=0, delivery_id=1, delivery_tag=b"t", more=True)) == 1


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    "payload",
    [
        copied(*map(str, range(256)), "other"),
        codec.message(b"x", annotations={codec.Symbol("x-cc"): ["other"]} | {str(at): at for at in range(5000)}),
    ],
    ids=["too many copies", "too many annotations"],
)
def test_unread_messages_do_not_bypass_a_limit(payload: bytes, settled: bool) -> None:  # noqa: FBT001
    driver = Driver(terms={OTHER: SHAPED}).open().sends()
    driver.credit(170)
    assert driver.send(0, payload=payload, settled=settled) == []
    if settled:
        assert driver.reason == "unreadable_message"
    else:
        assert driver.to(CLIENT)[0].name == "disposition"


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("longest", [None, 50_000])
def test_copies_named_late_in_a_long_frame_are_found(settled: bool, longest: int | None) -> None:  # noqa: FBT001
    driver = Driver(refuse, terms={OTHER: SHAPED}).open().sends()
    driver.credit(170)
    driver.forget()
    frame = say(
        1, "transfer", copied("other", before=70_000), handle=0, delivery_id=0, delivery_tag=b"t", settled=settled
    )
    random = None if longest is None else Random(1)
    driver.give(CLIENT, frame, random, longest=longest or 1 << 20)
    driver.tick()
    if not settled:
        assert driver.to(BROKER) == []
        assert driver.to(CLIENT)[0].name == "disposition"
    else:
        assert driver.charged == 1 or driver.closed is not None


def test_a_settled_message_aborted_before_its_address_ends_nothing() -> None:
    driver = Driver(terms={ORDERS: SHAPED}).open().sends(0, None)
    driver.credit(170)
    part = codec.message(b"x", to="/queues/orders")[:9]
    driver.client(1, "transfer", part, handle=0, delivery_id=0, delivery_tag=b"t", settled=True, more=True)
    driver.client(1, "transfer", b"", handle=0, aborted=True)
    assert driver.closed is None


def test_a_link_of_settled_messages_waits_until_their_copies_are_paid() -> None:
    driver = Driver(hold, terms={OTHER: SHAPED}).open().sends()
    driver.now_ns = 1
    driver.credit(10)
    for number in range(10):
        assert len(driver.send(number, payload=copied("other"), settled=True)) == 1
    driver.tick()
    assert driver.charged == 10
    driver.forget()
    (flow,) = driver.credit(10, count=10)
    assert flow["delivery_count"] + flow["link_credit"] == 10
    ((request, _),) = driver.held.values()
    assert request.resources == (ORDERS, OTHER)
    driver.resolve(2)
    (flow,) = driver.to(CLIENT)
    assert flow["delivery_count"] + flow["link_credit"] == 12
    # It is charged for copies.
    driver.send(10, payload=copied("other"), settled=True)
    driver.tick()
    assert driver.charged == 12


def test_an_anonymous_link_of_settled_messages_pays_for_all_that_they_name() -> None:
    driver = Driver(terms={ORDERS: SHAPED}).open().sends(0, None)
    driver.credit(170)
    payload = codec.message(
        b"x", to="/queues/orders", annotations={codec.Symbol("x-cc"): [str(number) for number in range(20)]}
    )
    driver.send(0, payload=payload, settled=True)
    driver.tick()
    assert sum(charge.messages for batch in driver.batches for charge in batch.charges) == 1


def test_idle_links_have_no_more_credit_than_was_charged() -> None:
    driver = Driver(terms={ORDERS: SHAPED}).open()
    for handle in range(20):
        driver.sends(handle)
        driver.credit(170, handle=handle)
    for _ in range(20):
        driver.now_ns += 300_000_000
        driver.tick()
    assert driver.charged == 40
    for handle in range(20):
        driver.send(2 * handle, handle=handle)
        driver.client(1, "detach", handle=handle, closed=True)
    driver.tick()
    assert driver.charged == driver.paid == 20


@pytest.mark.parametrize("address", [None, "/queues/orders"])
def test_links_of_a_client_share_the_credit_that_is_not_paid(address: str | None) -> None:
    advance = Advance(1_000_000, 9, 20)
    clients = Hub()
    driver = Driver(terms={ORDERS: Terms(refuses=True, advance=advance)}, hub=clients, tightest=advance).open()
    told = []
    for handle in range(20):
        driver.sends(handle, address)
        told += [said["link_credit"] for said in driver.credit(170, handle=handle)]
    assert told == [2] * 4 + [1] + [0] * 15
    # Its other connections have none either, and get some one after the other.
    other = Driver(terms=driver.terms, hub=clients, tightest=advance).open()
    other.sends(address=address)
    assert [said["link_credit"] for said in other.credit(170)] == [0]
    for second in range(1, 3):
        driver.now_ns = other.now_ns = second * 1_000_000_000
        other.tick()
    (flow, *_) = other.to(CLIENT)
    assert flow["link_credit"] == 1
    driver.session.settle(driver.now_ns)
    other.sends(1, address)
    assert [said["link_credit"] for said in other.credit(170, handle=1)] == [2]


def test_messages_that_are_rejected_bring_their_sender_no_more_credit_than_they_used() -> None:
    advance = Advance(1_000_000, 9, 20)
    driver = Driver(terms={ORDERS: Terms(refuses=True, advance=advance)}, tightest=advance).open()
    driver.sends(snd_settle_mode=2)
    sent, most = 0, []
    said = driver.credit(1000)
    for turn in range(30):
        driver.decide = refuse if turn > 10 else lambda _: None
        limit = max(flow["delivery_count"] + flow["link_credit"] for flow in said if flow.name == "flow")
        most.append(limit - sent)
        transfers = [
            say(1, "transfer", codec.message(b"x"), handle=0, delivery_id=number, delivery_tag=b"%d" % number)
            for number in range(sent, limit)
        ]
        sent = limit
        driver.forget()
        driver.give(CLIENT, b"".join(transfers))
        said = driver.to(CLIENT)
    assert max(most) <= 20
    assert sent > 200


@pytest.mark.parametrize("longest", [1000, None])
@pytest.mark.parametrize("name", ["flow", "disposition"])
def test_no_frames_are_hidden_in_the_payload_of_a_rewritten_frame(name: str, longest: int | None) -> None:
    driver = Driver(hold, terms={ORDERS: SHAPED, DELIVERY: SHAPED}).open()
    driver.sends().takes(1)
    hidden = say(1, "transfer", codec.message(b"x"), handle=0, delivery_id=0, delivery_tag=b"t")
    windows = {"incoming_window": 400, "outgoing_window": 500}
    fields = {
        "flow": {"next_outgoing_id": 10, "handle": 1, "delivery_count": 2**32 - 5, "link_credit": 10, **windows},
        "disposition": {"role": True, "first": 0, "settled": True},
    }[name]
    frame = say(1, name, hidden * 5000, **fields)
    driver.give(CLIENT, frame, None if longest is None else Random(0), longest or 0)
    assert driver.reason == "bad_frame"
    assert not driver.written[BROKER]


def test_no_frames_are_hidden_in_the_payload_of_a_frame_that_is_kept_back() -> None:
    driver = Driver(terms={ORDERS: SHAPED}).open().sends().sends(1, None)
    driver.credit(10, handle=1)
    begins = codec.message(b"x", to="/queues/orders")[:9]
    driver.send(0, payload=begins, handle=1, more=True)
    hidden = say(1, "transfer", codec.message(b"x"), handle=0, delivery_id=0, delivery_tag=b"t")
    frame = say(1, "attach", hidden * 5000, name="n", handle=2, role=False)
    driver.give(CLIENT, frame, Random(0), 1000)
    assert driver.reason == "bad_frame"
    assert not driver.written[BROKER]
