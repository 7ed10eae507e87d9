"""The guarantee, whatever publishers, consumers and the broker do: each confirmed message was written or consumed.

All bodies are different. The model records confirms to publishers, acks of consumers, and messages on the broker's
disk.
"""

from collections.abc import Sequence
from random import Random

import pytest
from amqp_playbook import frames
from amqp_playbook.broker import mode_of
from amqp_playbook.driver import BUSY, CLIENT, ORDERS, Driver
from amqp_playbook.world import NS, World

from proxy.deciding.batch import Hold, Request, Ticket, Verdict
from proxy.protocols.amqp091 import wire
from proxy.protocols.base import Confirming

CHANNELS = (1, 2)
QUEUES = ("orders", "copies")
RULE = Confirming(4096, 5 * NS, None, True)
HEADERS = (b"", frames.short("a") + b"t\1", frames.short("n") + b"F" + frames.long(frames.short("x") + b"V"))


class Publisher:
    """One publishing session.

    ``sent``: bodies by channel, from the first on. ``told``: bodies with an answer.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.sent: dict[int, list[bytes]] = {number: [] for number in CHANNELS}
        self.told: dict[bytes, str] = {}
        self.closed: set[int] = set()


# Invalid delivery tags: 0, one that was not sent, and one that is settled.
WRONG = ("zero", "beyond", "settled")


class Machine:
    def __init__(self) -> None:
        self.rules = {"queue:orders": RULE, "exchange:events": RULE._replace(queues=2)}
        self.world = World(self.rules, queues=QUEUES, bindings={"events": QUEUES}, max_pending_bytes=60_000)
        self.rules = self.world.rules
        self.publishers: list[Publisher] = []
        self.consumers: list[Driver] = []
        # The sent messages by body: the header, and the number of queues.
        self.headers: dict[bytes, tuple[bytes, int]] = {}
        # The queues in which consumers acknowledged a body.
        self.acked: dict[bytes, set[str]] = {}
        # Deliveries of consumers by number: body and queue.
        self.unacked: dict[Driver, dict[int, tuple[bytes, str]]] = {}
        self.verdict = "pass"
        for _ in range(2):
            self.connect_publisher()
        self.connect_consumer("orders", automatic=False)
        self.connect_consumer("copies", automatic=False)

    def _decide(self, request: Request) -> Verdict | None:
        del request
        if self.verdict == "hold":
            return Hold(ORDERS, "rule", Ticket(lambda: None))
        return BUSY if self.verdict == "refuse" else None

    def connect_publisher(self) -> None:
        self.publishers.append(Publisher(self.world.publisher(*CHANNELS, decide=self._decide)))

    def connect_consumer(self, queue: str, automatic: bool) -> None:  # noqa: FBT001 - drawn by chance
        self.consumers = [driver for driver in self.consumers if self.takes(driver) or self.unacked[driver]]
        if len(self.consumers) < 5:
            driver = self.world.consumer(queue, automatic=automatic)
            self.consumers.append(driver)
            self.unacked[driver] = {}

    def publish(  # noqa: PLR0917 - drawn by chance
        self,
        which: int,
        channel: int,
        exchange: str,
        count: int,
        mode: int | None,
        headers: bytes | None,
        cut: int,
        verdict: str,
    ) -> None:
        publisher = self.publishers[which % len(self.publishers)]
        if channel in publisher.closed:
            return
        self.verdict, data = verdict, b""
        for _ in range(count):
            body = b"%d" % len(self.headers)
            key = "" if exchange else "orders"
            self.headers[body] = frames.header(len(body), mode=mode, headers=headers), 2 if exchange else 1
            publisher.sent[channel].append(body)
            data += frames.durable(channel, key, body, exchange, mode=mode, headers=headers)  # type: ignore[arg-type]
        publisher.driver.give(CLIENT, data[:cut])
        publisher.driver.give(CLIENT, data[cut:])

    def resolve(self, which: int, refuses: bool) -> None:  # noqa: FBT001 - drawn by chance
        driver = self.publishers[which % len(self.publishers)].driver
        self.verdict = "pass"
        if driver.held:
            driver.resolve(refuse=BUSY if refuses else None)

    def confirm(self, which: int, channel: int, count: int, multiple: bool, nack: bool) -> None:  # noqa: FBT001 - drawn by chance
        publisher = self.publishers[which % len(self.publishers)]
        if channel not in publisher.closed:
            self.world.broker.confirm(publisher.driver, channel, count, multiple=multiple, nack=nack)

    def confirm_out_of_order(self, which: int, channel: int, index: int) -> None:
        publisher = self.publishers[which % len(self.publishers)]
        self.world.broker.receive()
        if channel not in publisher.closed:
            unconfirmed = self.world.broker.channels[publisher.driver][channel].unconfirmed
            if unconfirmed:
                self.world.broker.confirm_one(publisher.driver, channel, index % len(unconfirmed))

    def deliver(self, which: int, count: int) -> None:
        driver = self.consumers[which % len(self.consumers)]
        broker = self.world.broker
        channel = broker.channels[driver].get(1)
        for _ in range(count):
            if channel is None or "c" not in channel.consumers or not broker.deliver(driver, 1, "c"):
                break
        self._hear(driver)

    def takes(self, driver: Driver) -> list[str]:
        channel = self.world.broker.channels[driver].get(1)
        return [] if channel is None else [queue for queue, _ in channel.consumers.values()]

    def _hear(self, driver: Driver) -> None:
        for message in driver.to_client():
            if message.method == (60, 60):
                header, _ = self.headers[message.body]
                assert message.header == header
                at = 1 + message.arguments[0]
                tag = int.from_bytes(message.arguments[at : at + 8], "big")
                queue = message.arguments[at + 11 :].decode()
                self.unacked[driver][tag] = message.body, queue
        driver.written[CLIENT].clear()

    def settle_delivery(self, which: int, at: int, multiple: bool, what: str) -> None:  # noqa: FBT001 - drawn by chance
        driver = self.consumers[which % len(self.consumers)]
        channel = self.world.broker.channels[driver].get(1)
        unacked = self.unacked[driver]
        if channel is None or not channel.unacked:
            return
        tags = list(channel.unacked)
        tag = tags[at % len(tags)]
        multiple = multiple and what != "reject"
        covered = [each for each in tags if each == tag or (multiple and each < tag)]
        if what == "recover":
            driver.give(CLIENT, frames.recover(1))
            unacked.clear()
        elif what == "ack":
            for each in covered:
                body, queue = unacked.pop(each)
                self.acked.setdefault(body, set()).add(queue)
            driver.give(CLIENT, frames.ack(1, tag, multiple=multiple))
        elif what == "reject":
            driver.give(CLIENT, frames.reject(1, tag, requeue=False))
        else:
            driver.give(CLIENT, frames.give_back(1, tag, multiple=multiple, requeue=what == "requeue"))
        self.world.broker.receive()
        self._hear(driver)

    def settle_wrongly(self, which: int, at: int, multiple: bool, what: str) -> None:  # noqa: FBT001 - drawn by chance
        """Let a client settle an invalid tag: the broker closes the channel, and later frames are void."""
        driver = self.consumers[which % len(self.consumers)]
        broker = self.world.broker
        channel = broker.channels[driver].get(1)
        if channel is None:
            return
        tags = [each for each in range(1, channel.delivered + 1) if each not in channel.unacked]
        tag = 0 if what == "zero" else channel.delivered + 1 + at
        if what == "settled" and tags:
            tag = tags[-1 - at % len(tags)]
        make = (frames.ack, frames.give_back)[at % 2]
        chunk = make(1, tag, multiple=multiple and tag > 0) + frames.ack(1, 0, multiple=True)
        driver.give(CLIENT, chunk + b"".join(frames.ack(1, each) for each in channel.unacked))
        broker.receive()
        assert len(broker.errors) == 1
        broker.errors.clear()
        driver.give(CLIENT, frames.close_ok(1))
        self.consumers.remove(driver)

    def end_consumer(self, which: int, how: str) -> None:
        driver = self.consumers[which % len(self.consumers)]
        broker = self.world.broker
        if how == "nothing":
            return
        if how == "lost":
            broker.lose(driver)
        elif 1 not in broker.channels[driver]:
            return
        elif how == "channel":
            driver.give(CLIENT, frames.close(1))
            broker.receive()
        elif how == "fault":
            broker.close_channel(driver, 1)
            driver.give(CLIENT, frames.close_ok(1))
        else:
            driver.give(CLIENT, frames.cancel(1, "c"))
            broker.receive()
            self._hear(driver)
            return
        self.consumers.remove(driver)
        if how == "lost":
            self.world.drivers.remove(driver)

    def end_publisher(self, which: int, channel: int, how: str) -> None:
        publisher = self.publishers[which % len(self.publishers)]
        broker, driver = self.world.broker, publisher.driver
        if how == "nothing":
            return
        if how == "lost":
            self._look(publisher)
            self.publishers.remove(publisher)
            broker.lose(driver)
            self.world.drivers.remove(driver)
            self.connect_publisher()
        elif how == "drain":
            driver.session.close_client("bye", driver.now_ns)
        elif channel not in publisher.closed:
            self._look(publisher)
            publisher.closed.add(channel)
            if how == "close":
                self.verdict = "pass"
                driver.give(CLIENT, frames.close(channel))
                while driver.held:
                    driver.resolve()
            else:
                broker.close_channel(driver, channel)
                driver.give(CLIENT, frames.close_ok(channel))
            self.world.settle()
            driver.written[CLIENT].clear()

    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    def change_rules(self, on: bool, persists: bool) -> None:  # noqa: FBT001 - drawn by chance
        self.rules.clear()
        if on:
            changed = RULE._replace(persists=persists)
            self.rules.update({"queue:orders": changed, "exchange:events": changed._replace(queues=2)})
        for driver in self.world.drivers:
            driver.rules_version += 1

    def _look(self, publisher: Publisher) -> None:
        """Read a publisher's answers: each number once, and all of them true."""
        broker = self.world.broker
        for message in publisher.driver.to_client():
            if message.method not in {(60, 80), (60, 120)} or message.channel in publisher.closed:
                continue
            what = "ack" if message.method == (60, 80) else "nack"
            number, sent = int.from_bytes(message.arguments[:8], "big"), publisher.sent[message.channel]
            up_to = number or len(sent)
            numbers: Sequence[int] = range(1, up_to + 1) if message.arguments[8] & 1 else (number,)
            fresh = [sent[each - 1] for each in numbers if sent[each - 1] not in publisher.told]
            if not message.arguments[8] & 1:
                assert fresh, f"{number} was answered twice"
            for body in fresh:
                publisher.told[body] = what
                header, queues = self.headers[body]
                if what == "ack" and mode_of(header) == 2:
                    consumed = len(self.acked.get(body, ())) >= queues
                    assert consumed or body in broker.written, f"{body!r} was neither written nor consumed"
        publisher.driver.written[CLIENT].clear()

    def keeps_its_promise(self) -> None:
        self.world.settle()
        for publisher in self.publishers:
            self._look(publisher)
        assert not self.world.broker.errors
        hub = self.world.hub.after_consume
        assert hub.waiting_bytes <= 60_000 + 5000

    def teardown(self) -> None:
        """Finish everything: each number is answered once, and nothing is left."""
        self.verdict = "pass"
        for publisher in self.publishers:
            driver = publisher.driver
            while driver.held or driver.woken:
                driver.resolve() if driver.held else driver.tick()
        self.world.pass_time(10)
        for publisher in self.publishers:
            for channel in CHANNELS:
                if channel not in publisher.closed:
                    self.world.broker.confirm(publisher.driver, channel, 1 << 20)
        self.keeps_its_promise()
        for publisher in self.publishers:
            assert publisher.driver.session.in_flight() == 0
            for channel in CHANNELS:
                if channel not in publisher.closed:
                    assert all(body in publisher.told for body in publisher.sent[channel])
        for queue in self.world.broker.queues.values():
            for stored in queue:
                mark = wire.read_mark(stored.header)
                assert (mark.header if mark else stored.header) == self.headers[stored.body][0]
        self.world.close()


