"""Acks of consumers while deliveries wait in Sluice: they cover only deliveries that were sent."""

import struct
from collections.abc import Callable
from random import Random

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver, hold

from proxy.deciding.batch import Request, Verdict

RECOVER_OK = frames.method(1, 60, 111)
RECOVER_ASYNC = frames.method(1, 60, 100, b"\1")


def deliver(*tags: int, consumer: str = "c", channel: int = 1) -> bytes:
    return b"".join(frame for tag in tags for frame in frames.deliver(channel, tag, b"%d" % tag, consumer))


def got(tag: int) -> bytes:
    arguments = struct.pack(">QB", tag, 0) + frames.short("") + frames.short("orders") + bytes(4)
    return b"".join(frames.content(1, frames.method(1, 60, 71, arguments), b"%d" % tag))


def connected(channels: int = 1) -> Driver:
    """Return a connection with a consumer "c" that acknowledges in each channel, and one that does not, "a"."""
    driver = Driver(limits=["delivery"]).open(range(1, channels + 1))
    for channel in range(1, channels + 1):
        for consumer, automatic in (("c", False), ("a", True)):
            driver.give(CLIENT, frames.subscribe(channel, "orders", consumer, automatic=automatic))
            driver.give(BROKER, frames.consume_ok(channel, consumer))
    return driver.forget()


def holding(sent: bytes, waiting: bytes) -> Driver:
    """Return a connection whose client was sent some deliveries, while others wait."""
    driver = connected()
    driver.give(BROKER, sent)
    driver.decide = hold
    driver.give(BROKER, waiting)
    assert driver.written[CLIENT] == sent
    return driver.forget()


def said(driver: Driver, *settling: bytes) -> bytes:
    driver.forget().give(CLIENT, b"".join(settling))
    return bytes(driver.written[BROKER])


@pytest.mark.parametrize("make", [frames.ack, frames.give_back])
@pytest.mark.parametrize("multiple", [False, True])
def test_the_broker_refuses_the_number_of_a_delivery_that_the_client_was_not_sent(
    make: Callable[..., bytes], *, multiple: bool
) -> None:
    for number in (3, 4, 9):
        driver = holding(deliver(1, 2), deliver(3, 4))
        assert said(driver, make(1, number, multiple=multiple)) == make(1, 0)
    driver = holding(deliver(1, 2), b"")
    assert said(driver, make(1, 3, multiple=multiple)) == make(1, 3, multiple=multiple)
    driver = holding(deliver(1, 2), deliver(3, 4))
    assert said(driver, frames.reject(1, 3, requeue=True)) == frames.reject(1, 0, requeue=True)
    assert said(driver, make(1, 2, multiple=multiple)) == make(1, 2, multiple=multiple)


def test_deliveries_that_are_not_decided_yet_are_not_sent() -> None:
    driver = connected()
    driver.give(BROKER, deliver(1))
    batch = driver.receive(BROKER, deliver(2, 3))
    assert batch is not None
    assert said(driver, frames.ack(1, 0, multiple=True)) == frames.ack(1, 1, multiple=True)
    driver.finish(batch)
    method, *rest = frames.deliver(1, 4, b"4")
    driver.give(BROKER, method)
    assert said(driver, frames.ack(1, 0, multiple=True)) == frames.ack(1, 3, multiple=True)
    driver.give(BROKER, b"".join(rest))
    assert said(driver, frames.ack(1, 0, multiple=True)) == frames.ack(1, 0, multiple=True)


def test_of_deliveries_from_before_they_were_limited_none_is_acknowledged_by_mistake() -> None:
    driver = connected()
    driver.limits.clear()
    driver.give(BROKER, deliver(1, 2))
    driver.limits.add("delivery")
    driver.decide = hold
    driver.give(BROKER, deliver(3, 4))
    assert said(driver, frames.ack(1, 0, multiple=True)) == b""
    assert said(driver, frames.ack(1, 2)) == frames.ack(1, 2)
    driver.resolve()
    assert said(driver, frames.ack(1, 0, multiple=True)) == frames.ack(1, 3, multiple=True)
    driver.settle()
    driver.limits.clear()
    driver.give(BROKER, deliver(5, 6))
    driver.limits.add("delivery")
    driver.decide = hold
    driver.give(BROKER, deliver(7))
    assert said(driver, frames.ack(1, 0, multiple=True)) == frames.ack(1, 6, multiple=True)


@pytest.mark.parametrize("recover", [frames.recover(1), RECOVER_ASYNC])
def test_deliveries_that_are_given_back_while_they_wait_come_once(recover: bytes) -> None:
    driver = holding(deliver(1, 2), deliver(3, 4) + deliver(5, consumer="a"))
    assert said(driver, recover) == frames.recover(1), "the answer says which are given back"
    assert said(driver, frames.ack(1, 0, multiple=True)) == b""
    again = deliver(7, 8)
    driver.forget().give(BROKER, deliver(6) + RECOVER_OK + again)
    driver.settle()
    answer = RECOVER_OK if recover == frames.recover(1) else b""
    assert driver.written[CLIENT] == deliver(5, consumer="a") + answer + again
    assert not driver.held
    assert said(driver, frames.ack(1, 8, multiple=True)) == frames.ack(1, 8, multiple=True)


