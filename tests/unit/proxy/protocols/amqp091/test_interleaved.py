"""Contents of many channels, interleaved and cut anywhere, with random verdicts, compared with a model.

The model knows the frames of each channel and the outcome of each publish, and reads what both peers were sent.
"""

from collections import defaultdict
from collections.abc import Iterator
from random import Random

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, BUSY, CLIENT, ORDERS, Driver
from amqp_playbook.spooled import SpooledDriver

from proxy.deciding.batch import Batch, Hold, Request, Side, Ticket, Verdict
from proxy.protocols.amqp091.session import AMQP091Options
from proxy.spool.spool import SpoolSettings

CHANNELS = range(1, 17)
CONFIRMS = range(1, 9)
# Channels that either peer closes now and then, and the client opens again. Their contents are not checked.
CLOSED = range(17, 21)


def interleaved(random: Random, streams: list[list[list[bytes]]]) -> bytes:
    queues = [[frame for each in stream for frame in each] for stream in streams]
    out = []
    while any(queues):
        queue = random.choice([each for each in queues if each])
        count = random.choice((1, 1, 2, 5))
        out += queue[:count]
        del queue[:count]
    return b"".join(out)


def whole(data: bytes | bytearray, at: int) -> Iterator[tuple[frames.Frame, int]]:
    """Yield the complete frames from a position on, with their ends."""
    while at + 7 <= len(data):
        stop = at + int.from_bytes(data[at + 3 : at + 7]) + 8
        if stop > len(data):
            return
        (frame,) = frames.read(bytes(data[at:stop]))
        at = stop
        yield frame, at


