"""Publishes durable messages one after the other with pika's blocking connection, each waiting for its confirm."""

import json
import sys

import pika
import pika.exceptions


def main(host: str, port: str, exchange: str, routing_key: str, *bodies: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    print("started", flush=True)
    told: list[str] = []
    properties = pika.BasicProperties(delivery_mode=2, headers={"sent": "so"})
    for body in bodies:
        what = "acked"
        try:
            channel.basic_publish(exchange, routing_key, body.encode(), properties, mandatory=True)
        except pika.exceptions.NackError:
            what = "nacked"
        except pika.exceptions.UnroutableError as error:
            back = error.messages[0]
            what = "returned"
            if (back.properties, back.body) != (properties, body.encode()):
                what += " otherwise than it was sent"
        except pika.exceptions.AMQPError as error:
            what = type(error).__name__
        told.append(what)
        if not channel.is_open:
            break
    print(json.dumps(told), flush=True)
    if connection.is_open:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
