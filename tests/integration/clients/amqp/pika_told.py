"""Publishes durable messages one after the other with pika's blocking connection, each waiting for its confirm.

Arguments: host, port, exchange, routing key, body… Prints one line of JSON: for each message what pika says of it
("acked", "nacked", "returned", or the name of an exception) and after how many seconds.
"""

import json
import sys
import time

import pika
import pika.exceptions


def main(host: str, port: str, exchange: str, routing_key: str, *bodies: str) -> None:
    """Publish and print the report."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    told: list[tuple[str, float]] = []
    properties = pika.BasicProperties(delivery_mode=2, headers={"sent": "so"})
    for body in bodies:
        since_s = time.monotonic()
        what = "acked"
        try:
            channel.basic_publish(exchange, routing_key, body.encode(), properties)
        except pika.exceptions.NackError:
            what = "nacked"
        except pika.exceptions.UnroutableError:
            what = "returned"
        except pika.exceptions.AMQPError as error:
            what = type(error).__name__
        told.append((what, time.monotonic() - since_s))
        if not channel.is_open:
            break
    print(json.dumps(told), flush=True)
    if connection.is_open:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
