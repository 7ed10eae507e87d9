"""Prints the reports of pika's blocking connection to its user, until the connection is gone."""

import json
import sys

import pika
import pika.exceptions


def say(about: str, what: str, text: object) -> None:
    print(json.dumps({"about": about, "what": what, "text": str(text)}), flush=True)


def main(host: str, port: str, queue: str, refusing: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    connection.add_on_connection_blocked_callback(lambda _, frame: say("blocked", "callback", frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: say("unblocked", "callback", ""))
    channel = connection.channel()
    channel.confirm_delivery()
    for about, key, mandatory in (("refused", refusing, False), ("unroutable", "nowhere", True)):
        try:
            channel.basic_publish("", key, b"x", mandatory=mandatory)
            say(about, "ack", "")
        except pika.exceptions.AMQPError as error:
            say(about, type(error).__name__, error)
    print("started", flush=True)
    try:
        while True:
            channel.basic_publish("", queue, b"x")
            connection.process_data_events(0.05)
    except pika.exceptions.AMQPError as error:
        say("lost", type(error).__name__, error)


if __name__ == "__main__":
    main(*sys.argv[1:])
