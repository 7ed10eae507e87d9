"""A publisher or a consumer of durable messages with a record on disk, which can be killed at any time."""

import contextlib
import heapq
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.amqp import AmqpClient, AmqpError, Event, method, publish

# Few enough that Sluice waits for consumers, except in an occasional burst.
AT_ONCE, OUTSTANDING, PAUSE_S = 6, 12, 0.01
BURST, BURST_EVERY = 40, 100
PREFETCH = 200
# One in this many deliveries is first returned.
_ONE_IN = 50
_CONNECT_PAUSE_S = 0.2
_LOOK_S = 0.004


class Record:
    """Lines of a file that only this process writes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, ids: list[str]) -> None:
        """Add lines. The kernel has them when this returns."""
        if ids:
            data = "".join(f"{each}\n" for each in ids).encode()
            assert os.write(self._file, data) == len(data)


def read_record(path: Path) -> list[str]:
    """Return the complete lines of a record."""
    return [] if not path.exists() else path.read_text(encoding="ascii").split("\n")[:-1]


def read_id(body: bytes) -> str:
    return body.partition(b" ")[0].decode("ascii")


def publish_on(client: AmqpClient, record: Record, exchange: str, key: str, ids: Iterator[str]) -> None:
    channel = client.open_channel(confirms=True)
    names = [""]
    written = 0
    for turn in itertools.count(1):
        at_once = BURST if turn % BURST_EVERY == 0 else AT_ONCE
        frames = []
        for name in itertools.islice(ids, at_once):
            client.number_publish(channel)
            names.append(name)
            size = 20 + len(names) * 37 % 1500
            frames.append(
                publish(channel, key, f"{name} ".encode().ljust(size, b"."), exchange=exchange, delivery_mode=2)
            )
        client.send(*frames)
        with contextlib.suppress(AmqpError):
            client.wait_for_confirms(channel, at_most=OUTSTANDING - AT_ONCE, timeout_s=0.2)
        # Keep other outcomes for the next time.
        acked = client.confirmed[channel].acked
        up_to = len(acked)
        record.write([names[number] for number in acked[written:up_to]])
        written = up_to
        while client.end is None and client.confirmed[channel].outstanding > OUTSTANDING:
            time.sleep(_LOOK_S)
        if client.end is not None:
            return
        time.sleep(PAUSE_S)


def consume_on(client: AmqpClient, record: Record, queue: str, hold_s: float, chance: random.Random) -> None:
    """Consume until the connection is gone. Each message is acknowledged up to ``hold_s`` after it came."""
    channel = client.open_channel(prefetch=PREFETCH)
    client.call(channel, "basic.consume", queue=queue)
    # One in two acknowledges several messages at once.
    together = chance.random() < 0.5
    held: list[tuple[float, int, Event]] = []
    while client.end is None:
        now_s = time.monotonic()
        for event in client.take("basic.deliver"):
            due_s = now_s + (hold_s if together else chance.uniform(0, hold_s))
            heapq.heappush(held, (due_s, event["delivery_tag"], event))
        due: list[Event] = []
        while held and held[0][0] <= now_s:
            due.append(heapq.heappop(held)[2])
        if due:
            acknowledge(client, channel, record, due, chance if not together else None)
        time.sleep(_LOOK_S)


def acknowledge(
    client: AmqpClient, channel: int, record: Record, due: list[Event], chance: random.Random | None
) -> None:
    """Record and acknowledge deliveries. With ``chance`` some are returned."""
    if chance is None:
        record.write([read_id(event.body) for event in due])
        client.send(method(channel, "basic.ack", delivery_tag=due[-1]["delivery_tag"], multiple=True))
        return
    back = {event["delivery_tag"] for event in due if chance.randrange(_ONE_IN) == 0}
    record.write([read_id(event.body) for event in due if event["delivery_tag"] not in back])
    client.send(
        *(
            method(channel, "basic.nack", delivery_tag=tag, requeue=True)
            if tag in back
            else method(channel, "basic.ack", delivery_tag=tag)
            for tag in (event["delivery_tag"] for event in due)
        )
    )


def retry_until_timeout(address: str, work: Callable[[AmqpClient], None]) -> None:
    """Connect and work, until this process is killed."""
    while True:
        with contextlib.suppress(AmqpError, OSError), contextlib.closing(AmqpClient(address)) as client:
            work(client)
        time.sleep(_CONNECT_PAUSE_S)


def main(role: str, address: str, path: str, *more: str) -> None:
    record = Record(path)
    if role == "publish":
        name, exchange, key = more
        ids = (f"{name}-{number}" for number in itertools.count(1))
        retry_until_timeout(address, lambda client: publish_on(client, record, exchange, key, ids))
    else:
        queue, hold_ms, seed = more
        chance = random.Random(seed)
        retry_until_timeout(address, lambda client: consume_on(client, record, queue, int(hold_ms) / 1000, chance))


if __name__ == "__main__":
    main(*sys.argv[1:])
