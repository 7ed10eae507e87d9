"""Adds up what became of requests, second by second: the aggregation behind the rejection log.

A recorder is told of runs of requests as they are counted. When a second is over its entries are handed out in the
words of ``limiter.counting.rejections``. Names come from clients, so entries are bounded in number; what is beyond a
bound is counted under ``_other``, and no sum is ever short.

Nothing here writes files, knows a protocol or reads a clock.
"""

from collections.abc import Container, Iterator, Sequence
from typing import Final

import msgspec

from limiter.counting.rejections import (
    OTHER,
    Amount,
    Outcome,
    Rejection,
    RejectionVerdict,
    ResourceSecond,
    TrafficSecond,
)
from limiter.rules.resource import Resource

MAX_CLIENTS: Final = 256
"""Client addresses told apart for each resource and second."""
MAX_LANGUAGES: Final = 16
"""Languages told apart for each resource and second."""
KEPT_S: Final = 60
"""Seconds kept for a taker that is late."""

_NS_PER_S: Final = 1_000_000_000
#: The wall clock may be so much behind the monotonic one when a second ends by the latter.
_JITTER_NS: Final = 5_000_000
#: What is kept for a taker that is late holds at most so many times what one second may hold.
_KEPT_FULL: Final = 4
_NOTHING: Final = Amount()
#: Beyond the bound of keys: rules told apart whose resources are not.
_MAX_OTHER_RULES: Final = 1000


class Sender(msgspec.Struct, gc=False):
    """Who asks: one client's connection.

    Attributes:
        address: the client's.
        language: what the client says it is written in, once it did.
    """

    address: str
    language: str = ""


NOBODY: Final = Sender("")
"""Of whom nothing is known."""


Sums = tuple[int, int, int]
"""Requests, messages and bytes, as in Amount."""
_Sum = list[int]
"""An Amount that grows, and one figure more: a list, as that is what Python adds to fastest."""
_Key = tuple[str, str, str, RejectionVerdict]
"""Client, producer group, rule and verdict."""
Judged = tuple[RejectionVerdict, str, str, int, int]
"""What a rule said to some requests: its verdict, its name, the producer group of the requests, the wait stated in
microseconds, and how many of the requests are told."""


class _Entry(msgspec.Struct, gc=False):
    """A ResourceSecond that grows, and the Rejections of that resource.

    There are thousands, new ones each second: the garbage collector is to look at as few objects as can be.

    Attributes:
        asked: requests, messages, bytes, and refusals that were told, by language and outcome.
        rejections: requests, messages, bytes, and the longest wait.
        clients: a dict of nothing, as the garbage collector looks at every set, but at no dict of strings.
        more_clients: there were others.
    """

    asked: dict[tuple[str, Outcome], _Sum] = {}
    rejections: dict[_Key, _Sum] = {}
    clients: dict[str, None] = {}
    more_clients: bool = False

    def look(self, sender: Sender, outcome: Outcome) -> _Sum:
        """Return what is added to for a sender and an outcome."""
        address = sender.address
        if address and address not in self.clients:
            if len(self.clients) < MAX_CLIENTS:
                self.clients[address] = None
            else:
                self.more_clients = True
        key = (sender.language, outcome)
        sums = self.asked.get(key)
        if sums is None:
            sums = self._sums(key)
        return sums

    def _sums(self, key: tuple[str, Outcome]) -> _Sum:
        """Find room for a language, or what it shares with others."""
        language, outcome = key
        if len(self.asked) >= MAX_LANGUAGES:
            known = {language for language, _ in self.asked}
            if language not in known and len(known) >= MAX_LANGUAGES:
                key = (OTHER, outcome)
        return self.asked.setdefault(key, [0, 0, 0, 0])

    def finished(self, resource: Resource) -> ResourceSecond:
        """Return what has come together."""
        outcomes: dict[Outcome, Amount] = {}
        languages: dict[str, tuple[int, int]] = {}
        told = 0
        for (language, outcome), (requests, messages, size_bytes, answers) in self.asked.items():
            told += answers
            have = outcomes.get(outcome, _NOTHING)
            outcomes[outcome] = Amount(have.requests + requests, have.messages + messages, have.size_bytes + size_bytes)
            if requests and outcome != "held":
                asked, refused = languages.get(language, (0, 0))
                languages[language] = (asked + requests, refused + requests if outcome == "refused" else refused)
        return ResourceSecond(resource, outcomes, told, languages, tuple(self.clients), self.more_clients)


