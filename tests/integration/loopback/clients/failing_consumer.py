"""Consumes a topic with the C++ client that PyPI's rocketmq bundles, and sends back what comes for the first time.

Arguments: name server, consumer group, topic, messages to take, seconds at most. Prints one line of JSON: messages
taken, and the most redeliveries that a message said it had. When one message of a pull fails, this client sends back
those behind it as well without delivering them, so deliveries are not counted.

The package's own subscribe() turns a callback's failure into a success by accident, so the callback is registered
one floor below it, where its status counts.
"""

import json
import sys
import threading

from rocketmq.client import PushConsumer, RecvMessage
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CConsumeStatus, dll


class Reader:
    """Takes each message that was redelivered."""

    def __init__(self, wanted: int) -> None:
        self.done = threading.Event()
        self._wanted = wanted
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._most = 0

    def consume(self, _consumer: object, handle: object) -> int:
        """Return the status of one delivery; called on the client's threads."""
        message = RecvMessage(handle)
        if message.reconsume_times == 0:
            return _CConsumeStatus.RECONSUME_LATER.value
        with self._lock:
            self._most = max(self._most, message.reconsume_times)
            self._taken.add(message.body.decode())
            if len(self._taken) == self._wanted:
                self.done.set()
        return _CConsumeStatus.CONSUME_SUCCESS.value

    def report(self) -> dict[str, int]:
        """Return the counts."""
        with self._lock:
            return {"taken": len(self._taken), "most_redeliveries": self._most}


def main(namesrv: str, group: str, topic: str, messages: str, seconds: str) -> None:
    """Consume until all is taken or the time is over, and print the report."""
    reader = Reader(int(messages))
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(reader.consume)
    consumer.start()
    reader.done.wait(float(seconds))
    consumer.shutdown()
    print(json.dumps(reader.report()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
