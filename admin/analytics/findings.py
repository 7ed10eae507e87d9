"""What a report has found, as plain data: the terminal's summary, the page and the JSON all show the same.

Bounded: of whatever there may be many, the first few are here and how many there are in all; the rest is in the tables.
Nothing here knows Spark. Times are whole seconds since 1970 UTC, shares are between 0 and 1, rates are per second.
"""

from typing import Final

import msgspec

from admin.common.recommendations import Period, Recommendation

VERSION: Final = 1
"""Version of the JSON."""


class OfResource(msgspec.Struct, frozen=True, kw_only=True):
    """Something found of one resource.

    Attributes:
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
    """

    instance: str
    kind: str
    name: str


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not read, or lines of it that could not be understood.

    Attributes:
        file: its path or address.
        reason: in words.
        lines: how many of them; 0 is the whole file.
        example: the beginning of one such line.
    """

    file: str
    reason: str
    lines: int = 0
    example: str = ""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What was read.

    Attributes:
        logs: as they were given.
        files: that were read.
        size_bytes: of these.
        records: understood, without duplicates.
        duplicates: records that were there more than once.
        bad_lines: lines set aside.
        skipped_files: files that could not be read.
        outside_files: files that were left unread, since by their dates they have nothing of the period.
        set_aside: the first of both.
    """

    logs: tuple[str, ...] = ()
    files: int = 0
    size_bytes: int = 0
    records: int = 0
    duplicates: int = 0
    bad_lines: int = 0
    skipped_files: int = 0
    outside_files: int = 0
    set_aside: tuple[SetAside, ...] = ()


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """What the log does not know of a sidecar, or of all of them.

    Attributes:
        gap_minutes: between the first and the last, of which nothing is known.
        lost_records: that it could not write, by its own count, or whose numbers are missing.
        other: runs of requests that it counted under ``_other``.
        bypassed_requests: that went past the limiter.
        limiting_off_minutes: in which limiting was switched off.
    """

    gap_minutes: int = 0
    lost_records: int = 0
    other: int = 0
    bypassed_requests: int = 0
    limiting_off_minutes: int = 0


class Coverage(Unknown, frozen=True, kw_only=True):
    """How much of one sidecar's life the log shows.

    Attributes:
        instance: its name.
        from_s: beginning of its first minute.
        until_s: end of its last one.
        minutes: in which it recorded anything.
        versions: of Sluice.
    """

    instance: str
    from_s: int
    until_s: int
    minutes: int
    versions: tuple[str, ...] = ()


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One of several that have a part in something."""

    name: str
    messages: int
    share: float


class Storm(OfResource, frozen=True, kw_only=True):
    """Refusals of one resource without a long pause between them.

    Attributes:
        shadow: a limit in shadow would have refused; these are among no figure of what was refused.
        start_s: of the first second with a refusal.
        end_s: end of the last one.
        is_open: it may go on after the end of the log.
        requests: refused.
        messages: refused.
        size_bytes: refused.
        peak_per_s: most messages refused in one second.
        peak_at_s: that second.
        rules: that refused.
        clients: those with the largest shares.
        client_count: how many there were.
        users: likewise.
        user_count: likewise.
        producer_groups: likewise.
        producer_group_count: likewise.
    """

    shadow: bool = False
    start_s: int
    end_s: int
    is_open: bool = False
    requests: int
    messages: int
    size_bytes: int = 0
    peak_per_s: int = 0
    peak_at_s: int = 0
    rules: tuple[str, ...] = ()
    clients: tuple[Share, ...] = ()
    client_count: int = 0
    users: tuple[Share, ...] = ()
    user_count: int = 0
    producer_groups: tuple[Share, ...] = ()
    producer_group_count: int = 0


class Culprit(OfResource, frozen=True, kw_only=True):
    """Whose requests for a resource were refused, over the whole period.

    Attributes:
        client: address.
        user: that it has logged in as, or empty.
        product: what the client says it is, with its version, or empty.
        producer_group: or empty.
        requests: refused.
        messages: refused.
        size_bytes: refused.
        share: of all messages of this resource that were refused.
    """

    client: str
    user: str = ""
    product: str = ""
    producer_group: str = ""
    requests: int
    messages: int
    size_bytes: int = 0
    share: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a curve, rates in messages per second.

    Attributes:
        at_s: its beginning.
        admitted_per_s: mean of what reached the broker.
        refused_per_s: mean of what did not.
        shadowed_per_s: mean of what reached it, but a limit in shadow would have refused it; among the admitted.
        peak_per_s: asked for in the busiest second.
        limit_per_s: in force at the end of its last minute; None is unlimited.
    """

    at_s: int
    admitted_per_s: float
    refused_per_s: float
    shadowed_per_s: float = 0.0
    peak_per_s: float
    limit_per_s: float | None = None


