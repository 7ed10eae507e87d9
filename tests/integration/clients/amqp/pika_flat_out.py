"""Publishes to several queues in turn with pika's blocking connection, each publish waiting for its confirm."""

import json
import os
import ssl
import sys
import time

import pika
import pika.exceptions


def main(host: str, port: str, seconds: str, *queues: str) -> None:
    tls = None
    if authority := os.environ.get("TLS_CA"):
        context = ssl.create_default_context(cafile=authority)
        if certificate := os.environ.get("TLS_CERTIFICATE"):
            context.load_cert_chain(certificate)
        tls = pika.SSLOptions(context, host)
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0, ssl_options=tls))
    channel = connection.channel()
    for queue in queues:
        channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    report: dict[str, dict[str, list]] = {queue: {"acked": [], "nacked": [], "failed": []} for queue in queues}
    end = time.monotonic() + float(seconds)
    properties = pika.BasicProperties(delivery_mode=int(os.environ.get("DELIVERY_MODE", "1")))
    number = 0
    while time.monotonic() < end:
        for queue in queues:
            try:
                channel.basic_publish("", queue, b"%d" % number, properties)
            except pika.exceptions.NackError:
                report[queue]["nacked"].append(number)
            except pika.exceptions.AMQPError as error:
                report[queue]["failed"].append(repr(error))
            else:
                report[queue]["acked"].append(number)
        number += 1
    connection.close()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
