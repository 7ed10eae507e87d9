"""What can be known of a log, however it came to be known; plain data."""

from dataclasses import dataclass, field

Resource = tuple[str, str, str]
"""Instance, kind, name."""
Amount = tuple[int, int, int]
"""Requests, messages, bytes."""


@dataclass(frozen=True)
class Storm:
    """Refusals of one resource, each at most the gap after the one before.

    Attributes:
        resource: of which.
        shadow: nothing was refused: a limit that only shadows would have.
        start_s: its first second.
        end_s: end of its last one.
        messages: refused.
        clients: messages by client, in order of their names.
    """

    resource: Resource
    shadow: bool
    start_s: int
    end_s: int
    messages: int
    clients: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Truth:
    """What is in a log.

    Attributes:
        records: each once.
        bad_lines: that are no records.
        damaged: names of files that break off in the middle of what is compressed, or are not compressed at all.
        storms: all of them.
        totals: by resource and outcome; what is 0 is left out.
        p99_per_s: messages asked for in a second: 99th percentile over all seconds that were observed, interpolated. A
            plan knows that of steady topics only.
        minutes: with a heartbeat, by instance.
        gap_minutes: without one, between the first and the last, by instance.
        lost_records: by instance.
    """

    records: int = 0
    bad_lines: int = 0
    damaged: frozenset[str] = frozenset()
    storms: frozenset[Storm] = frozenset()
    totals: dict[Resource, dict[str, Amount]] = field(default_factory=dict)
    p99_per_s: dict[Resource, float] = field(default_factory=dict)
    minutes: dict[str, int] = field(default_factory=dict)
    gap_minutes: dict[str, int] = field(default_factory=dict)
    lost_records: dict[str, int] = field(default_factory=dict)
