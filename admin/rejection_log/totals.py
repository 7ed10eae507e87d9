"""Traffic added up between two writes of the log: by resource, with its figures for each second. Plain sums, no I/O."""

from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from limiter.counting.rejections import OTHER, OUTCOMES, Amount, ResourceSecond, add_up
from limiter.rules.resource import Resource
from proxy.stats.snapshot import ENDINGS

MINUTE_S: Final = 60
MAX_CLIENTS: Final = 256
"""Addresses told apart for each resource in a minute."""

#: Whether an outcome reached the broker; held requests are counted again when their wait ends.
_REACHED: Final = {ending.outcome: ending.reached for ending in ENDINGS}
_COLUMNS: Final = 6
_NOTHING: Final = Amount()


def minute_of(at_s: int) -> int:
    """Return the begin of the minute of a moment, both in seconds since 1970."""
    return at_s - at_s % MINUTE_S


class Totals(msgspec.Struct, gc=False):
    """What became of one resource's requests since the last write. There are thousands, hidden from the collector."""

    busy_answers: int = 0
    identified: int = 0
    repeated: Amount = Amount()
    languages: dict[str, tuple[int, int]] = {}
    sums: Any = msgspec.field(default_factory=lambda: array("q", bytes(8 * 3 * len(OUTCOMES))))
    seconds: Any = msgspec.field(default_factory=lambda: array("q"))

    def add(self, offset: int, second: ResourceSecond) -> None:
        """Add a second, or a part of one, by its offset into the minute."""
        reached = turned_away = asked = size_bytes = 0
        for place, outcome in enumerate(OUTCOMES):
            if (amount := second.outcomes.get(outcome)) is None:
                continue
            for at, figure in enumerate((amount.requests, amount.messages, amount.size_bytes), 3 * place):
                self.sums[at] += figure
            if outcome not in _REACHED:
                continue
            asked += amount.requests
            size_bytes += amount.size_bytes
            if _REACHED[outcome]:
                reached += amount.messages
            else:
                turned_away += amount.messages
        if asked or reached or turned_away or size_bytes:
            self.seconds.extend((offset, reached, turned_away, asked, size_bytes, second.repeated.messages))
        self.repeated = add_up(self.repeated, second.repeated)
        self.identified += second.identified
        self.busy_answers += second.busy_answers
        for language, (requests, refused) in second.languages.items():
            of_requests, of_refused = self.languages.get(language, (0, 0))
            self.languages[language] = of_requests + requests, of_refused + refused

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ``TrafficRecord``, without its clients."""
        by_second: dict[int, list[int]] = {}
        for at in range(0, len(self.seconds), _COLUMNS):
            offset, *figures = self.seconds[at : at + _COLUMNS]
            known = by_second.get(offset)
            by_second[offset] = (
                figures if known is None else [one + more for one, more in zip(known, figures, strict=True)]
            )
        offsets = sorted(by_second)
        admitted, refused, requests, size_bytes, repeated = (
            tuple(by_second[offset][column] for offset in offsets) for column in range(_COLUMNS - 1)
        )
        sums = self.sums
        amounts: dict[str, Amount] = {
            outcome: Amount(*sums[3 * place : 3 * place + 3]) for place, outcome in enumerate(OUTCOMES)
        }
        amounts["repeated"] = self.repeated
        return {
            # An amount that is as by default is left out of a record only if it is not given.
            **{name: amount for name, amount in amounts.items() if amount != _NOTHING},
            "identified": self.identified,
            "busy_answers": self.busy_answers,
            "languages": self.languages,
            "second": tuple(offsets),
            "second_admitted": admitted,
            "second_refused": refused,
            "second_requests": requests,
            "second_bytes": size_bytes,
            "second_repeated": repeated if any(repeated) else (),
        }


class Minute:
    """Traffic of one minute that is not written yet, and the clients of the whole minute so far.

    Args:
        at_s: when it begins, in seconds since 1970.
        max_resources: told apart; the others are counted as ``_other``.
    """

    def __init__(self, at_s: int, max_resources: int) -> None:
        self.at_s = at_s
        self._max_resources = max_resources
        self._totals: dict[Resource, Totals] = {}
        self._clients: dict[Resource, dict[str, None]] = {}
        self._more_clients: set[Resource] = set()

    def add(self, at_s: int, second: ResourceSecond) -> int:
        """Add a second of a resource, and return how many of its requests were counted as ``_other``."""
        resource, other = second.resource, 0
        if resource not in self._clients and resource.name != OTHER and len(self._clients) >= self._max_resources:
            resource = Resource(resource.kind, OTHER)
            other = sum(amount.requests for amount in second.outcomes.values())
        self._totals.setdefault(resource, Totals()).add(at_s - self.at_s, second)
        clients = self._clients.setdefault(resource, {})
        for client in second.clients:
            if client not in clients and len(clients) >= MAX_CLIENTS:
                self._more_clients.add(resource)
            else:
                clients[client] = None
        if second.more_clients:
            self._more_clients.add(resource)
        return other

    def take(self) -> Iterator[tuple[Resource, dict[str, Any]]]:
        """Yield the fields of a ``TrafficRecord`` for each resource with traffic since the last time."""
        totals, self._totals = self._totals, {}
        for resource, of in totals.items():
            clients = {"clients": len(self._clients[resource]), "more_clients": resource in self._more_clients}
            yield resource, {**of.fields(), **clients}
