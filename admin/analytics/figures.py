"""The figures of one resource that a recommendation is made from.

Rates are per second, shares between 0 and 1. Plain data: nothing but the standard library.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from admin.common.recommendations import Retries
from limiter.rules.rule import FairBy


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
        fair_by: whose shares of it are kept apart; None makes no difference, or is not known.
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
    fair_by: FairBy | None = None
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


Seconds = tuple[tuple[float, int], ...]
"""A histogram: values, ascending, and for how many seconds each was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourDemand:
    """What was asked for of one resource in one hour: all that recommendations need of it.

    Per-second values and sums without a unit in their names are in what the limit counts, messages or requests.
    *Wanted* is what is left without the retries of what was refused, see ``retries``. A minute is *loud* if something
    was refused in it, and calm otherwise. Values of messages are exact up to 9,999 and have four digits beyond; those
    of bytes have three, and are there only where bytes are limited.

    Attributes:
        rates: that were in force, each once, the last one last; None is unlimited.
        active_s: seconds with demand.
        refused_s: seconds of refusals: from the first to the last of each minute.
        refused_active_s: seconds with demand among these.
        quiet_s: seconds with demand outside of refusals; of a minute with messages that a limit would have refused,
            since it only shadows, none.
        near_s: seconds in which at least 80% of the limit was asked for, and nothing refused.
        loud_from_s: the first minute with something refused, or shadowed; None without one.
        loud_until_s: the end of the last such minute.
        requests: asked for, retries among them.
        messages: in them.
        refused_messages: of these; would have been, if the limit only shadows.
        wanted_messages: without retries.
        asked: requests or messages.
        wanted: likewise, without retries.
        refusing: of these, in the seconds of refusals.
        minute_wanted: of the busiest minute.
        calm_minute: likewise, of calm minutes.
        quiet_minute: likewise, of minutes in which nothing would have been refused either.
        minute_bytes: as ``minute_wanted``, of bytes.
        calm_minute_bytes: likewise.
        quiet_minute_bytes: likewise.
        refused_requests: refused and dropped.
        identified_requests: of these, those with a message id, so that a repeat of theirs was counted.
        repeated_messages: that had been refused a moment before, and came again.
        calm: demand by second in calm minutes.
        loud_asked: likewise, in loud ones.
        loud_wanted: likewise, without retries.
        loud_outside: of these, before a minute's first refusal and after its last one.
        calm_bytes: as ``calm``, of bytes.
        loud_wanted_bytes: likewise.
        loud_outside_bytes: likewise.
    """

    rates: tuple[float | None, ...] = ()
    active_s: int = 0
    refused_s: int = 0
    refused_active_s: int = 0
    quiet_s: int = 0
    near_s: int = 0
    loud_from_s: int | None = None
    loud_until_s: int | None = None
    requests: int = 0
    messages: int = 0
    refused_messages: int = 0
    wanted_messages: float = 0.0
    asked: int = 0
    wanted: float = 0.0
    refusing: float = 0.0
    minute_wanted: float = 0.0
    calm_minute: float = 0.0
    quiet_minute: float = 0.0
    minute_bytes: float = 0.0
    calm_minute_bytes: float = 0.0
    quiet_minute_bytes: float = 0.0
    refused_requests: int = 0
    identified_requests: int = 0
    repeated_messages: int = 0
    calm: Seconds = ()
    loud_asked: Seconds = ()
    loud_wanted: Seconds = ()
    loud_outside: Seconds = ()
    calm_bytes: Seconds = ()
    loud_wanted_bytes: Seconds = ()
    loud_outside_bytes: Seconds = ()


class Known(NamedTuple):
    """What the log knows of a sidecar.

    Attributes:
        observed_s: seconds.
        lost_records: that it could not write.
        other: runs of requests that it counted under ``_other``.
        day_s: seconds by day, in days since 1970 UTC.
        week_s: seconds by hour of the week; 0 is Monday from 00:00 to 01:00 UTC.
    """

    observed_s: int = 0
    lost_records: int = 0
    other: int = 0
    day_s: Mapping[int, int] = {}
    week_s: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Most:
    """Whose requests were refused most.

    Attributes:
        fair_by: of what kind that is.
        name: who.
        share: of what was refused in storms.
        callers: how many were refused in one storm, at most.
    """

    fair_by: FairBy
    name: str
    share: float
    callers: int


@dataclass(frozen=True, slots=True)
class Storms:
    """The refusals of a resource; or what would have been refused, if the limit only shadows.

    Attributes:
        count: of storms.
        days: on which one began.
        messages: refused in them.
        top_two_share: of these, what the one or two clients of each that were refused most have.
        clients: most in one storm.
        own_share: what the resource's own limit refused of it.
        other_rule: the rule that refused most of the rest; empty if none did.
        most: the client, the user and the producer group that was refused most; without those that have no name.
    """

    count: int = 0
    days: int = 0
    messages: int = 0
    top_two_share: float = 0.0
    clients: int = 0
    own_share: float = 1.0
    other_rule: str = ""
    most: tuple[Most, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """What was asked for of one resource; in the unit that its limit counts, unless said otherwise.

    What ``HourDemand`` has under the same name is added up here.

    Attributes:
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
        limit: in force at the end.
        observed_s: seconds of which the log knows.
        days: days (UTC) of which it knows anything.
        refused_days: days (UTC) with a minute in which something was refused, or would have been.
        refused_span_s: from the first such minute to the last one.
        retries: whether there are some among the demand, and how that is known.
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
        lost_records: as in ``Known``.
        other: likewise.
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
    near_s: int = 0
    refused_days: int = 0
    refused_span_s: int = 0
    requests: int = 0
    messages: int = 0
    refused_messages: int = 0
    wanted_messages: float = 0.0
    retries: Retries = "none"
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
