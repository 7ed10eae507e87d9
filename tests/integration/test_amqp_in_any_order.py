"""Several AMQP channels do whatever they like at once: what they are told is what the broker has, in its order."""

import os
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from harness.amqp import AmqpClient, method, publish, split_frames
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

# A run of some seconds goes over the limits all the time, on slow machines too, without waiting for them much.
_LIMITS = """
[[limits]]
kind = "queue"
name = "*-refused"
rate = 0

[[limits]]
kind = "queue"
name = "*-over"
rate = 150
burst_s = 0.1

[[limits]]
kind = "queue"
name = "*-held"
rate = 150
burst_s = 0.1
action = "delay"
max_delay_s = 1

[[limits]]
kind = "delivery"
name = "*-taken"
rate = 150
"""
_QUEUES = ("free", "over", "held", "refused", "taken", "copied")
_CHANNELS = 16
_LARGE_BODY_BYTES = 1024 * 1024
# TESTED_AMQP_SEEDS=0-999 runs a thousand of them.
_FIRST, _, _LAST = os.environ.get("TESTED_AMQP_SEEDS", "0-5").partition("-")
_STEPS = int(os.environ.get("TESTED_AMQP_STEPS", "400"))


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port('127.0.0.1')}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", config=_LIMITS)


@dataclass
class _Published:
    """One publish: its body says which it is.

    Attributes:
        queue: where it went.
        copied: whether it went to the queue of copies, too.
        body: nobody else's.
        number: of a confirm channel; 0 without confirms.
        sure: it is stored, or the channel ended with an error before anybody could know.
    """

    queue: str
    copied: bool
    body: bytes
    number: int
    sure: bool = True


@dataclass
class _Channel:
    """One channel from its opening to its end."""

    number: int
    mode: str
    published: list[_Published] = field(default_factory=list)
    uncommitted: list[_Published] = field(default_factory=list)


class _Run:
    """A connection whose channels act at random, and what they did.

    Args:
        client: the connection.
        random: what decides.
        prefix: of the names of its queues.
    """

    def __init__(self, client: AmqpClient, dice: random.Random, prefix: str) -> None:
        self._client = client
        self._dice = dice
        self._prefix = prefix
        self._serial = 0
        self.ended: list[tuple[_Channel, dict[str, list[int]]]] = []
        self.channels = [self._open(client.open_channel()) for _ in range(_CHANNELS)]
        self.taken: list[bytes] = []
        self._consumer = client.open_channel(prefetch=20)
        client.call(self._consumer, "basic.consume", queue=f"{prefix}-taken", consumer_tag="c")

    def step(self) -> None:
        """Let some channels publish at once, their frames in turns and cut anywhere; then one does something else."""
        streams = [self._publishes(channel) for channel in self._dice.sample(self.channels, self._dice.randrange(1, 9))]
        data = bytearray()
        while streams := [stream for stream in streams if stream]:
            data += self._dice.choice(streams).pop(0)
        while data:
            cut = self._dice.choice((1, 7, 100, 5000, 100_000))
            self._client.send(bytes(data[:cut]))
            del data[:cut]
        self._take()
        self._act(self._dice.randrange(_CHANNELS))

    def finish(self) -> None:
        """End all channels as they should be ended, once their publishes are answered."""
        for place in range(_CHANNELS):
            self._end(place)

    def _open(self, number: int) -> _Channel:
        channel = _Channel(number, self._dice.choice(("plain", "confirm", "confirm", "tx")))
        if channel.mode == "confirm":
            self._client.call(number, "channel.close", reply_code=200)
            self._client.open_channel(number, confirms=True)
        elif channel.mode == "tx":
            self._client.call(number, "tx.select")
        return channel

    def _publishes(self, channel: _Channel) -> list[bytes]:
        frames = []
        for _ in range(self._dice.randrange(1, 12)):
            # What cannot be refused waits for ever where nothing passes.
            queue = self._dice.choice(_QUEUES[: 4 if channel.mode == "confirm" else 3])
            copied = self._dice.random() < 0.1
            self._serial += 1
            large = self._dice.random() < 0.005
            size_bytes = self._dice.randrange(_LARGE_BODY_BYTES) if large else self._dice.choice((0, 10, 300, 9000))
            body = b"%d " % self._serial + bytes(size_bytes)
            number = self._client.number_publish(channel.number) if channel.mode == "confirm" else 0
            one = _Published(f"{self._prefix}-{queue}", copied, body, number)
            (channel.uncommitted if channel.mode == "tx" else channel.published).append(one)
            headers = {"headers": {"CC": [f"{self._prefix}-copied"]}} if copied else {}
            frames += split_frames(publish(channel.number, one.queue, body, frame_max=4096, **headers))
        return frames

    def _act(self, place: int) -> None:
        channel = self.channels[place]
        act = self._dice.choice(("declare", "declare", "get", "confirms", "commit", "rollback", "close", "fail"))
        if act == "declare":
            self._client.call(channel.number, "queue.declare", queue=f"{self._prefix}-free", passive=True)
        elif act == "get":
            self._client.call(channel.number, "basic.get", queue=f"{self._prefix}-none", no_ack=True)
        elif act == "confirms" and channel.mode == "confirm":
            self._client.wait_for_confirms(channel.number)
        elif act == "commit" and channel.mode == "tx":
            self._commit(channel)
        elif act == "rollback" and channel.mode == "tx":
            self._client.call(channel.number, "tx.rollback")
            channel.uncommitted.clear()
        elif act == "close":
            self._end(place)
            self._reopen(place)
        elif act == "fail" and self._dice.random() < 0.3:
            self._fail(place)

    def _commit(self, channel: _Channel) -> None:
        self._client.call(channel.number, "tx.commit")
        channel.published += channel.uncommitted
        channel.uncommitted.clear()

    def _end(self, place: int) -> None:
        channel = self.channels[place]
        if channel.mode == "confirm":
            self._client.wait_for_confirms(channel.number)
        elif channel.mode == "tx":
            self._commit(channel)
        self._client.call(channel.number, "channel.close", reply_code=200)
        self._note(channel)

    def _fail(self, place: int) -> None:
        """Make the broker close the channel: what was held then is given up."""
        channel = self.channels[place]
        data = publish(channel.number, "key", b"x", exchange="missing")
        if channel.mode == "confirm":
            self._client.number_publish(channel.number)
        elif channel.mode == "tx":
            # In one write: once the broker has closed the channel, nothing may follow the agreement to that.
            data += method(channel.number, "tx.commit")
        self._client.send(data)
        self._client.expect("channel.close", channel=channel.number)
        for one in (*channel.published, *channel.uncommitted):
            one.sure = False
        channel.published += channel.uncommitted
        self._note(channel)
        self._reopen(place)

    def _reopen(self, place: int) -> None:
        number = self.channels[place].number
        self._client.confirmed.pop(number, None)
        self.channels[place] = self._open(self._client.open_channel(number))

    def _note(self, channel: _Channel) -> None:
        confirmed = self._client.confirmed.get(channel.number)
        answers = {"acked": [], "nacked": []}
        if channel.mode == "confirm":
            assert confirmed is not None
            assert confirmed.again == []
            answers = {"acked": list(confirmed.acked), "nacked": list(confirmed.nacked)}
        self.ended.append((channel, answers))

    def _take(self) -> None:
        for event in self._client.take("basic.deliver"):
            self.taken.append(event.body)
            assert not event["redelivered"]
            self._client.send(method(self._consumer, "basic.ack", delivery_tag=event["delivery_tag"]))


