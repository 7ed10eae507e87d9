"""A spool on a scripted disk, and a driver that uses it."""

from spool_disk import FakeDisk

from proxy.deciding.batch import Hold, Request, Ticket, Verdict
from proxy.spool.queue import Lost
from proxy.spool.spool import Hooks, Spool, SpoolSettings

from .driver import ORDERS, Decide, Driver

NS = 1_000_000_000


class SpooledDriver(Driver):
    """A driver whose handlers spool everything behind held requests."""

    def __init__(self, decide: Decide, *, settings: SpoolSettings | None = None, **more: object) -> None:
        self.damaged: list[Lost] = []
        hooks = Hooks(lambda _: None, lambda _: None, self.damaged.append)
        self.disk = FakeDisk()
        self.spool = Spool(settings or SpoolSettings(), hooks, self.disk, now_ns=0)
        super().__init__(decide, spool=self.spool, **more)  # type: ignore[arg-type]  # as the driver's
        self.later = lambda _: True

    def spooled_count(self) -> int:
        return sum(queue.count for queue in self.spool.queues())

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)
        self.spool.tick(self.now_ns)

    def settle(self, *, all_read: bool = True) -> None:
        while self.held or self.woken or not self.disk.is_idle or self.session.next_tick_ns() is not None:
            self.disk.finish_all()
            self.now_ns = max(self.now_ns, self.session.next_tick_ns() or 0)
            self.woken = True
            super().settle(all_read=all_read)


def spooled(request: Request) -> Verdict:
    """Hold a request, and spool the rest behind it."""
    del request
    return Hold(ORDERS, "rule", Ticket(lambda: None), spools=True)
