"""What became of the requests of each resource: plain integers on the data path, read at scrape time.

The number of resources that are told apart is capped, because their names come from clients; the rest is
counted together as ``_other``. Names that an operator's rule spells out are always told apart. A name stays
once it is in; only when the cap is reached does a new one take the place of one that has been silent for long,
whose counts are folded into ``_other``, so that no sum ever falls.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Final

from limiter.resource import Resource
from proxy.batch import Batch, Refuse
from proxy.control import ResourceCounts

#: The name under which everything beyond the cap is counted, for each kind.
OTHER: Final = "_other"
#: Silence after which a name may lose its place to a new one.
_SILENT_NS: Final = 600 * 1_000_000_000
#: Places looked at for each new name once the cap is reached.
_LOOKS: Final = 4


class _Counts:
    __slots__ = (
        "messages_bypass",
        "messages_pass",
        "messages_refuse",
        "requests_bypass",
        "requests_pass",
        "requests_refuse",
        "seen_ns",
    )

    def __init__(self) -> None:
        self.requests_pass = self.requests_refuse = self.requests_bypass = 0
        self.messages_pass = self.messages_refuse = self.messages_bypass = 0
        self.seen_ns = 0

    def fold(self, other: "_Counts") -> None:
        self.requests_pass += other.requests_pass
        self.requests_refuse += other.requests_refuse
        self.requests_bypass += other.requests_bypass
        self.messages_pass += other.messages_pass
        self.messages_refuse += other.messages_refuse
        self.messages_bypass += other.messages_bypass


class Tally:
    """Counts by resource and verdict.

    Args:
        max_resources: how many names are told apart, those of ``pin`` not counted.
    """

    def __init__(self, max_resources: int) -> None:
        self._max_resources = max_resources
        self._pinned: dict[Resource, _Counts] = {}
        # A plain dict would walk over all that was ever taken from its front to find its first item.
        self._counts: OrderedDict[Resource, _Counts] = OrderedDict()
        self._other: dict[str, _Counts] = {}

    def pin(self, resources: Collection[Resource]) -> None:
        """Tell these apart from now on, whatever the cap; a name once pinned stays so."""
        for resource in resources:
            if resource not in self._pinned and resource.name != OTHER:
                known = resource in self._counts
                self._pinned[resource] = self._counts.pop(resource) if known else _Counts()

    def count(self, batch: Batch, now_ns: int) -> None:
        """Count a batch whose verdicts are complete. Handlers that were bypassed make ``bypass`` of ``pass``."""
        verdicts = batch.verdicts
        for group in batch.groups():
            requests = len(group.indexes)
            messages = sum(group.messages)
            refused = refused_messages = 0
            if verdicts:
                for index, cost in zip(group.indexes, group.messages, strict=True):
                    if isinstance(verdicts.get(index), Refuse):
                        refused += 1
                        refused_messages += cost
            for resource in group.resources:
                counts = self._find(resource, now_ns)
                counts.requests_refuse += refused
                counts.messages_refuse += refused_messages
                if batch.bypassed:
                    counts.requests_bypass += requests - refused
                    counts.messages_bypass += messages - refused_messages
                else:
                    counts.requests_pass += requests - refused
                    counts.messages_pass += messages - refused_messages
        for charge in batch.charges:
            for resource in charge.resources:
                self._find(resource, now_ns).messages_pass += charge.messages

    def _find(self, resource: Resource, now_ns: int) -> _Counts:
        counts = self._counts.get(resource) or self._pinned.get(resource) or self._place(resource, now_ns)
        counts.seen_ns = now_ns
        return counts

    def _place(self, resource: Resource, now_ns: int) -> _Counts:
        """Find room for a new name, or the counts it shares with all others of its kind."""
        if resource.name == OTHER:
            # Names come from clients: one that is called so must not hide the counts of the others.
            return self._other_of(resource.kind)
        if len(self._counts) >= self._max_resources:
            self._retire_silent(now_ns)
        if len(self._counts) >= self._max_resources:
            return self._other_of(resource.kind)
        counts = self._counts[resource] = _Counts()
        return counts

    def _retire_silent(self, now_ns: int) -> None:
        """Look at the names that were looked at longest ago, and fold away the first silent one."""
        for _ in range(min(_LOOKS, len(self._counts))):
            oldest, counts = self._counts.popitem(last=False)
            if now_ns - counts.seen_ns >= _SILENT_NS:
                self._other_of(oldest.kind).fold(counts)
                return
            self._counts[oldest] = counts

    def _other_of(self, kind: str) -> _Counts:
        counts = self._other.get(kind)
        if counts is None:
            counts = self._other[kind] = _Counts()
        return counts

    def _all(self) -> Iterator[tuple[tuple[str, str], _Counts]]:
        for named in (self._pinned, self._counts):
            for resource, counts in named.items():
                yield (resource.kind, resource.name), counts
        for kind, counts in self._other.items():
            yield (kind, OTHER), counts

    def snapshot(self) -> dict[tuple[str, str], ResourceCounts]:
        """Return all counts by (kind, name)."""
        return {
            key: ResourceCounts(
                requests={
                    "pass": counts.requests_pass,
                    "refuse": counts.requests_refuse,
                    "bypass": counts.requests_bypass,
                },
                messages={
                    "pass": counts.messages_pass,
                    "refuse": counts.messages_refuse,
                    "bypass": counts.messages_bypass,
                },
            )
            for key, counts in self._all()
        }