class Model:
    """A client, a broker and a limiter that share only the protocol."""

    def __init__(self, random: Random, limits: tuple[str, ...] = (), *, spools: bool = False) -> None:
        self.random = random
        self.sent: dict[int, list[bytes]] = defaultdict(list)
        self.refused: set[int] = set()
        self.serial = 0
        options = AMQP091Options(
            max_waiting_bytes=random.choice((100_000, 1 << 24) if spools else (0, 10_000, 1 << 24))
        )
        self.spools = spools
        if spools:
            settings = SpoolSettings(memory_bytes=random.choice((1, 20_000, 1 << 24)))
            self.driver: Driver = SpooledDriver(self.decide, settings=settings, limits=limits, options=options)
            self.driver.later = lambda request: request.refusal == "impossible" or random.random() < 0.8
        else:
            self.driver = Driver(self.decide, limits=limits, options=options)
        self.driver.open(CHANNELS, confirms=CONFIRMS)
        for channel in CHANNELS:
            self.driver.give(CLIENT, frames.consume(channel, "q", "c"))
            self.driver.give(BROKER, frames.consume_ok(channel, "c"))
        self.driver.forget()
        # By channel: publishes that the broker has numbered and not answered, and that the client waits for.
        self.numbered: dict[int, int] = defaultdict(int)
        self.unanswered: dict[int, list[int]] = defaultdict(list)
        self.by_number: dict[tuple[int, int], int] = {}
        self.deliveries: dict[int, list[int]] = defaultdict(list)
        self.from_broker = bytearray()
        # Closed channels: open at the client, closed by it and not yet agreed. Not yet closed by the broker, and not
        # answered. And those that either has handled.
        self.used: set[int] = set()
        self.closes: set[int] = set()
        self.hears_close: set[int] = set()
        self.lives: set[int] = set()
        self.answers_close: set[int] = set()
        self.client_looked = self.broker_looked = 0

    def decide(self, request: Request) -> Verdict | None:
        dice = self.random.random()
        if dice < (0.3 if self.spools else 0.6):
            return None
        if dice < (0.4 if self.spools else 0.75) and request.refusal == "answered":
            return BUSY
        return Hold(ORDERS, "rule", Ticket(lambda: None), self.spools and dice < 0.95)

    def publishes(self) -> bytes:
        streams = []
        for channel in self.random.sample(CHANNELS, self.random.randint(1, 16)):
            stream: list[list[bytes]] = []
            for _ in range(self.random.randint(1, 6)):
                dice = self.random.random()
                if dice < 0.8:
                    self.serial += 1
                    key = self.random.choice(("orders", "a", "b"))
                    body = b"%d:%s" % (self.serial, b"x" * self.random.choice((0, 3, 50, 3000)))
                    headers = {"CC": ["copy"]} if self.random.random() < 0.2 else None
                    size = self.random.choice((7, 100, 4088))
                    content = frames.publish(channel, "", key, body, headers=headers, body_bytes=size)
                    stream.append(content)
                elif dice < 0.9:
                    stream.append([frames.ack(channel, 1)])
                else:
                    stream.append([frames.declare(channel, "queue")])
            self.sent[channel] += [b"".join(each) for each in stream]
            streams.append(stream)
        return interleaved(self.random, streams + self.closed_by_client())

    def closed_by_client(self, *, last: bool = False) -> list[list[list[bytes]]]:
        self.client_reads()
        streams = []
        for channel in CLOSED:
            stream: list[list[bytes]] = []
            if channel in self.hears_close:
                self.hears_close.remove(channel)
                self.used.discard(channel)
                stream.append([frames.close_ok(channel)])
            if not last and channel not in self.used | self.closes:
                self.used.add(channel)
                stream += [[frames.channel_open(channel)], [frames.confirm_select(channel)] * (channel % 2)]
            if channel in self.used:
                for _ in range(self.random.randint(0, 3)):
                    body = b"x" * self.random.choice((0, 50, 3000))
                    stream.append(frames.publish(channel, "", self.random.choice(("orders", "a")), body))
                if last or self.random.random() < 0.3:
                    self.used.remove(channel)
                    self.closes.add(channel)
                    stream.append([frames.close(channel)])
            streams.append(stream)
        return streams

    def closed_by_broker(self, *, last: bool = False) -> list[list[list[bytes]]]:
        streams = []
        for channel in CLOSED:
            stream: list[list[bytes]] = []
            if channel in self.answers_close:
                self.answers_close.remove(channel)
                self.lives.discard(channel)
                stream.append([frames.close_ok(channel)])
            elif channel in self.lives and not last and self.random.random() < 0.3:
                self.lives.remove(channel)
                stream += [frames.returned(channel, b"y" * 5000), [frames.close(channel, 404)]]
            streams.append(stream)
        return streams

    def client_reads(self) -> None:
        for frame, at in whole(self.driver.written[CLIENT], self.client_looked):
            self.client_looked = at
            if frame.channel in CLOSED and frame.kind == 1:
                if frame.method == (20, 40):
                    self.hears_close.add(frame.channel)
                elif frame.method == (20, 41):
                    self.closes.remove(frame.channel)

    def close_all(self) -> None:
        """Let the client close its channels. Each peer sees all closes."""
        driver = self.driver
        for _ in range(8):
            driver.give(CLIENT, interleaved(self.random, self.closed_by_client(last=True)))
            driver.settle(all_read=False)
            self.broker_reads()
            driver.give(BROKER, interleaved(self.random, self.closed_by_broker(last=True)))
        driver.settle()
        self.client_reads()
        assert not (self.used | self.closes | self.hears_close | self.answers_close)

    def broker_says(self) -> bytes:
        self.broker_reads()
        streams = []
        for channel in self.random.sample(CHANNELS, 5):
            stream = []
            for _ in range(self.random.randint(0, 3)):
                self.serial += 1
                self.deliveries[channel].append(self.serial)
                body = b"%d:%s" % (self.serial, b"y" * self.random.choice((0, 10, 5000)))
                stream.append(frames.deliver(channel, 1, body))
            waiting = self.unanswered[channel]
            while waiting and self.random.random() < 0.7:
                tag = self.random.choice(waiting)
                multiple = self.random.random() < 0.5
                make = self.random.choice((frames.ack, frames.nack))
                stream.append([make(channel, tag, multiple=multiple)])
                waiting[:] = [each for each in waiting if (each > tag if multiple else each != tag)]
            streams.append(stream)
        return interleaved(self.random, streams + self.closed_by_broker())

    def broker_reads(self) -> None:
        """Number complete publishes."""
        data = self.driver.written[BROKER]
        self.from_broker += data
        data.clear()
        got: dict[int, int] = defaultdict(int)
        opened: dict[int, int] = {}
        for frame, at in whole(self.from_broker, 0):
            if frame.channel in CLOSED and frame.kind == 1 and at > self.broker_looked:
                if frame.method == (20, 10):
                    self.lives.add(frame.channel)
                elif frame.method == (20, 40):
                    self.answers_close.add(frame.channel)
            self.broker_looked = max(at, self.broker_looked)
            if frame.kind == 2:
                opened[frame.channel] = int.from_bytes(frame.payload[4:12])
            elif frame.kind == 3:
                opened[frame.channel] -= len(frame.payload)
                got[frame.channel] += not opened[frame.channel]
        for channel in CONFIRMS:
            while self.numbered[channel] < got[channel]:
                self.numbered[channel] += 1
                self.unanswered[channel].append(self.numbered[channel])

    def play(self, steps: int) -> None:
        """Random events of a driver."""
        driver, random = self.driver, self.random
        coming = dict.fromkeys(Side, b"")
        deciding: dict[Side, Batch | None] = dict.fromkeys(Side)
        ticked: Batch | None = None
        longest = 1
        for step in range(steps):
            if step % 50 == 0:
                longest = random.choice((30, 300, 1000, 5000, 100_000))
                driver.session.alarm(random.choice(("", "", "low")), 0)
                driver.take()
            if isinstance(driver, SpooledDriver):
                self.use_disk(driver)
            dice, side = random.random(), random.choice((CLIENT, CLIENT, BROKER))
            batch = deciding[side]
            if batch is not None:
                if dice < 0.4:
                    deciding[side] = None
                    driver.finish(batch)
                    coming[side] = driver.left[side] + coming[side]
            elif dice < 0.5:
                if driver.must_wait(side):
                    continue
                if not coming[side]:
                    coming[side] = self.publishes() if side is CLIENT else self.broker_says()
                chunk = coming[side][: driver.max_bytes(side, random.randint(1, longest))]
                coming[side] = coming[side][len(chunk) :]
                batch = deciding[side] = driver.receive(side, chunk)
                if batch is None:
                    coming[side] = driver.left[side] + coming[side]
            elif dice < (0.65 if self.spools else 0.8):
                self.resolve_one()
            elif ticked is not None:
                driver.finish_tick(ticked)
                ticked = None
            elif driver.woken:
                ticked = driver.tick(finish=False)
        for side, batch in deciding.items():
            if batch is not None:
                driver.finish(batch)
                coming[side] = driver.left[side] + coming[side]
        if ticked is not None:
            driver.finish_tick(ticked)
        driver.alarm("")
        for side in Side:
            driver.give(side, coming[side])
        self.close_all()
        self.broker_reads()
        for channel in CONFIRMS:
            if self.unanswered[channel]:
                driver.give(BROKER, frames.ack(channel, max(self.unanswered[channel]), multiple=True))
                self.unanswered[channel].clear()
        self.client_reads()

    def use_disk(self, driver: SpooledDriver) -> None:
        dice, disk = self.random.random(), driver.disk
        if dice < 0.1:
            driver.pass_time(0.1)
        elif dice < 0.4 and disk.writes:
            disk.finish_write()
        elif dice < 0.7 and disk.reads:
            disk.finish_read(self.random.randrange(len(disk.reads)))

    def resolve_one(self) -> None:
        held = self.driver.held
        if not held:
            return
        first = {request.order_key: request for request, _ in reversed(held.values())}
        request = self.random.choice(list(first.values()))
        refused = request.refusal == "answered" and self.random.random() < 0.4
        self.driver.resolve(request, BUSY if refused else None)

    def check(self) -> None:
        arrived: dict[int, list[frames.Message]] = defaultdict(list)
        for message in frames.messages(bytes(self.from_broker)):
            arrived[message.channel].append(message)
        answers: dict[int, list[frames.Message]] = defaultdict(list)
        delivered: dict[int, list[int]] = defaultdict(list)
        for message in frames.messages(bytes(self.driver.written[CLIENT])):
            if message.channel in CLOSED:
                continue
            if message.method == (60, 60):
                delivered[message.channel].append(int(message.body.split(b":")[0]))
            else:
                answers[message.channel].append(message)
        assert delivered == {channel: each for channel, each in self.deliveries.items() if each}
        for channel in CHANNELS:
            self.check_channel(channel, arrived[channel], answers[channel])
        assert self.driver.session.in_flight() == 0
        assert not any(memory.taken_bytes for memory in self.driver.session._memory.values())

    def check_channel(self, channel: int, arrived: list[frames.Message], answers: list[frames.Message]) -> None:
        sent = [message for each in self.sent[channel] for message in frames.messages(each)]
        publishes = [each for each in sent if each.header is not None]
        went = [each for each in arrived if each.header is not None]
        refused = [each for each in publishes if each not in went]
        assert len(set(went)) == len(went)
        assert set(went) <= set(publishes)
        for arguments in {each.arguments for each in publishes}:
            of_key = [each for each in publishes if each.arguments == arguments and each not in refused]
            assert [each for each in went if each.arguments == arguments] == of_key
        # Methods, with the publishes before and after each that waits.
        assert [each for each in arrived if each.header is None] == [each for each in sent if each.header is None]
        numbers = [index for index, each in enumerate(sent) if each.method == (50, 10)]
        places = [index for index, each in enumerate(arrived) if each.method == (50, 10)]
        for number, place in zip(numbers, places, strict=True):
            before = {each for each in sent[:number] if each.header is not None and each not in refused}
            assert {each for each in arrived[:place] if each.header is not None} == before
        if channel not in CONFIRMS:
            assert not refused
            assert not answers
            return
        self.check_confirms(publishes, went, refused, answers)

    def check_confirms(
        self,
        publishes: list[frames.Message],
        went: list[frames.Message],
        refused: list[frames.Message],
        answers: list[frames.Message],
    ) -> None:
        open_numbers = set(range(1, len(publishes) + 1))
        refused_numbers = {publishes.index(each) + 1 for each in refused}
        nacked = set()
        for each in answers:
            assert each.method in {(60, 80), (60, 120)}
            tag, multiple = int.from_bytes(each.arguments[:8]), each.arguments[8] & 1
            numbers = {number for number in open_numbers if number <= tag} if multiple else {tag}
            assert numbers <= open_numbers
            open_numbers -= numbers
            if multiple:
                assert not numbers & refused_numbers
            elif tag in refused_numbers:
                assert each.method == (60, 120)
            nacked |= numbers & refused_numbers
        assert not open_numbers
        assert nacked == refused_numbers


