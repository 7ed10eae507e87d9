"""Publishes to several queues in turn with py-amqp, each publish waiting for its confirm."""

import json
import sys
import time

import amqp


def main(host: str, port: str, seconds: str, *queues: str) -> None:
    with amqp.Connection(f"{host}:{port}", confirm_publish=True) as connection:
        channel = connection.channel()
        for queue in queues:
            channel.queue_declare(queue, durable=True, auto_delete=False)
        report: dict[str, dict[str, list]] = {queue: {"acked": [], "nacked": [], "failed": []} for queue in queues}
        end = time.monotonic() + float(seconds)
        number = 0
        while time.monotonic() < end:
            for queue in queues:
                try:
                    channel.basic_publish(amqp.Message(str(number)), routing_key=queue)
                except amqp.exceptions.MessageNacked:
                    report[queue]["nacked"].append(number)
                except amqp.AMQPError as error:
                    report[queue]["failed"].append(repr(error))
                else:
                    report[queue]["acked"].append(number)
            number += 1
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