def test_polled_message_is_answered_though_requeued() -> None:
    driver = connected()
    driver.decide = hold
    driver.give(CLIENT, frames.get(1, "orders") + frames.recover(1))
    driver.give(BROKER, got(1) + RECOVER_OK)
    driver.settle()
    assert driver.written[CLIENT] == got(1) + RECOVER_OK


class _World:
    """A broker with one queue, a client, and their views: as RabbitMQ counts, for one channel."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.driver = connected()
        self.driver.decide = self._decide
        self.queue = list(range(200))
        self.tag = 0
        # The broker's unsettled and settled ones. The client's received and unsettled ones.
        self.unsettled: dict[int, int] = {}
        self.acked: list[int] = []
        self.automatic: list[int] = []
        self.sent: dict[int, int] = {}
        self.seen: set[int] = set()
        self.mine: list[int] = []

    def _decide(self, _: Request) -> Verdict | None:
        return hold(_) if self.random.random() < 0.4 else None

    def deliver(self) -> None:
        chunk = b""
        for _ in range(min(len(self.queue), self.random.randint(1, 5))):
            self.tag += 1
            message, automatic = self.queue.pop(0), self.random.random() < 0.1
            if automatic:
                self.automatic.append(message)
            else:
                self.unsettled[self.tag] = message
            chunk += b"".join(frames.deliver(1, self.tag, b"%d" % message, "a" if automatic else "c"))
        self.driver.give(BROKER, chunk, self.random, longest=90)

    def receive(self) -> None:
        for message in self.driver.to_client():
            if message.method == (60, 60):
                if message.arguments.startswith(b"\1c"):
                    self.sent[int.from_bytes(message.arguments[2:10])] = int(message.body)
                self.seen.add(int(message.body))
            elif message.method == (60, 111):
                self.sent.clear()
        said = self.driver.to_broker()
        self.driver.forget()
        for message in said:
            tag, kind, bits = int.from_bytes(message.arguments[:8]), message.method[1], message.arguments[-1]
            if kind == 110:
                self._requeue(list(self.unsettled))
                self.driver.give(BROKER, RECOVER_OK)
                continue
            multiple = kind != 90 and bits & 1
            assert tag in self.unsettled or (not tag and multiple), "406"
            tags = [each for each in self.unsettled if not tag or each <= tag] if multiple else [tag]
            assert all(self.unsettled[each] in self.seen for each in tags)
            if kind == 80:
                self.acked += [self.unsettled.pop(each) for each in tags]
            else:
                self._requeue(tags)
        if said:
            self.receive()

    def _requeue(self, tags: list[int]) -> None:
        self.queue[:0] = [self.unsettled.pop(each) for each in tags]

    def settle(self) -> None:
        kind = self.random.choice(["ack", "ack", "nack", "reject", "recover", "async"])
        tags = list(self.sent)
        if kind in {"recover", "async"}:
            self.sent.clear()
            self.driver.give(CLIENT, frames.recover(1) if kind == "recover" else RECOVER_ASYNC)
            return
        if kind != "reject" and self.random.random() < 0.5:
            for tag in tags:
                message = self.sent.pop(tag)
                if kind == "ack":
                    self.mine.append(message)
            self.driver.give(CLIENT, (frames.ack if kind == "ack" else frames.give_back)(1, 0, multiple=True))
        elif tags:
            tag = self.random.choice(tags)
            multiple = kind != "reject" and self.random.random() < 0.3
            for each in [each for each in tags if each == tag or (multiple and each < tag)]:
                message = self.sent.pop(each)
                if kind == "ack":
                    self.mine.append(message)
            frame = {"ack": frames.ack, "nack": frames.give_back}.get(kind)
            chunk = frames.reject(1, tag, requeue=True) if frame is None else frame(1, tag, multiple=multiple)
            self.driver.give(CLIENT, chunk)


@pytest.mark.parametrize("seed", range(10))
def test_the_broker_settles_the_clients_deliveries(seed: int) -> None:
    random = Random(seed)
    world = _World(random)
    for _ in range(300):
        match random.randrange(4):
            case 0:
                world.deliver()
            case 1:
                if world.driver.held:
                    world.driver.resolve()
                world.driver.tick()
            case _:
                world.settle()
        world.receive()
        assert sorted(world.mine) == sorted(world.acked)
    while world.driver.held or world.queue or world.driver.woken:
        if world.queue:
            world.deliver()
        world.driver.settle()
        world.receive()
    assert sorted(world.sent) == sorted(world.unsettled)
    assert sorted([*world.acked, *world.automatic, *world.unsettled.values()]) == list(range(200))
    world.driver.session.close()
