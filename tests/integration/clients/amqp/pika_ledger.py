"""Publishes with confirms and consumes with pika for ever. See harness/ledger.py for its output."""

import itertools
import sys
import threading
import time

import pika
import pika.exceptions

_HEARTBEAT_S = 6
_EVERY_S = 0.01
_PAUSE_S = 0.2
_IDS = itertools.count(1)
_SAYING = threading.Lock()


def say(what: str, number: int) -> None:
    with _SAYING:
        print(what, number, int(time.time() * 1000), flush=True)


def connect(host: str, port: int, queue: str) -> pika.adapters.blocking_connection.BlockingChannel:
    parameters = pika.ConnectionParameters(host, port, heartbeat=_HEARTBEAT_S)
    channel = pika.BlockingConnection(parameters).channel()
    channel.queue_declare(queue, durable=True)
    return channel


def publish(host: str, port: int, queue: str) -> None:
    channel = connect(host, port, queue)
    channel.confirm_delivery()
    while True:
        number = next(_IDS)
        try:
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
        except pika.exceptions.NackError:
            say("refused", number)
        except BaseException:
            say("unknown", number)
            raise
        else:
            say("stored", number)
        channel.connection.process_data_events(_EVERY_S)


def consume(host: str, port: int, queue: str) -> None:
    channel = connect(host, port, queue)
    channel.basic_qos(prefetch_count=20)
    for method, _, body in channel.consume(queue):
        say("got", int(body))
        channel.basic_ack(method.delivery_tag)


def forever(run: object, *where: object) -> None:
    while True:
        try:
            run(*where)
        except (pika.exceptions.AMQPError, OSError):
            time.sleep(_PAUSE_S)


def main(host: str, port: str, queue: str) -> None:
    print("started", flush=True)
    threading.Thread(target=forever, args=(consume, host, int(port), queue), daemon=True).start()
    forever(publish, host, int(port), queue)


if __name__ == "__main__":
    main(*sys.argv[1:])
