"""Sends to several topics in turn with the C++ client that PyPI's rocketmq bundles, as fast as the answers come."""

import json
import sys
import time

from rocketmq.client import Message, Producer, SendStatus
from rocketmq.exceptions import RocketMQException

_BODY = b"x" * 128
# A send that timed out on a busy machine may have been stored, and losses could not be counted.
_SEND_TIMEOUT_MS = 30_000


class Sender:
    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._stored = 0
        self._failed = 0
        self._failure: str | None = None

    def send(self) -> None:
        message = Message(self._topic)
        message.set_body(_BODY)
        try:
            status = self._producer.send_sync(message).status
        except RocketMQException as error:
            self._fail(str(error))
        else:
            if status == SendStatus.OK:
                self._stored += 1
            else:
                self._fail(str(status))

    def report(self) -> dict[str, object]:
        return {"stored": self._stored, "failed": self._failed, "failure": self._failure}

    def _fail(self, what: str) -> None:
        self._failed += 1
        self._failure = self._failure or what


def main(namesrv: str, group: str, seconds: str, warm_up: str, *topics: str) -> None:
    producer = Producer(group, timeout=_SEND_TIMEOUT_MS)
    producer.set_namesrv_addr(namesrv)
    producer.start()
    senders = {topic: Sender(producer, topic) for topic in topics}
    for _ in range(int(warm_up)):
        senders[topics[-1]].send()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        for sender in senders.values():
            sender.send()
    producer.shutdown()
    print(json.dumps({topic: sender.report() for topic, sender in senders.items()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
