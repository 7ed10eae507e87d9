"""A slow handler that lets everything pass."""

import time

import msgspec

from proxy.deciding.batch import Batch, Verdicts
from proxy.deciding.pipeline import Handler, HandlerPlugin, HandlerServices


class BusyOptions(msgspec.Struct, kw_only=True):
    """The ``options`` of the handler's table."""

    batch_ms: float = 1


class Busy(Handler):
    """Works for ``batch_ms`` of processor time on each batch."""

    def __init__(self, options: BusyOptions) -> None:
        self._batch_s = options.batch_ms / 1000

    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        del batch, now_ns
        until_s = time.thread_time() + self._batch_s
        while time.thread_time() < until_s:
            pass
        return {}


def _build(options: BusyOptions, services: HandlerServices) -> Handler:
    del services
    return Busy(options)


PLUGIN = HandlerPlugin("busy", BusyOptions, _build)
