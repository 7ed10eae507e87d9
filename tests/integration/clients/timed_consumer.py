"""Consumes a topic with the C++ client that PyPI's rocketmq bundles, and records the time of each message."""

import json
import sys
import threading
import time

from rocketmq.client import PushConsumer, RecvMessage


class Reader:
    def __init__(self, wanted: int) -> None:
        self.done = threading.Event()
        self._wanted = wanted
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._times_ms: list[int] = []
        self._again = 0

    def consume(self, message: RecvMessage) -> None:
        """Called on the client's threads."""
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            if message.id in self._taken:
                self._again += 1
            else:
                self._taken.add(message.id)
                self._times_ms.append(now_ms)
            if len(self._taken) == self._wanted:
                self.done.set()

    def report(self) -> dict[str, object]:
        with self._lock:
            return {"times_ms": self._times_ms, "again": self._again}


def main(namesrv: str, group: str, topic: str, messages: str, seconds: str) -> None:
    reader = Reader(int(messages))
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, reader.consume)
    consumer.start()
    reader.done.wait(float(seconds))
    consumer.shutdown()
    print(json.dumps(reader.report()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