SEEDS = [pytest.param(seed, marks=[pytest.mark.long] * (seed > 3)) for seed in range(10)]


@pytest.mark.parametrize("limits", [(), ("delivery",)], ids=["publishes", "deliveries"])
@pytest.mark.parametrize("seed", SEEDS)
def test_forwarded_messages_equal_the_sent_ones(seed: int, limits: tuple[str, ...]) -> None:
    model = Model(Random(seed), limits)
    model.play(400)
    model.check()
    assert any(request.consumes for request in model.driver.requests) is bool(limits)


@pytest.mark.parametrize("seed", SEEDS)
def test_spooled_messages_are_forwarded_unchanged(seed: int) -> None:
    spooled_count = 0
    for random in (Random(seed), Random(100 + seed), Random(200 + seed)):
        model = Model(random, spools=True)
        model.play(400)
        model.check()
        driver = model.driver
        assert isinstance(driver, SpooledDriver)
        assert driver.spooled_count() == 0
        assert not driver.spool.queues()
        assert not driver.stage.out_of_credit
        spooled_count += driver.spool.figures().in_total
    assert spooled_count


@pytest.mark.parametrize("seed", SEEDS)
def test_unlimited_frames_pass_unchanged(seed: int) -> None:
    random = Random(seed)
    model = Model(random)
    model.driver.decide = lambda _: None
    to_broker = b"".join(model.publishes() for _ in range(10))
    to_client = b"".join(model.broker_says() for _ in range(10))
    model.driver.give(CLIENT, to_broker, random, random.choice((10, 100, 1000, 100_000)))
    model.driver.give(BROKER, to_client, random, random.choice((10, 100, 1000, 100_000)))
    # Only the method of a content is forwarded late, with its header: frames of other channels may overtake it.
    for written, sent in ((model.driver.written[BROKER], to_broker), (model.driver.written[CLIENT], to_client)):
        assert len(written) == len(sent)
        for channel in CHANNELS:
            assert of_channel(channel, bytes(written)) == of_channel(channel, sent)


def of_channel(channel: int, data: bytes) -> list[frames.Frame]:
    return [each for each in frames.read(data) if each.channel == channel]
