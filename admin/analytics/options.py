"""What a report is asked for: the numbers that change what the tables say.

Where logs come from, where tables go and how Spark runs is not among them. Plain data, no Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Try(NamedTuple):
    """A rate that somebody wants to know about: what would it have refused?

    Attributes:
        kind: of the resource.
        name: of the resource.
        rate_per_s: in what its limit counts.
    """

    kind: str
    name: str
    rate_per_s: float


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the tables are made with.

    Attributes:
        storm_gap_s: a storm goes on while its refusals are at most so many seconds apart; at least 1, at most 3600.
        since_s: records before this second are left out, in seconds since 1970 UTC; None is from the beginning. A storm
            that is cut by it is cut, as if there had been nothing before.
        until_s: records at or after this second are left out; None is to the end. Minutes are not split: the traffic
            of a minute counts as a whole where its beginning counts.
        top: so many clients, users and producer groups of a storm, and so many culprits of a resource and day.
        headroom: a recommended limit is so much above what is needed, as a share: 0.2 is 20% more.
        capacity_per_s: messages per second that the broker of each instance can take; None is not known.
        attempts: how often clients try in all when they are refused as busy, by the language they name; others once.
        tries: rates to be replayed besides.
    """

    storm_gap_s: int = 30
    since_s: int | None = None
    until_s: int | None = None
    top: int = 10
    headroom: float = 0.2
    capacity_per_s: float | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    tries: tuple[Try, ...] = ()
