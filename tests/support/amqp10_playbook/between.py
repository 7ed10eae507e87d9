"""A session of Sluice between the model peers, with random decisions about its requests."""

from collections.abc import Mapping
from random import Random

from limiter.rules.resource import Resource
from proxy.deciding.batch import Grant, Hold, Request, Ticket, Verdict
from proxy.protocols.base import Terms

from .driver import BROKER, BUSY, CLIENT, ORDERS, Driver

SECOND_NS = 1_000_000_000


class Between:
    """Holds, grants in part, and refuses at random, or passes everything."""

    def __init__(
        self,
        seed: int,
        terms: Mapping[Resource, Terms],
        *,
        changes: bool = False,
        refusals: float = 0.5,
    ) -> None:
        self._random = Random(seed)
        self._resting = False
        self._changes = changes
        self._refusals = refusals
        self.driver = Driver(self._decide, terms=dict(terms))

    def _decide(self, request: Request) -> Verdict | None:
        random = self._random
        if request.most:
            kind = random.choice(["all", "part", "hold", "hold"])
            if self._resting or kind == "all":
                return None
            if kind == "part":
                return Grant(random.randint(1, request.most))
            return Hold(ORDERS, "rule", Ticket(lambda: None))
        if request.refusal == "answered" and random.random() < self._refusals and not self._resting:
            return BUSY
        return None

    def give(self, from_client: bool, data: bytes, random: Random) -> None:  # noqa: FBT001 - as Relay has it
        self.driver.give(CLIENT if from_client else BROKER, data, random, longest=1 << 20)
        assert self.driver.closed is None, self.driver.closed

    def take(self, to_client: bool) -> bytes:  # noqa: FBT001 - likewise
        self.driver.take()
        written = self.driver.written[CLIENT if to_client else BROKER]
        data = bytes(written)
        written.clear()
        return data

    def step(self, random: Random) -> None:
        driver = self.driver
        if self._changes and random.random() < 0.1:
            self._change(random)
        if driver.held and random.random() < 0.7:
            request = next(iter(driver.held.values()))[0]
            driver.resolve(random.randint(1, request.most))
        driver.now_ns += random.choice([0, 0, 1000, SECOND_NS // 2, 2 * SECOND_NS])
        driver.tick()

    def charged(self, resource: Resource) -> int:
        """Return the messages charged to a limit that delays, once all links have ended."""
        driver, charged = self.driver, 0
        for batch in driver.batches:
            for index, request in enumerate(batch.requests):
                passes = index not in batch.verdicts or isinstance(batch.verdicts[index], Grant)
                counts = request.most or (request.asks == "all" and passes)
                if counts and resource in request.resources and id(request) not in driver.given_up_ids:
                    charged += request.messages
            charged += sum(
                charge.messages
                for charge in batch.charges
                if charge.asks != "refusing" and resource in charge.resources
            )
        return charged

    def _change(self, random: Random) -> None:
        terms = self.driver.terms
        resource = random.choice(list(terms))
        terms[resource] = random.choice([each for other, each in terms.items() if other.kind == resource.kind])
        self.driver.version += 1

    def rest(self) -> None:
        self._resting = True
        driver = self.driver
        while driver.held:
            driver.resolve(next(iter(driver.held.values()))[0].most)
        driver.tick()
