"""The report options that affect the results. This module does not import Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Try(NamedTuple):
    """A candidate rate to try in a replay, in the same unit as the resource's limit."""

    kind: str
    name: str
    rate_per_s: float


@dataclass(frozen=True, kw_only=True)
class Options:
    storm_gap_s: int = 30  # 1 to 3600
    since_s: int | None = None  # seconds since 1970 UTC
    until_s: int | None = None  # exclusive
    headroom: float = 0.2
    attempts: Mapping[str, int] = field(default_factory=dict)
    tries: tuple[Try, ...] = ()


def default_attempts() -> dict[str, int]:
    """Return how many times clients try to send while the broker is busy, by client language.

    Spark's executors cannot call this, because the protocols are not installed on them.
    """
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - not on executors

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}