@pytest.mark.parametrize("seed", range(20))
def test_the_promise_is_kept_whatever_happens(seed: int) -> None:
    """Mostly publish, confirm, deliver and acknowledge."""
    random = Random(seed)
    machine = Machine()
    for _ in range(250):
        which, channel, dice = random.randrange(10), random.choice(CHANNELS), random.random()
        some, queue = random.randint(1, 6), random.choice(QUEUES)
        if not any(queue in machine.takes(driver) for driver in machine.consumers):
            machine.connect_consumer(queue, random.random() < 0.02)
        elif dice < 0.24:
            verdict, exchange = random.choice(("pass",) * 8 + ("hold", "refuse")), random.choice(("", "events"))
            mode, headers = random.choice((2, 2, 2, 2, 1, None)), random.choice((None, *HEADERS))
            machine.publish(which, channel, exchange, some, mode, headers, random.randint(1, 400), verdict)
        elif dice < 0.36:
            machine.confirm(which, channel, 2 * some, random.random() < 0.5, random.random() < 0.05)
        elif dice < 0.4:
            machine.confirm_out_of_order(which, channel, some)
        elif dice < 0.44:
            machine.resolve(which, random.random() < 0.3)
        elif dice < 0.68:
            machine.deliver(which, 5 * some)
        elif dice < 0.93:
            what = random.choice(("ack",) * 30 + ("reject", "nack", "requeue", "requeue", "recover"))
            machine.settle_delivery(which, random.choice((0, 3, -1, -1)), random.random() < 0.8, what)
        elif dice < 0.97:
            machine.pass_time(random.choice((0.001, 0.01, 0.2) * 4 + (1.5, 6.0, 70.0)))
        elif random.random() < 0.2:
            machine.settle_wrongly(which, some, random.random() < 0.7, random.choice(WRONG))
        elif random.random() < 0.4:
            machine.end_publisher(which, channel, random.choice(("lost", "lost", "close", "fault", "drain")))
        elif random.random() < 0.6:
            machine.end_consumer(which, random.choice(("lost", "channel", "cancel", "fault")))
        else:
            machine.connect_consumer(queue, random.random() < 0.05)
            machine.change_rules(random.random() < 0.9, random.random() < 0.7)
        machine.keeps_its_promise()
    machine.teardown()
