"""Takes messages from a queue with pika and handles them in one of several ways, until it is killed."""

import json
import os
import sys
import time

import pika


class Taker:
    def __init__(self, channel: pika.adapters.blocking_connection.BlockingChannel, what: str) -> None:
        self._channel, self._what = channel, what
        self._seen: set[bytes] = set()
        self._since_s = time.monotonic()

    def take(self, _: object, deliver: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes) -> None:
        said = {
            "body": body.decode(),
            "redelivered": deliver.redelivered,
            "mode": properties.delivery_mode,
            "headers": properties.headers,
            "seconds": time.monotonic() - self._since_s,
        }
        print(json.dumps(said, default=str), flush=True)
        channel, tag, what, is_new = self._channel, deliver.delivery_tag, self._what, body not in self._seen
        self._seen.add(body)
        if what == "ack-later":
            time.sleep(0.3)
        if what in {"keep", "auto", "get-auto"}:
            return
        if what == "requeue" and is_new:
            channel.basic_nack(tag, requeue=True)
        elif what == "recover" and is_new:
            channel.basic_recover(requeue=True)
        elif what == "reject" and is_new:
            channel.basic_reject(tag, requeue=False)
        elif what == "nack" and is_new:
            channel.basic_nack(tag, requeue=False)
        elif what == "cancel":
            channel.basic_cancel("consumer")
        elif what == "close":
            channel.close()
        elif what == "vanish":
            os._exit(0)
        else:
            channel.basic_ack(tag)
            if what == "transaction":
                channel.tx_commit()


def main(host: str, port: str, queue: str, prefetch: str, what: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=int(prefetch))
    if what == "transaction":
        channel.tx_select()
    taker = Taker(channel, what)
    if what.startswith("get"):
        print("started", flush=True)
        while True:
            deliver, properties, body = channel.basic_get(queue, auto_ack=what == "get-auto")
            if deliver is not None:
                taker.take(channel, deliver, properties, body)
            connection.sleep(0.02)
    channel.basic_consume(queue, taker.take, auto_ack=what == "auto", consumer_tag="consumer")
    print("started", flush=True)
    while True:
        connection.process_data_events(time_limit=None)
        if not channel.is_open or not channel.consumer_tags:
            # Its messages return with the channel.
            connection.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
