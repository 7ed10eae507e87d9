"""Collects the counts of one second, and converts them to plain data."""

from collections.abc import Container, Iterator
from math import inf
from typing import Final, NamedTuple

import msgspec

from limiter.counting.rejections import (
    OTHER,
    OUTCOMES,
    Amount,
    Rejection,
    RejectionVerdict,
    ResourceSecond,
    TrafficSecond,
    add_up,
)
from limiter.counting.repeats import NO_REPEATS, Repeats
from limiter.counting.row import MAX_SENDERS, Entry, Second
from limiter.rules.resource import Resource

MAX_LANGUAGES: Final = 16
MAX_PRODUCTS: Final = 16
_MAX_OTHER_RULES: Final = 1000
_NOTHING: Final = Amount()

Sums = tuple[int, int, int]
"""Requests, messages and bytes."""


class Sender(msgspec.Struct, eq=False, weakref=True):
    """All connections from one address with the same user, language and product."""

    address: str
    language: str = ""
    user: str = ""
    product: str = ""


NO_SENDER: Final = Sender("")


class Judged(NamedTuple):
    verdict: RejectionVerdict
    rule: str
    producer_group: str = ""
    wait_us: int = 0
    told: int = 0  # refusals sent to clients


class Span:
    """The counts of one or more seconds, or of part of a second. Fields are documented in ``TrafficSecond``."""

    def __init__(self, at_s: int, began_ns: int, stepped_s: int, second: Second) -> None:
        self.at_s = at_s
        self.began_ns = began_ns
        self.stepped_s = stepped_s
        self.second = second
        self.seconds = 1
        self._other = 0
        # Requests, messages, bytes and longest wait by resource, client, user, product, producer group, rule, verdict.
        self._judged: dict[tuple[Resource, str, str, str, str, str, RejectionVerdict], list[int]] = {}
        # Products by client address, so that one client cannot use up the bound for all clients.
        self._products: dict[str, set[str]] = {}
        self._repeats: dict[Resource, Repeats] = {}

    def __len__(self) -> int:
        return len(self.second.entries) + len(self._judged)

    def judge(self, resource: Resource, sender: Sender, judged: Judged, amount: Sums, max_keys: int) -> None:
        """Count a rule's verdict on requests. Pass the ``resource`` of their row, whose name may be ``_other``.

        If there are too many distinct keys, ``_other`` replaces the fields that identify the client. If there are still
        too many, it also replaces the resource, and finally the rule.
        """
        verdict, rule, group, wait_us, _ = judged
        exact = (resource, sender.address, sender.user, sender.product, group, rule, verdict)
        sums = self._judged.get(exact)
        if sums is None:
            if len(self._judged) < max_keys:
                products = self._products.setdefault(sender.address, set())
                if len(products) < MAX_PRODUCTS:
                    products.add(sender.product)
                elif sender.product not in products:
                    exact = (resource, sender.address, sender.user, OTHER, group, rule, verdict)
            other = Resource(resource.kind, OTHER)
            others = (OTHER, sender.user and OTHER, sender.product and OTHER, OTHER)
            for key, most in (
                (exact, max_keys),
                ((resource, *others, rule, verdict), 2 * max_keys),
                ((other, *others, rule, verdict), 2 * max_keys + _MAX_OTHER_RULES),
                ((other, *others, OTHER, verdict), inf),
            ):
                if key in self._judged or len(self._judged) < most:
                    break
            self._other += len(self._judged) >= max_keys
            sums = self._judged.setdefault(key, [0, 0, 0, 0])
        sums[0] += amount[0]
        sums[1] += amount[1]
        sums[2] += amount[2]
        sums[3] = max(sums[3], wait_us)

    def repeat(self, resource: Resource, repeats: Repeats) -> None:
        self._repeats[resource] = self._repeats.get(resource, NO_REPEATS).plus(repeats)

    def steps(self, max_resources: int, pinned: Container[Resource]) -> Iterator[TrafficSecond | None]:
        """Convert the counts in short steps. Yields None after each step, and finally the TrafficSecond."""
        resources: dict[Resource, ResourceSecond] = {}
        other, repeats = self._other, self._repeats.copy()
        for entry in self.second.entries:
            resource = entry.resource
            if resource.name == OTHER or (len(resources) >= max_resources and resource not in pinned):
                other += 1
                resource = Resource(resource.kind, OTHER)
            if resource not in resources:
                resources[resource] = ResourceSecond(resource, {}, 0, {}, (), more_clients=False)
            of = resources[resource]
            _add(of, entry)
            *repeated, identified = repeats.pop(entry.resource, NO_REPEATS)
            of.repeated = add_up(of.repeated, Amount(*repeated))
            of.identified += identified
            yield None
        rejections: dict[tuple[object, ...], Rejection] = {}
        for (resource, client, user, product, group, rule, verdict), (*amount, wait_max_us) in self._judged.items():
            name = resource if resource in resources else Resource(resource.kind, OTHER)
            rejection = Rejection(name, client, group, rule, verdict, Amount(*amount), wait_max_us, user, product)
            first = rejections.setdefault((name, client, user, product, group, rule, verdict), rejection)
            if first is not rejection:
                first.amount = add_up(first.amount, rejection.amount)
                first.wait_max_us = max(first.wait_max_us, wait_max_us)
            yield None
        told = tuple(resources.values()), tuple(rejections.values())
        yield TrafficSecond(self.at_s, *told, other, self.seconds, self.stepped_s)

    def drain(self) -> Iterator[None]:
        """Free memory in short steps, because freeing 10 000 resources at once takes 4 ms."""
        while len(self):
            del self.second.entries[-1:]
            if self._judged:
                self._judged.popitem()
            yield


def _add(of: ResourceSecond, entry: Entry) -> None:
    for outcome, amount in zip(OUTCOMES, entry.amounts(), strict=True):
        if any(amount):
            of.outcomes[outcome] = add_up(of.outcomes.get(outcome, _NOTHING), Amount(*amount))
    of.busy_answers += entry.told
    clients = dict.fromkeys(of.clients)
    for sender, requests, refused in entry.asked():
        language = sender.language if isinstance(sender, Sender) else OTHER
        if isinstance(sender, Sender) and sender.address:
            clients[sender.address] = None
        if requests:
            if language not in of.languages and len(of.languages) >= MAX_LANGUAGES:
                language = OTHER
            asked, no = of.languages.get(language, (0, 0))
            of.languages[language] = (asked + requests, no + refused)
    of.more_clients |= entry.more or len(clients) > MAX_SENDERS
    of.clients = tuple(clients)[:MAX_SENDERS]
