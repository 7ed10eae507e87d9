"""Consumes so many messages of a queue with pika and acknowledges each.

Arguments: host, port, queue, count. Prints ``started`` when it consumes, and at its end one line of JSON: of each
message, in their order, what the client says of its properties, and its body in hex.
"""

import json
import sys

import pika


def main(host: str, port: str, queue: str, count: str) -> None:
    """Consume and print the report."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0))
    channel = connection.channel()
    seen: list[list[str]] = []

    def received(_: object, deliver: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes) -> None:
        seen.append([repr(sorted(vars(properties).items())), body.hex()])
        channel.basic_ack(deliver.delivery_tag)
        if len(seen) == int(count):
            channel.stop_consuming()

    channel.basic_consume(queue, received)
    print("started", flush=True)
    channel.start_consuming()
    connection.close()
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
