"""The options of a report that affect its tables. Plain data without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Try(NamedTuple):
    """``rate_per_s``: in the unit of the resource's limit."""

    kind: str
    name: str
    rate_per_s: float


@dataclass(frozen=True, kw_only=True)
class Options:
    storm_gap_s: int = 30  # 1 to 3600
    since_s: int | None = None  # seconds since 1970 UTC
    until_s: int | None = None  # exclusive
    headroom: float = 0.2  # margin above the need, as a share
    attempts: Mapping[str, int] = field(default_factory=dict)  # total at a busy answer, by language. Default: 1
    tries: tuple[Try, ...] = ()


def default_attempts() -> dict[str, int]:
    """Total attempts of clients at a busy answer, by language. Not for Spark's executors, which have no protocols."""
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - not on executors

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}
