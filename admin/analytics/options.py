"""What a report is asked for: the settings that change the tables. Plain data without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Try(NamedTuple):
    """A rate to be replayed for one resource, in what its limit counts."""

    kind: str
    name: str
    rate_per_s: float


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings that change the tables.

    Attributes:
        storm_gap_s: refusals at most this many seconds apart are one storm; 1 to 3600.
        since_s: leaves out earlier records, in seconds since 1970 UTC; None is from the beginning.
        until_s: leaves out records from this second on; None is to the end. A minute belongs to its begin.
        top: how many clients, users and producer groups of a storm, and culprits of a resource and day, are named.
        headroom: how much a recommended limit is above the need, as a share.
        attempts: how often clients try in all when refused as busy, by language; others try once.
        tries: rates to be replayed.
    """

    storm_gap_s: int = 30
    since_s: int | None = None
    until_s: int | None = None
    top: int = 10
    headroom: float = 0.2
    attempts: Mapping[str, int] = field(default_factory=dict)
    tries: tuple[Try, ...] = ()
