"""Publishes with many unconfirmed messages and consumes, for ever. See ``ledger`` for its output."""

import contextlib
import itertools
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.amqp import AmqpClient, AmqpError, method

AT_ONCE, EVERY_S = 64, 0.01
_EACH_CONNECTION = 300
_PREFETCH = 50
_PADDING = 200
_PAUSE_S = 0.2

_ids = itertools.count(1)
_saying = threading.Lock()


def _say(what: str, number: int) -> None:
    with _saying:
        print(what, number, int(time.time() * 1000), flush=True)


def _publish(address: str, queue: str) -> None:
    told = [0, 0]
    sent: list[int] = []
    with AmqpClient(address) as client:
        client.call(client.open_channel(), "queue.declare", queue=queue, durable=True)
        channel = client.open_channel(confirms=True)
        confirmed = client.confirmed[channel]

        def tell() -> None:
            for place, (word, numbers) in enumerate((("stored", confirmed.acked), ("refused", confirmed.nacked))):
                for number in numbers[told[place] :]:
                    _say(word, sent[number - 1])
                    told[place] += 1

        try:
            for _ in range(_EACH_CONNECTION):
                # Data written after the end of the stream is lost: a closing peer may read on for a while.
                if client.end is not None:
                    break
                sent.append(next(_ids))
                client.publish(channel, queue, b"%d" % sent[-1] + b" " * _PADDING, delivery_mode=2)
                client.wait_for_confirms(channel, at_most=AT_ONCE - 1)
                tell()
                time.sleep(EVERY_S)
            client.wait_for_confirms(channel)
        finally:
            tell()
            answered = {*confirmed.acked[: told[0]], *confirmed.nacked[: told[1]]}
            for place, number in enumerate(sent, 1):
                if place not in answered:
                    _say("unknown", number)


def _consume(address: str, queue: str) -> None:
    with AmqpClient(address) as client:
        client.call(client.open_channel(), "queue.declare", queue=queue, durable=True)
        channel = client.open_channel(prefetch=_PREFETCH)
        client.call(channel, "basic.consume", queue=queue, consumer_tag="c")
        while True:
            delivered = client.expect("basic.deliver", timeout_s=24 * 3600)
            _say("got", int(delivered.body))
            client.send(method(channel, "basic.ack", delivery_tag=delivered["delivery_tag"]))


def main(address: str, queue: str) -> None:
    print("started", flush=True)

    def consume() -> None:
        while True:
            with contextlib.suppress(AmqpError, OSError):
                _consume(address, queue)
            time.sleep(_PAUSE_S)

    threading.Thread(target=consume, daemon=True).start()
    while True:
        with contextlib.suppress(AmqpError, OSError):
            _publish(address, queue)
            continue
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