def _check(run: _Run, stored: dict[str, list[bytes]], prefix: str) -> None:
    places = {queue: {body: place for place, body in enumerate(bodies)} for queue, bodies in stored.items()}
    expected: dict[str, set[bytes]] = defaultdict(set)
    allowed: dict[str, set[bytes]] = defaultdict(set)
    for channel, answers in run.ended:
        acked, nacked = set(answers["acked"]), set(answers["nacked"])
        order: dict[str, list[int]] = defaultdict(list)
        for one in channel.published:
            queues = [one.queue, f"{prefix}-copied"] if one.copied else [one.queue]
            stays = one.number in acked if channel.mode == "confirm" else one.sure
            # An answer that did not come before the channel failed may have been either.
            gone = one.number in nacked if channel.mode == "confirm" else False
            for queue in queues:
                if stays:
                    expected[queue].add(one.body)
                if not gone and (stays or not one.sure):
                    allowed[queue].add(one.body)
            if not one.copied and one.body in places[one.queue]:
                order[one.queue].append(places[one.queue][one.body])
        assert all(order[queue] == sorted(order[queue]) for queue in order), channel.mode
    for queue, bodies in stored.items():
        assert len(set(bodies)) == len(bodies), queue
        assert expected[queue] <= set(bodies) <= allowed[queue], queue


def _check_seed(seed: int, steps: int, rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    prefix, taken = f"{seed}-{steps}", steps * 10
    with rabbitmq.connect() as filling:
        channel = filling.open_channel(confirms=True)
        for queue in (*_QUEUES, "none"):
            filling.call(channel, "queue.declare", queue=f"{prefix}-{queue}")
        for number in range(taken):
            filling.publish(channel, f"{prefix}-taken", b"%d" % number)
        filling.wait_for_confirms(channel)
    # Without heartbeats, which would come between the two parts of a frame that is cut.
    with AmqpClient(sluice.routes[0].listen, frame_max=4096) as client:
        run = _Run(client, random.Random(seed), prefix)
        for _ in range(steps):
            run.step()
        run.finish()
        assert client.end is None
    assert run.taken == [b"%d" % number for number in range(len(run.taken))]
    queues = [f"{prefix}-{queue}" for queue in _QUEUES if queue != "taken"]
    _check(run, {queue: rabbitmq.drain(queue) for queue in queues}, prefix)
    # All of it took part.
    assert len(run.taken) > 20
    metrics = sluice.metrics()
    for queue, verdict in (("refused", "refuse"), ("over", "refuse"), ("over", "pass"), ("held", "pass")):
        resource = f"{prefix}-{queue}"
        assert metrics.total("sluice_requests_total", kind="queue", resource=resource, verdict=verdict) > 0, resource


def test_what_channels_are_told_is_what_the_broker_has(rabbitmq: RabbitMQ, sluice: Sluice) -> None:
    _check_seed(1000, 60, rabbitmq, sluice)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(int(_FIRST), int(_LAST or _FIRST) + 1))
def test_what_channels_are_told_is_what_the_broker_has_for_longer(
    seed: int, rabbitmq: RabbitMQ, sluice: Sluice
) -> None:
    _check_seed(seed, _STEPS, rabbitmq, sluice)
