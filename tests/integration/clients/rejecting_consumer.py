"""Sends back every first delivery until it is stopped, with the client of PyPI's rocketmq."""

import signal
import sys

from rocketmq.client import PushConsumer, RecvMessage
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CConsumeStatus, dll


def _consume(_consumer: object, handle: object) -> int:
    """Called on the client's threads."""
    first = RecvMessage(handle).reconsume_times == 0
    return (_CConsumeStatus.RECONSUME_LATER if first else _CConsumeStatus.CONSUME_SUCCESS).value


def main(namesrv: str, group: str, topic: str, threads: str) -> None:
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.set_thread_count(int(threads))
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(_consume)
    consumer.start()
    print("started", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
