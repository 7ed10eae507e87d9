"""What can be known of a log, however it came to be known; plain data."""

from dataclasses import dataclass, field

Resource = tuple[str, str, str]
"""Instance, kind, name."""
Amount = tuple[int, int, int]
"""Requests, messages, bytes."""


@dataclass(frozen=True)
class Storm:
    """Refusals of one resource, each at most the gap after the one before."""

    resource: Resource
    shadow: bool
    start_s: int
    end_s: int
    messages: int
    clients: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Truth:
    """What is in a log."""

    records: int = 0
    bad_lines: int = 0
    damaged: frozenset[str] = frozenset()
    storms: frozenset[Storm] = frozenset()
    totals: dict[Resource, dict[str, Amount]] = field(default_factory=dict)
    p99_per_s: dict[Resource, float] = field(default_factory=dict)
    minutes: dict[str, int] = field(default_factory=dict)
    gap_minutes: dict[str, int] = field(default_factory=dict)
    lost_records: dict[str, int] = field(default_factory=dict)