class Curve(OfResource, frozen=True, kw_only=True):
    """What was asked for of one resource, over time.

    Attributes:
        step_s: between the points: 60, or more where there would be too many. Steps without a request are left out.
        admitted: messages in all.
        refused: messages in all.
        shadowed: of the admitted ones, those that a limit in shadow would have refused.
        points: in order.
    """

    step_s: int
    admitted: int
    refused: int
    shadowed: int = 0
    points: tuple[Point, ...]


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """A live change of a limit within the period; see ``LimitChangeRecord``."""

    instance: str
    at_s: int
    change_id: int
    action: str
    kind: str = ""
    name: str = ""
    rate_before_per_s: float | None = None
    rate_after_per_s: float | None = None
    by: str = ""
    reason: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One sidecar's part in what all of them pass of a resource.

    Attributes:
        instance: the sidecar.
        need_per_s: messages that its limit should admit at least.
        limit_per_s: in force; None is unlimited.
        share: of the whole that it should have.
    """

    instance: str
    need_per_s: float
    limit_per_s: float | None
    share: float


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that several sidecars pass: each has a limit of its own, and the broker gets their sum.

    Attributes:
        kind: of the resource.
        name: of the resource.
        need_per_s: of all of them.
        limit_per_s: all their limits added up; None if one is unlimited.
        member_count: how many they are.
        members: the first of them, those with the largest shares first.
    """

    kind: str
    name: str
    need_per_s: float
    limit_per_s: float | None
    member_count: int
    members: tuple[Member, ...]


class WeekOf(OfResource, frozen=True, kw_only=True):
    """Messages asked for of one resource in a week, and in the one before.

    Attributes:
        messages: asked for.
        refused: of these.
        messages_before: asked for in the week before.
        refused_before: of these.
    """

    messages: int
    refused: int
    messages_before: int
    refused_before: int


class Week(msgspec.Struct, frozen=True, kw_only=True):
    """The last seven days of the period beside the seven before.

    Attributes:
        from_s: beginning of the last seven days.
        until_s: their end.
        before_from_s: beginning of the seven before.
        before_until_s: their end.
        resources: those with the most messages refused in either week, then the busiest.
    """

    from_s: int
    until_s: int
    before_from_s: int
    before_until_s: int
    resources: tuple[WeekOf, ...]


class New(OfResource, frozen=True, kw_only=True):
    """What was not there before the last week of the period, or the last day of a shorter one.

    Attributes:
        client: address of who was refused for the first time; empty if the resource itself is new.
        user: as of a culprit.
        product: likewise.
        producer_group: likewise.
        since_s: when it was first asked for, or the client first refused.
        messages: asked for since then; of a client, refused.
    """

    client: str = ""
    user: str = ""
    product: str = ""
    producer_group: str = ""
    since_s: int
    messages: int


class Tried(OfResource, frozen=True, kw_only=True):
    """What a rate that was asked about would have refused.

    Attributes:
        instance: empty if nothing was asked for under that name.
        rate_per_s: of the limit, in its unit.
        refused_share: of the demand without retries; None if it was not replayed.
        refused_share_uncorrected: of all that was asked for.
    """

    rate_per_s: float
    refused_share: float | None = None
    refused_share_uncorrected: float | None = None


class Totals(Unknown, frozen=True, kw_only=True):
    """Of the whole period, all sidecars together; messages.

    Attributes:
        resources: that were asked for.
        refused_resources: of which something was refused.
        admitted: messages that reached the broker.
        refused: messages that did not.
        shadowed: of the admitted ones, those that limits in shadow would have refused.
        held: messages that had to wait for a limit first; each is among the others, too.
        storms: how many, without those of limits in shadow.
        open_storms: of these, that may go on.
        shadow_storms: how many of limits in shadow.
        recommendations: how many of each action.
        offered: how many of these are offered apart, by what applies them: ``lower`` or ``raise``.
    """

    resources: int = 0
    refused_resources: int = 0
    admitted: int = 0
    refused: int = 0
    shadowed: int = 0
    held: int = 0
    storms: int = 0
    open_storms: int = 0
    shadow_storms: int = 0
    recommendations: dict[str, int] = {}
    offered: dict[str, int] = {}


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a report says.

    Attributes:
        version: of this format.
        made_at: when, ISO 8601 UTC.
        out: the directory with what is for people.
        tables: the directory or address with the tables.
        period: of the records.
        inputs: what was read.
        totals: of the period.
        coverage: the first few sidecars, by name.
        instance_count: how many there are.
        storms: those with the most messages refused; then those of limits in shadow, likewise.
        culprits: likewise.
        curves: of the resources with the most messages refused, then of the busiest.
        recommendations: what is to be done first, and those for the storms shown; the others are in
            ``recommendations.json``.
        tried: the rates that were asked about.
        fleets: resources on several sidecars, those with the largest demand.
        week: the last week beside the one before; None if the period has no two weeks.
        new_resources: that were not there before, the busiest first.
        new_clients: that were not refused before, those with the most messages refused first.
        limit_changes: the latest.
        storm_gap_s: so long a pause ends a storm.
    """

    version: int = VERSION
    made_at: str
    out: str
    tables: str = ""
    period: Period = Period()
    inputs: Inputs = Inputs()
    totals: Totals = Totals()
    coverage: tuple[Coverage, ...] = ()
    instance_count: int = 0
    storms: tuple[Storm, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    curves: tuple[Curve, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    tried: tuple[Tried, ...] = ()
    fleets: tuple[Fleet, ...] = ()
    week: Week | None = None
    new_resources: tuple[New, ...] = ()
    new_clients: tuple[New, ...] = ()
    limit_changes: tuple[LimitChange, ...] = ()
    storm_gap_s: int = 30