class RawSecond:
    """One second that is over, not yet made into plain data.

    Args:
        at_s: its beginning.
        began_ns: the same on the monotonic clock.
        stepped_s: as in TrafficSecond.
    """

    __slots__ = ("at_s", "began_ns", "keys", "other", "resources", "seconds", "stepped_s")

    def __init__(self, at_s: int, began_ns: int, stepped_s: int) -> None:
        self.at_s = at_s
        self.began_ns = began_ns
        self.stepped_s = stepped_s
        self.seconds = 1
        self.other = 0
        self.resources: dict[Resource, _Entry] = {}
        #: How many rejections there are.
        self.keys = 0

    def __len__(self) -> int:
        """Return how much it holds."""
        return len(self.resources) + self.keys

    def steps(self) -> Iterator[TrafficSecond | None]:
        """Yield None many times, and then the finished TrafficSecond: each step takes a few microseconds."""
        resources: list[ResourceSecond] = []
        rejections: list[Rejection] = []
        for resource, entry in self.resources.items():
            if entry.asked:
                resources.append(entry.finished(resource))
                yield None
            for (client, group, rule, verdict), sums in entry.rejections.items():
                requests, messages, size_bytes, wait_max_us = sums
                amount = Amount(requests, messages, size_bytes)
                rejections.append(Rejection(resource, client, group, rule, verdict, amount, wait_max_us))
                yield None
        yield TrafficSecond(self.at_s, tuple(resources), tuple(rejections), self.other, self.seconds, self.stepped_s)

    def let_go(self) -> Iterator[None]:
        """Forget it bit by bit: to free ten thousand resources at once takes 4 ms."""
        while self.resources:
            self.resources.popitem()
            yield


class Account(msgspec.Struct, gc=False):
    """Where one sender's traffic of one kind is added up for a resource: who keeps it need not look for it again.

    It is good for as long as ``second`` is the recorder's, and for what the other attributes say. Who keeps it for
    longer keeps hardly anything of the second.

    Attributes:
        second: None if it is good but once.
        resource: what was asked for.
        sender: who asked.
        outcome: what became of it.
        sums: requests, messages, bytes, and refusals that were told.
        rule: that had a word with it, if one had.
        producer_group: likewise.
        rejection: requests, messages, bytes, and the longest wait, of what the rule had a word with.
    """

    second: RawSecond | None
    resource: Resource
    sender: Sender
    outcome: Outcome
    sums: _Sum
    rule: str = ""
    producer_group: str = ""
    rejection: _Sum = []


NO_ACCOUNT: Final = Account(None, Resource("", ""), NOBODY, "admitted", [])
"""Good for nothing."""


