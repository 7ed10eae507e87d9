"""Publishes numbered messages to one queue from a thread, and reports their outcomes."""

import threading
import time
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from harness.amqp import AmqpClient, AmqpError, publish

_AT_ONCE: Final = 50
_TIMEOUT_S: Final = 120.0


class Numbered(NamedTuple):
    """A body: the publisher and its number."""

    epoch: int
    number: int


def read_numbered(bodies: Iterable[bytes]) -> list[Numbered]:
    return [Numbered(*map(int, body.split(maxsplit=2)[:2])) for body in bodies]


class Publisher:
    """Publishes on its own channel until it is stopped, has published enough, or its connection is gone."""

    def __init__(
        self,
        client: AmqpClient,
        queue: str,
        *,
        confirms: bool = True,
        count: int | None = None,
        per_s: float = 0,
        size: int = 1000,
        epoch: int = 0,
        first: int = 1,
        **properties: object,
    ) -> None:
        self.client, self.sent, self.error = client, 0, ""
        self.channel = client.open_channel(confirms=confirms)
        self._queue, self._confirms, self._count, self._per_s = queue, confirms, count, per_s
        self._size, self._epoch, self._before, self._properties = size, epoch, first - 1, properties
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def acked(self) -> list[int]:
        """Confirmed numbers, in the order of the confirms."""
        return [self._before + number for number in self.client.confirmed[self.channel].acked]

    @property
    def nacked(self) -> list[int]:
        return [self._before + number for number in self.client.confirmed[self.channel].nacked]

    def join(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until it has written everything, or can write no more."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self.sent} were written after {timeout_s} s"

    def stop(self) -> None:
        self._over.set()
        self.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()

    def _run(self) -> None:
        begun_s = time.monotonic()
        try:
            while not self._over.is_set() and (self._count is None or self.sent < self._count):
                at_once = _AT_ONCE if self._count is None else min(_AT_ONCE, self._count - self.sent)
                frames = []
                for number in range(self.sent + 1, self.sent + at_once + 1):
                    self.client.number_publish(self.channel)
                    body = b"%d %d " % (self._epoch, self._before + number)
                    body = body.ljust(self._size, b".")
                    frames.append(publish(self.channel, self._queue, body, **self._properties))  # type: ignore[arg-type]
                self.client.send(*frames)
                self.sent += at_once
                if self._per_s:
                    self._over.wait(max(0.0, begun_s + self.sent / self._per_s - time.monotonic()))
        except AmqpError as error:
            self.error = str(error)
