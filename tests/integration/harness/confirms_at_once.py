"""A `sluice` with a bug, to show that a test finds it: it confirms without waiting for consumers."""

import runpy
import sys

from proxy.protocols.amqp091.after_consume import AfterConsume, Waiting

_begin = AfterConsume.begin


def _begin_and_end(self: AfterConsume, message: Waiting) -> None:
    _begin(self, message)
    self.forget(message)
    message.destination.consumed(message, message.since_ns)
    message.inbox.tell(message, "consumed")


if __name__ == "__main__":
    AfterConsume.begin = _begin_and_end  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