class Recorder:
    """Adds up what became of requests in the second under way, and keeps those that are over until they are taken.

    Whoever tells it something calls ``turn`` first if the second is over.

    Args:
        max_keys: rejections told apart in a second; beyond it client and producer group are ``_other``, then, beyond
            twice as many, the resource's name, and in the end the rule.
        max_resources: resources told apart in a second.
        pinned: resources that are always told apart.
        now_ns: monotonic time.
        wall_ns: nanoseconds since 1970 UTC at that time.

    Attributes:
        second: the one under way.
        ends_ns: monotonic time at which it is over.
    """

    __slots__ = (
        "_finished",
        "_kept",
        "_looked_ns",
        "_looked_wall_ns",
        "_max_keys",
        "_max_resources",
        "_pinned",
        "_stepped_s",
        "ends_ns",
        "second",
    )

    def __init__(
        self, max_keys: int, max_resources: int, pinned: Container[Resource], now_ns: int, wall_ns: int
    ) -> None:
        self._max_keys = max_keys
        self._max_resources = max_resources
        self._pinned = pinned
        self._finished: list[RawSecond] = []
        #: What the finished ones hold.
        self._kept = 0
        #: Told by the second under way, and of later steps of the clock, by the next.
        self._stepped_s = 0
        self._looked_ns, self._looked_wall_ns = now_ns, wall_ns
        self._begin(now_ns, wall_ns, wall_ns // _NS_PER_S)

    def _begin(self, now_ns: int, wall_ns: int, at_s: int) -> None:
        since_ns = wall_ns - at_s * _NS_PER_S
        self.second = RawSecond(at_s, now_ns - since_ns, self._stepped_s)
        self.ends_ns = now_ns - since_ns + _NS_PER_S

    def turn(self, now_ns: int, wall_ns: int) -> None:
        """Begin another second."""
        stepped_s = round((wall_ns - self._looked_wall_ns - (now_ns - self._looked_ns)) / _NS_PER_S)
        self._looked_ns, self._looked_wall_ns = now_ns, wall_ns
        second = self.second
        at_s, over_ns = divmod(wall_ns, _NS_PER_S)
        if now_ns >= self.ends_ns and at_s == second.at_s and over_ns >= _NS_PER_S - _JITTER_NS:
            at_s += 1
        if len(second):
            if len(self._finished) >= KEPT_S or self._kept >= _KEPT_FULL * (self._max_keys + self._max_resources):
                # Nobody takes any. What would take time, and a place for every name, is to add one second to another.
                second.seconds = 1 + (now_ns - second.began_ns) // _NS_PER_S
                self.ends_ns = now_ns + (at_s + 1) * _NS_PER_S - wall_ns
                self._stepped_s += stepped_s
                return
            self._finished.append(second)
            self._kept += len(second)
            self._stepped_s -= second.stepped_s
        self._stepped_s += stepped_s
        self._begin(now_ns, wall_ns, at_s)

    def take(self, now_ns: int, wall_ns: int, *, unfinished: bool) -> list[RawSecond]:
        """Hand out what is over, and with ``unfinished`` what is not: the rest of that second is one of its own."""
        taken, self._finished, self._kept = self._finished, [], 0
        if unfinished or now_ns >= self.ends_ns:
            self.turn(now_ns, wall_ns)
        taken += self._finished
        self._finished, self._kept = [], 0
        return taken

    def put_back(self, seconds: Sequence[RawSecond]) -> None:
        """Take back what was handed out and came to nothing."""
        self._finished[:0] = seconds
        self._kept += sum(map(len, seconds))

    def count(
        self,
        resources: Sequence[Resource],
        amount: Sums,
        outcome: Outcome,
        sender: Sender,
        judged: Judged | None = None,
    ) -> None:
        """Add what became of some requests, to each of their resources.

        Args:
            resources: what they were for.
            amount: of them.
            outcome: what became of them.
            sender: who sent them.
            judged: what a rule said to them, if one did.
        """
        requests, messages, size_bytes = amount
        for resource in resources:
            account = self.account(resource, sender, outcome, judged)
            sums = account.sums
            sums[0] += requests
            sums[1] += messages
            sums[2] += size_bytes
            if judged is not None:
                sums[3] += judged[4]
                sums = account.rejection
                sums[0] += requests
                sums[1] += messages
                sums[2] += size_bytes
                sums[3] = max(sums[3], judged[3])

    def account(self, resource: Resource, sender: Sender, outcome: Outcome, judged: Judged | None = None) -> Account:
        """Find where something is added up; of ``judged`` the wait and the answers do not matter."""
        second = self.second
        other = second.other
        entry = second.resources.get(resource)
        if entry is None:
            entry = self._place(resource)
        account = Account(second, resource, sender, outcome, entry.look(sender, outcome))
        if judged is not None:
            verdict, account.rule, account.producer_group, _, _ = judged
            key = (sender.address, account.producer_group, account.rule, verdict)
            rejection = entry.rejections.get(key)
            account.rejection = self._sums(resource, entry, key) if rejection is None else rejection
        if second.other != other:
            # It was counted that there was no room, as it is each time.
            account.second = None
        return account

    def _place(self, resource: Resource) -> _Entry:
        """Find room for a resource, or what it shares with all others of its kind."""
        second = self.second
        if len(second.resources) >= self._max_resources and resource not in self._pinned:
            second.other += 1
            return self._other(resource)
        entry = second.resources[resource] = _Entry()
        return entry

    def _other(self, resource: Resource) -> _Entry:
        return self.second.resources.setdefault(Resource(resource.kind, OTHER), _Entry())

    def _sums(self, resource: Resource, entry: _Entry, key: _Key) -> _Sum:
        """Find room for a key, or one that it shares with others."""
        second, most = self.second, self._max_keys
        if second.keys >= most:
            second.other += 1
            key = (OTHER, OTHER, *key[2:])
            if second.keys >= 2 * most and key not in entry.rejections:
                entry = self._other(resource)
                if second.keys >= 2 * most + _MAX_OTHER_RULES and key not in entry.rejections:
                    key = (OTHER, OTHER, OTHER, key[3])
        sums = entry.rejections.get(key)
        if sums is None:
            second.keys += 1
            sums = entry.rejections[key] = [0, 0, 0, 0]
        return sums
