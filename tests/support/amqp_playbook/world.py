"""Sessions that share a hub, a broker, and the time."""

from collections.abc import Mapping

from proxy.protocols.amqp091.after_consume import Hub
from proxy.protocols.amqp091.session import AMQP091Options
from proxy.protocols.base import Confirming
from proxy.stats.snapshot import ConfirmState

from . import frames
from .broker import ModelBroker
from .driver import CLIENT, Driver

NS = 1_000_000_000
PERSIST = Confirming(4096, 5 * NS, None, True)
NACK = PERSIST._replace(persists=False)
QUEUE = {"queue:orders": PERSIST}


class World:
    def __init__(
        self,
        rules: Mapping[str, Confirming] = QUEUE,
        *,
        queues: tuple[str, ...] = ("orders",),
        bindings: dict[str, tuple[str, ...]] | None = None,
        max_pending_bytes: int = 1 << 20,
    ) -> None:
        self.hub = Hub()
        self.broker = ModelBroker(queues, bindings)
        self.rules = dict(rules)
        self.drivers: list[Driver] = []
        self.now_ns = 0
        self._options = AMQP091Options(max_pending_bytes=max_pending_bytes)

    def connect(self, *channels: int, confirms: bool = False, **more: object) -> Driver:
        driver = Driver(hub=self.hub, options=self._options, confirming=self.rules, **more)  # type: ignore[arg-type]  # the driver's
        driver.now_ns = self.now_ns
        self.drivers.append(driver)
        return self.broker.serve(driver, *channels, confirms=confirms)

    def publisher(self, *channels: int, **more: object) -> Driver:
        return self.connect(*(channels or (1,)), confirms=True, **more)

    def consumer(self, queue: str = "orders", tag: str = "c", *, automatic: bool = False) -> Driver:
        driver = self.connect(1)
        driver.give(CLIENT, frames.subscribe(1, queue, tag, automatic=automatic))
        self.broker.receive()
        return driver.forget()

    def settle(self) -> None:
        while any(driver.woken for driver in self.drivers):
            for driver in self.drivers:
                if driver.woken:
                    driver.tick()
        self.broker.receive()

    def pass_time(self, seconds: float) -> None:
        until_ns = self.now_ns + round(seconds * NS)
        while True:
            due_ns = min((each.session.next_tick_ns() or until_ns + 1 for each in self.drivers), default=until_ns + 1)
            self.now_ns = max(self.now_ns, min(due_ns, until_ns))
            for driver in self.drivers:
                driver.now_ns = self.now_ns
                if (driver.session.next_tick_ns() or until_ns + 1) <= self.now_ns:
                    driver.woken = True
            self.settle()
            if due_ns > until_ns:
                self.now_ns = until_ns
                for driver in self.drivers:
                    driver.now_ns = until_ns
                return

    def state(self, resource: str = "queue:orders") -> ConfirmState:
        states = {f"{each.kind}:{each.name}": each for each in self.hub.after_consume.states(self.now_ns)}
        return states[resource]

    def is_empty(self) -> bool:
        return self.hub.held_bytes == 0 and not self.hub.after_consume._waiting

    def close(self) -> None:
        for driver in self.drivers:
            if driver in self.broker.channels:
                self.broker.lose(driver)
        assert self.is_empty()
        assert not any(each.acknowledging or each.automatic for each in self.hub.after_consume._consumers.values())
