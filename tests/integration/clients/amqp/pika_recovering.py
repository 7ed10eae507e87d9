"""Publishes and consumes with pika for ever, and connects again as its documentation shows.

Arguments: host, port, queue. Says ``started``; then prints a line of JSON every half second: how many messages were
confirmed and how many came back so far, how often it connected, and which errors it saw.
"""

import json
import sys
import time

import pika
import pika.exceptions

_STATE: dict = {"confirmed": 0, "consumed": 0, "connected": 0, "errors": {}}


def report() -> None:
    """Print one line."""
    print(json.dumps(_STATE), flush=True)


def on_message(channel: pika.channel.Channel, method: pika.spec.Basic.Deliver, *_: object) -> None:
    """Take one message."""
    channel.basic_ack(method.delivery_tag)
    _STATE["consumed"] += 1


def run(host: str, port: int, queue: str) -> None:
    """Publish and consume until the connection is gone."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.basic_consume(queue, on_message)
    _STATE["connected"] += 1
    told = time.monotonic()
    while True:
        channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
        _STATE["confirmed"] += 1
        connection.process_data_events(0.05)
        if time.monotonic() > told + 0.5:
            told = time.monotonic()
            report()


def main(host: str, port: str, queue: str) -> None:
    """Connect again whenever the connection is gone."""
    print("started", flush=True)
    while True:
        try:
            run(host, int(port), queue)
        except pika.exceptions.AMQPError as error:
            name = type(error).__name__
            _STATE["errors"][name] = _STATE["errors"].get(name, 0) + 1
            report()
            time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
