"""The figures of one resource that a recommendation is made from.

Rates are per second, shares between 0 and 1. Plain data: nothing but the standard library.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple


class Percentiles(NamedTuple):
    """Of a rate, over all seconds that were observed; quiet ones count as 0."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    top: float = 0.0


_NOTHING: Final = Percentiles()


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit in force at the end of the period.

    Attributes:
        rule: name of the rule; empty if none limits.
        rate_per_s: None is unlimited.
        burst_s: seconds' worth of permits.
        break_s: of the breaker.
        count: ``messages`` or ``requests``.
        bytes_per_s: None is unlimited.
        bytes_burst_s: seconds' worth of bytes.
        action: what happens above it.
        changed: it was not the same all the time.
    """

    rule: str = ""
    rate_per_s: float | None = None
    burst_s: float = 1.0
    break_s: float = 0.0
    count: str = "messages"
    bytes_per_s: float | None = None
    bytes_burst_s: float = 1.0
    action: str = "reject"
    changed: bool = False

    @property
    def rate(self) -> float | None:
        """The rate as far as it is enforced or shadowed."""
        return None if self.action == "off" else self.rate_per_s

    @property
    def limits(self) -> bool:
        """Whether messages, requests or bytes are limited."""
        return self.rate is not None or self.bytes_rate is not None

    @property
    def bytes_rate(self) -> float | None:
        """The bytes, likewise."""
        return None if self.action == "off" else self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Storms:
    """The refusals of a resource.

    Attributes:
        count: of storms.
        days: on which one began.
        messages: refused in them.
        top_two_share: of these, what the one or two clients of each that were refused most have.
        clients: most in one storm.
        own_share: what the resource's own limit refused of it.
        other_rule: the rule that refused most of the rest; empty if none did.
    """

    count: int = 0
    days: int = 0
    messages: int = 0
    top_two_share: float = 0.0
    clients: int = 0
    own_share: float = 1.0
    other_rule: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """What was asked for of one resource; in the unit that its limit counts, unless said otherwise.

    Attributes:
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
        limit: in force at the end.
        observed_s: seconds of which the log knows.
        days: days (UTC) of which it knows anything.
        active_s: seconds with demand.
        refused_s: seconds of refusals: from the first to the last of each minute.
        quiet_s: seconds with demand outside of refusals; of a minute with messages that a limit would have refused,
            since it only shadows, none.
        refused_days: days (UTC) with a minute in which something was refused, or would have been.
        refused_span_s: from the first such minute to the last one.
        requests: asked for in all, retries among them.
        messages: in them.
        refused_messages: of these; would have been, if the limit only shadows.
        raw: demand per second as it came.
        corrected: without retries.
        calm: likewise, outside the seconds of refusals.
        refusing_per_s: mean demand in the seconds of refusals, without retries.
        minute_per_s: mean of the busiest minute, without retries.
        calm_minute_per_s: likewise, of minutes without a refusal.
        quiet_minute_per_s: likewise, of minutes in which nothing would have been refused either.
        size_bytes: bytes per second, without retries.
        calm_bytes: likewise, outside the seconds of refusals.
        minute_bytes_per_s: as ``minute_per_s``, of bytes.
        calm_minute_bytes_per_s: likewise.
        quiet_minute_bytes_per_s: likewise.
        hour_per_s: mean of the busiest hour of the week; None where the log is too short to say.
        hour_of_week: that hour, 0 is Monday from 00:00 to 01:00 UTC.
        hour_times: how many times the median hour that is; None where that is 0.
        trend_per_week: growth of the daily demand a week, as a share; None where the log is too short to say.
        trend_fit: how well a line explains it, 0 to 1.
        storms: its refusals.
        lost_records: that the sidecar could not write.
        other: runs of requests that it counted under ``_other``.
    """

    instance: str
    kind: str
    name: str
    limit: Limit = Limit()
    observed_s: int = 0
    days: int = 0
    active_s: int = 0
    refused_s: int = 0
    quiet_s: int = 0
    refused_days: int = 0
    refused_span_s: int = 0
    requests: int = 0
    messages: int = 0
    refused_messages: int = 0
    raw: Percentiles = _NOTHING
    corrected: Percentiles = _NOTHING
    calm: Percentiles = _NOTHING
    refusing_per_s: float = 0.0
    minute_per_s: float = 0.0
    calm_minute_per_s: float = 0.0
    quiet_minute_per_s: float = 0.0
    size_bytes: Percentiles = _NOTHING
    calm_bytes: Percentiles = _NOTHING
    minute_bytes_per_s: float = 0.0
    calm_minute_bytes_per_s: float = 0.0
    quiet_minute_bytes_per_s: float = 0.0
    hour_per_s: float | None = None
    hour_of_week: int | None = None
    hour_times: float | None = None
    trend_per_week: float | None = None
    trend_fit: float = 0.0
    storms: Storms = Storms()
    lost_records: int = 0
    other: int = 0
