"""Sends to several topics at once with RocketMQ 5's Python client, as fast as the answers come.

Arguments and report are those of GrpcFlatOut.java. This client never retries a refused send.
"""

import json
import os
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer
from rocketmq.v5.exception import ClientException, TooManyRequestsException

_BODY = b"x" * 128


class Sender(threading.Thread):
    def __init__(self, producer: Producer, topic: str, end: float) -> None:
        super().__init__()
        self._producer, self._topic, self._end = producer, topic, end
        self.counts = {"stored": 0, "refused": 0, "failed": 0, "refusal": "", "failure": ""}

    def run(self) -> None:
        counts = self.counts
        while time.monotonic() < self._end:
            message = Message()
            message.topic, message.body = self._topic, _BODY
            try:
                self._producer.send(message)
                counts["stored"] += 1
            except TooManyRequestsException as error:
                counts["refused"] += 1
                counts["refusal"] = counts["refusal"] or f"{type(error).__name__}: {error}"
            except ClientException as error:
                counts["failed"] += 1
                counts["failure"] = counts["failure"] or f"{type(error).__name__}: {error}"


def main(endpoints: str, tls: str, attempts: str, seconds: str, *topics: str) -> None:
    del attempts
    configuration = ClientConfiguration(endpoints, Credentials(), request_timeout=30)
    producer = Producer(configuration, topics, tls_enable=tls == "tls")
    producer.startup()
    senders = [Sender(producer, topic, time.monotonic() + float(seconds)) for topic in topics]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    print(json.dumps(dict(zip(topics, (each.counts for each in senders), strict=True))), flush=True)
    # Its threads may wait for half a minute.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
