"""What a client may try to get past a limit, or to have others pay for it."""

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import say
from amqp10_playbook.driver import BROKER, CLIENT, ORDERS, REFUSED, SHAPED, Driver, hold

from limiter.rules.resource import Resource
from proxy.deciding.batch import Charge
from proxy.protocols.amqp10.options import AMQP10Options
from proxy.protocols.base import Terms
from proxy.protocols.options import ScanName

FREE = Resource("queue", "free")
DELIVERY = Resource("delivery", "orders")


@pytest.mark.parametrize("scan", ["python", "compiled"])
@pytest.mark.parametrize("terms", [SHAPED, Terms(delays=True, most_bytes=1000)])
def test_what_is_sent_beyond_all_credit_does_not_go_on_and_costs_nobody(scan: ScanName, terms: Terms) -> None:
    driver = Driver(hold, terms={ORDERS: terms}, options=AMQP10Options(scan=scan)).open().sends()
    driver.credit(170)
    flood = [
        say(1, "transfer", codec.message(b"x"), handle=0, delivery_id=number, delivery_tag=b"t", settled=True)
        for number in range(500)
    ]
    driver.give(CLIENT, b"".join(flood))
    assert driver.closed is not None
    assert driver.closed.reason == "transfer_limit_exceeded"
    assert not driver.to(BROKER)
    assert driver.paid == 0
    assert not [charge for batch in driver.batches for charge in batch.charges]


def test_what_came_before_there_was_a_rule_is_not_charged_to_it() -> None:
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


def test_rules_that_change_hold_for_what_says_itself_where_it_goes() -> None:
    driver = Driver(terms={FREE: SHAPED}).open().sends(0, None)
    driver.credit(10)
    driver.send(0, payload=codec.message(b"x", to="/queues/orders"))
    assert not driver.requests
    driver.terms, driver.version = {ORDERS: REFUSED}, 1
    driver.send(1, payload=codec.message(b"x", to="/queues/orders"))
    assert [request.resources for request in driver.requests] == [(ORDERS,)]


def test_no_more_is_given_back_than_was_charged() -> None:
    terms = Terms(delays=True, most_bytes=100)
    driver = Driver(terms={ORDERS: terms}).open().sends(snd_settle_mode=1)
    driver.credit(170)
    for number in range(2):
        driver.send(number, bytes(5000), settled=True)
    driver.tick()
    # What a limit charges for one permit is never more than it admits at once.
    assert max(request.size_bytes for request in driver.requests) == 100
    driver.client(1, "detach", handle=0, closed=True)
    driver.tick()
    prepaid = sum(request.messages for request in driver.requests) - 2
    (back,) = [each for batch in driver.batches for each in batch.charges if isinstance(each, Charge) and each.messages]
    assert (back.messages, back.size_bytes) == (-prepaid, -100 * prepaid)
