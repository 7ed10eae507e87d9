"""Traffic of one minute, added up from its seconds: by resource, with what became of it in each second.

Plain sums without a clock or a file; the recorder fills one while the minute lasts, and the recovery of what a crash
left fills one from the write-ahead file.
"""

from array import array
from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec

from limiter.counting.rejections import OTHER, Amount, Outcome, ResourceSecond, add_up
from limiter.rules.resource import Resource
from proxy.stats.snapshot import ENDINGS

MINUTE_S: Final = 60
MAX_CLIENTS: Final = 256
"""Addresses told apart for each resource in a minute."""

_OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
_REACHED: Final = {ending.outcome: ending.reached for ending in ENDINGS}
#: Where the sums of an outcome stand, and whether it reached the broker; None of what is counted again as it ends.
_PLACES: Final = {outcome: (3 * place, _REACHED.get(outcome)) for place, outcome in enumerate(_OUTCOMES)}
#: Figures of one second: its offset, messages that reached the broker and that did not, requests, bytes, messages that
#: came again.
_COLUMNS: Final = 6


def minute_of(at_s: int) -> int:
    """Return when the minute of a moment begins, both in seconds since 1970."""
    return at_s - at_s % MINUTE_S


class Traffic(msgspec.Struct, gc=False):
    """What became of one resource's requests in one minute.

    There are thousands, kept for a minute each: nothing in them is looked at by the garbage collector.

    Attributes:
        busy_answers: refusals that a client was told of.
        clients: addresses, ``MAX_CLIENTS`` at most; the values mean nothing.
        more_clients: there were more.
        repeated: what had been refused a moment ago and came again; it is among the amounts, too.
        identified: refused and dropped requests of which a repeat will be seen.
    """

    busy_answers: int = 0
    clients: dict[str, None] = {}
    more_clients: bool = False
    repeated: Amount = Amount()
    identified: int = 0
    _sums: Any = msgspec.field(default_factory=lambda: array("q", bytes(8 * 3 * len(_OUTCOMES))))
    _asked: dict[str, int] = {}
    _refused: dict[str, int] = {}
    _seconds: Any = msgspec.field(default_factory=lambda: array("q"))
    _last_offset: int = -1
    _in_order: bool = True

    def add(self, offset: int, second: ResourceSecond) -> tuple[str, ...]:
        """Add a second, or a part of one, and return the clients that were new in it.

        Args:
            offset: of the second into the minute.
            second: what became of requests in it.
        """
        sums = self._sums
        reached = turned_away = asked = size_bytes = 0
        for outcome, amount in second.outcomes.items():
            place, passed = _PLACES[outcome]
            requests, messages, size = amount.requests, amount.messages, amount.size_bytes
            sums[place] += requests
            sums[place + 1] += messages
            sums[place + 2] += size
            if passed is None:
                continue
            asked += requests
            size_bytes += size
            if passed:
                reached += messages
            else:
                turned_away += messages
        again = second.repeated
        if again.requests:
            self.repeated = add_up(self.repeated, again)
        self.identified += second.identified
        if asked or reached or turned_away or size_bytes:
            self._in_order &= offset > self._last_offset
            self._last_offset = offset
            self._seconds.extend((offset, reached, turned_away, asked, size_bytes, again.messages))
        self.busy_answers += second.busy_answers
        for language, (requests, refused) in second.languages.items():
            self._asked[language] = self._asked.get(language, 0) + requests
            self._refused[language] = self._refused.get(language, 0) + refused
        if second.more_clients:
            self.more_clients = True
        return self._meet(second.clients)

    def _meet(self, clients: tuple[str, ...]) -> tuple[str, ...]:
        known = self.clients
        new = [client for client in clients if client not in known]
        if not new:
            return ()
        room = MAX_CLIENTS - len(known)
        if len(new) > room:
            self.more_clients = True
            del new[room:]
        known.update(dict.fromkeys(new))
        return tuple(new)

    def amounts(self) -> dict[Outcome, Amount]:
        """Return what became of it; what is zero is left out."""
        sums = self._sums
        return {
            outcome: Amount(*sums[place : place + 3])
            for outcome, (place, _) in _PLACES.items()
            if sums[place] or sums[place + 1] or sums[place + 2]
        }

    @property
    def languages(self) -> dict[str, tuple[int, int]]:
        """Requests and refused ones, by what clients say they are written in."""
        return {language: (requests, self._refused[language]) for language, requests in self._asked.items()}

    def seconds(self) -> list[tuple[int, ...]]:
        """Return six columns of the seconds in which something was asked for, in order.

        They are offsets into the minute, messages that reached the broker, messages that did not, requests, bytes, and
        messages that came again.
        """
        if not self._in_order:
            self._sort()
        return [tuple(self._seconds[column::_COLUMNS]) for column in range(_COLUMNS)]

    def _sort(self) -> None:
        """Put the seconds in order and together: one that was taken in parts, or that a set clock came back to."""
        together: dict[int, list[int]] = {}
        for at in range(0, len(self._seconds), _COLUMNS):
            offset, *figures = self._seconds[at : at + _COLUMNS]
            sums = together.setdefault(offset, [0] * len(figures))
            sums[:] = [one + other for one, other in zip(sums, figures, strict=True)]
        self._seconds = array("q")
        for offset in sorted(together):
            self._seconds.extend((offset, *together[offset]))
        self._in_order = True


class Aggregate:
    """What became of all requests in one minute.

    Args:
        at_s: when it begins, in seconds since 1970 UTC.
        max_resources: told apart; the rest is under ``_other``.

    Attributes:
        at_s: as given.
        other: runs of requests that were counted under ``_other``, as far as anybody knows.
    """

    def __init__(self, at_s: int, max_resources: int) -> None:
        self.at_s = at_s
        self.other = 0
        self.covered = 0
        self._max_resources = max_resources
        self._resources: dict[Resource, Traffic] = {}

    @property
    def seconds(self) -> int:
        """How many seconds of it were recorded."""
        return self.covered.bit_count()

    def cover(self, from_s: int, until_s: int) -> None:
        """Note that the seconds from one moment until before another were recorded, as far as they are in it."""
        first, end = max(0, from_s - self.at_s), min(MINUTE_S, until_s - self.at_s)
        if first < end:
            self.covered |= (1 << end) - (1 << first)

    def add(self, at_s: int, second: ResourceSecond) -> tuple[Resource, tuple[str, ...]]:
        """Add what became of one resource's requests in a second of this minute, or in a part of one.

        Returns:
            What it was counted for, and its clients that were new.
        """
        resource = second.resource
        traffic = self._resources.get(resource)
        if traffic is None:
            if len(self._resources) >= self._max_resources and resource.name != OTHER:
                resource = Resource(resource.kind, OTHER)
                self.other += sum(amount.requests for amount in second.outcomes.values())
            traffic = self._resources.setdefault(resource, Traffic())
        return resource, traffic.add(at_s - self.at_s, second)

    def __iter__(self) -> Iterator[tuple[Resource, Traffic]]:
        """Go through what was asked for."""
        return iter(self._resources.items())

    def taken(self) -> Iterator[tuple[Resource, Traffic]]:
        """Go through what was asked for and let go of each: to free thousands at once would take milliseconds."""
        while self._resources:
            yield self._resources.popitem()
