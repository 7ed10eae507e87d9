"""Adds texts for the admin page and the command line to the API's responses."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from admin.common import numbers
from admin.common.numbers import measured, number, per_second, short_span
from admin.wire import Adaptive, Fleet, FleetShare, Spool
from limiter.rules.resource import SCOPES
from limiter.rules.rule import DEFAULT_MAX_DEBT_S
from proxy.flow.alarms import size_text
from proxy.flow.credit import StageState
from proxy.spool.figures import SpoolState
from proxy.stats.flow import Flow
from proxy.stats.question import (
    AppliedLimit,
    ConfirmView,
    Detail,
    Explanation,
    LimitState,
    Question,
    ShareView,
    UnappliedRule,
)
from proxy.stats.snapshot import (
    MAX_FLEET_LIMITS,
    AdaptiveName,
    AdaptiveState,
    AlarmState,
    ConfirmState,
    FleetLimit,
    FleetState,
)

replace = msgspec.structs.replace

REASONS: Final[Mapping[str, str]] = {
    "no_consumer": "none of its consumers is connected through Sluice",
    "auto_ack": "one of its consumers uses automatic acknowledgements",
    "behind": "its consumers do not keep up",
    "falls_back": "messages were not consumed in time recently",
    "no_gain": "the broker confirms almost as fast",
    "memory": "waiting messages have reached their memory limit",
}
"""Describes each value of ``ConfirmState.reason``."""
_STAGES: Final = {
    "connection": "connections",
    "channel": "channels",
    "resource": "resources",
    "writer": "to brokers",
}
_AWAY: Final[Mapping[str, str]] = {
    "last": "this member keeps its last share of each limit",
    "equal": "this member uses an equal share of each limit",
    "unlimited": "fleet limits admit everything",
    "refuse": "fleet limits refuse everything",
}
"""Describes each value of ``FleetState.when_away``."""
_STATES: Final = ("blocked", "flow", "throttled", "running")


def state_word(state: str) -> str:
    return "in flow" if state == "flow" else state


# --- explain --------------------------------------------------------------------------------------


def explained(
    explanation: Explanation, *, live: bool, adaptive: Iterable[AdaptiveState] = (), fleet: FleetState | None = None
) -> Explanation:
    """Return the explanation with its texts filled in.

    Set ``live`` if the explanation includes live state. A limit without a state is then described as not used yet.
    """
    now = {each.listener: each for each in adaptive}
    leased = None if fleet is None else of_fleet(fleet)
    confirm = explanation.confirm
    # The rule that sets ``confirm`` is shown separately.
    confirming = None if confirm is None else confirm.rule
    return replace(
        explanation,
        text=_question(explanation),
        sentences=tuple(_general(explanation)),
        limits=tuple(
            replace(
                each,
                text=_admitted(each),
                details=tuple(_details(each, explanation, now.get(each.name), leased, live=live)),
            )
            for each in explanation.limits
        ),
        unapplied=tuple(
            replace(each, text=_unapplied(each)) for each in explanation.unapplied if each.rule != confirming
        ),
        confirm=None if confirm is None else _confirm(confirm, live=live),
    )


def _question(explanation: Explanation) -> str:
    question = explanation.question
    named = (
        (question.kind, question.name),
        ("client", question.client),
        ("producer_group", question.producer_group),
        ("certificate", question.certificate),
        ("user", question.user),
        ("vhost", question.vhost),
        ("listener scope", question.listener),
        ("at", question.at),
    )
    return ", ".join(f"{_spaced(word)} {name}" for word, name in named if name)


def _general(explanation: Explanation) -> Iterator[str]:
    if not explanation.limiting:
        yield "Limiting is switched off: everything passes."
    if explanation.exempt_on:
        yield f"The client is exempt on listener {', '.join(explanation.exempt_on)}: nothing limits it there."
    if explanation.ignored:
        kind = explanation.question.kind
        scopes = " or ".join(map(_spaced, explanation.ignored))
        why = (
            "this shows only the limits of the scope"
            if kind in SCOPES
            else f"they limit published messages, and a {_spaced(kind)} is consumed"
        )
        yield f"Limits of a {scopes} do not apply to it: {why}."
    if explanation.waits and any(each.rule.action in {"reject", "delay", "default"} for each in explanation.limits):
        yield f"{explanation.waits[0].upper()}{explanation.waits[1:]}."
    for refusal in explanation.refusals:
        where = ", ".join(refusal.listeners)
        yield f"It is always refused on listener {where}, regardless of limits: {refusal.rule}."
    if not explanation.limits:
        if explanation.refusals:
            yield "No limit applies to it."
        else:
            yield "Nothing limits it." if explanation.unapplied else "No rule matches, so nothing limits it."


def _unapplied(each: UnappliedRule) -> str:
    rule = f"{each.rule.name} = {each.rule.limit} ({each.rule.source})"
    return f"{_spaced(each.kind)} {each.name}: {rule}: {each.why}"


def _details(
    limit: AppliedLimit, explanation: Explanation, adaptive: AdaptiveState | None, fleet: Fleet | None, *, live: bool
) -> Iterator[Detail]:
    rule = limit.rule
    yield Detail("rule", f"{rule.name} = {rule.limit} ({rule.source})")
    yield Detail("why", limit.why)
    yield Detail("above", _above(limit, explanation))
    if limit.limit.adaptive:
        if adaptive is not None:
            yield Detail("now", "; ".join((_adaptive_now(adaptive), *_share(adaptive, explanation.question))))
        return
    if limit.limit.fleet and fleet is not None:
        yield Detail("fleet", _of_fleet(limit, fleet))
    if limit.state is not None:
        yield Detail("now", _now(limit, limit.state))
        yield from (Detail("share", f"of {share.key}: {_stored(limit, share)}") for share in limit.state.shares)
    elif live:
        yield Detail("now", "not used yet")
    if limit.usage is not None:
        windows = (("1 s", limit.usage.last_1s), ("10 s", limit.usage.last_10s), ("60 s", limit.usage.last_60s))
        yield Detail("used", ", ".join(f"{share:.0%} over {window}" for window, share in windows))
    if limit.held:
        yield Detail("held", "1 request" if limit.held == 1 else f"{limit.held} requests")


def _admitted(limit: AppliedLimit) -> str:
    figures = limit.limit
    if figures.adaptive:
        return limit.rule.limit
    if not figures.rate_per_s:
        return f"no {figures.unit} at all"
    parts = [f"{numbers.limit(figures.rate_per_s)} {figures.unit} per second", f"burst {number(figures.burst_s)} s"]
    if figures.max_debt_s != DEFAULT_MAX_DEBT_S and figures.unit != "requests":
        parts.append(f"at most {numbers.limit(figures.most_at_once)} in one request")
    if figures.warm_up_s:
        parts.append(f"warming up in {number(figures.warm_up_s)} s")
    if figures.fair_by is not None:
        parts.append(f"shared fairly by {_spaced(figures.fair_by)}")
    if figures.fleet:
        parts.append("for all members of the fleet together")
    return ", ".join(parts)


def _above(limit: AppliedLimit, explanation: Explanation) -> str:
    figures = limit.limit
    refused = "refused" if figures.busy_code is None else f"refused with code {figures.busy_code}"
    match limit.rule.action:
        case "shadow":
            return "passes, and is counted as a request that would be refused"
        case _ if figures.adaptive:
            return f"while the broker is overloaded, requests that exceed their name's share are {refused}"
        case action if explanation.by_credit and (action == "delay" or not explanation.refuses):
            return "waits for credit until it is admitted" if figures.rate_per_s else "gets no credit"
        case _ if not explanation.refuses:
            return "held until it is admitted"
        case "delay":
            where = " in the spool" if figures.spool else ""
            return f"held for up to {number(figures.max_delay_s or 0)} s{where}, then {refused}"
        case "default":
            return f"{refused}; with AMQP 1.0, waits for credit instead"
        case _ if not figures.rate_per_s:
            return f"everything is {refused}"
        case _ if figures.break_s:
            wait = f"until permits have been available for {number(figures.break_s)} s"
            return f"{refused}, as are all later requests {wait}"
        case _:
            return refused


def _now(limit: AppliedLimit, state: LimitState) -> str:
    shadow = limit.rule.action == "shadow"
    if state.last_refused_s is None:
        refused = "nothing would have been refused so far" if shadow else "nothing refused so far"
    else:
        refused = f"{'would last have refused' if shadow else 'last refused'} {measured(state.last_refused_s)} s ago"
    return f"{_stored(limit, state)}; {refused}"


def _stored(limit: AppliedLimit, state: LimitState | ShareView) -> str:
    unit = limit.limit.unit
    shadow = limit.rule.action == "shadow"
    refuses, admits = ("would refuse", "would admit") if shadow else ("refuses", "admits")
    if not limit.limit.rate_per_s:
        return f"{admits} nothing" if limit.rule.action == "delay" else f"{refuses} everything"
    if state.open:
        return f"{refuses} everything for another {measured(state.wait_s)} s"
    if state.wait_s:
        owed = f", {measured(-state.stored_permits)} {unit} owed" if state.stored_permits < 0 else ""
        return f"{admits} again in {measured(state.wait_s)} s{owed}"
    if state.stored_permits < 0:
        # This can only be a share. It still gets the permits that other shares leave unused.
        return f"{measured(-state.stored_permits)} {unit} owed, {admits} what others leave unused"
    return f"{measured(state.stored_permits)} {unit} available"


def promise(*, below_bytes: int, within_s: float, queues: int, fallback: str) -> str:
    by = "its consumers have acknowledged it" if queues == 1 else f"consumers of {queues} queues have acknowledged it"
    unless = "published again for the broker to confirm" if fallback == "persist" else "refused"
    return (
        f"a message below {number(below_bytes)} bytes is confirmed once {by} or the broker has stored it, never before;"
        f" a message not acknowledged within {number(within_s)} s is {unless}"
    )


def _confirm(confirm: ConfirmView, *, live: bool) -> ConfirmView:
    rule = f"{confirm.rule.name} ({confirm.rule.source})"
    if confirm.left_alone or confirm.queues is None:
        text = f"The broker confirms it, although {rule} says after_consume: {confirm.left_alone}."
        return replace(confirm, text=text)
    promised = promise(
        below_bytes=confirm.below_bytes, within_s=confirm.within_s, queues=confirm.queues, fallback=confirm.fallback
    )
    details = [Detail("promise", promised)]
    now = confirm.now
    if now is not None:
        oldest = f", the oldest for {measured(now.oldest_ms / 1000)} s"
        waiting = f"{now.pending} {'waits' if now.pending == 1 else 'wait'}{oldest}" if now.pending else "none waiting"
        details += [Detail("now", f"by {_confirmed_by(now)}; {waiting}"), Detail("so far", _ways(now))]
    elif live:
        details.append(Detail("now", "nothing was published recently"))
    return replace(confirm, text=f"Confirmed by its consumers, as {rule} says:", details=tuple(details))


def _confirmed_by(state: ConfirmState) -> str:
    if state.mode == "after_consume":
        return "consumers"
    return f"broker: {REASONS.get(state.reason, state.reason)}"


def _ways(state: ConfirmState) -> str:
    counted = (
        (state.after_consume_total, "by consumers"),
        (state.broker_total, "by the broker"),
        (state.persisted_total, "published again"),
        (state.nacked_total, "refused"),
    )
    return ", ".join(f"{count} {way}" for count, way in counted if count) or "none"


# --- adaptive -------------------------------------------------------------------------------------


def adaptive(states: Iterable[AdaptiveState]) -> tuple[Adaptive, ...]:
    return tuple(
        Adaptive(
            **msgspec.structs.asdict(each)
            | {"names": tuple(replace(name, may_per_s=_may_per_s(each, name)) for name in each.names)},
            text=_adaptive_now(each),
        )
        for each in states
    )


def _may_per_s(state: AdaptiveState, name: AdaptiveName) -> float | None:
    """Return a name's share, capped at the limit. Without the cap, a share could exceed it while demand is low."""
    if name.may_per_s is None or state.limit_per_s is None:
        return name.may_per_s
    return min(name.may_per_s, state.limit_per_s)


def _adaptive_now(state: AdaptiveState) -> str:
    limit = "no limit now" if state.limit_per_s is None else f"{per_second(state.limit_per_s)}/s now"
    if state.action == "shadow":
        limit += " (shadow: nothing is refused)"
    if state.latency_s is None:
        return f"adaptive: {limit}; the broker's latency is unknown"
    usual = "" if state.usual_latency_s is None else f", usually {_ms(state.usual_latency_s)}"
    return f"adaptive: {limit}; the broker's p90 is {_ms(state.latency_s)}{usual}"


def _share(state: AdaptiveState, question: Question) -> Iterator[str]:
    own = f"{question.kind}:{question.name}"
    asking = {own, question.client, question.producer_group, question.certificate, question.user}
    for each in state.names:
        may_per_s = _may_per_s(state, each)
        if each.name in asking and may_per_s is not None:
            name = question.name if each.name == own else each.name
            yield f"{name} may use {per_second(may_per_s)}/s of it and asks for {per_second(each.asks_per_s)}/s"


def _ms(seconds: float) -> str:
    return f"{number(seconds * 1000, 1)} ms"


# --- fleet ----------------------------------------------------------------------------------------


def of_fleet(state: FleetState) -> Fleet:
    limits = tuple(_fleet_share(state, each) for each in state.limits)
    return Fleet(**msgspec.structs.asdict(state) | {"limits": limits, "text": _fleet_now(state)})


def _fleet_now(state: FleetState) -> str:
    if state.away_s is None:
        last = state.last_contact_s_ago
        response = "no response from Redis yet" if last is None else f"last response from Redis {short_span(last)} ago"
        return f"{_members(state)}; {response}"
    why = f" ({state.error})" if state.error else ""
    alone = _AWAY[state.when_away]
    if state.last_contact_s_ago is None and state.when_away in {"last", "equal"}:
        alone = f"this member has not reached Redis since it started; it uses an equal share for {_members(state)}"
    return f"Redis has been unreachable for {short_span(state.away_s)}{why}; {alone}"


def _members(state: FleetState) -> str:
    return f"{state.size} member{'s' * (state.size != 1)}"


def _fleet_share(state: FleetState, limit: FleetLimit) -> FleetShare:
    may: float | None = limit.rate_per_s * limit.share
    if state.away_s is not None and state.when_away != "last":
        may = {"equal": limit.rate_per_s / state.size, "refuse": 0.0}.get(state.when_away)
    unit = " bytes" if limit.dimension == "bytes" else ""
    share = "this member admits everything" if may is None else f"this member's share is {per_second(may)}{unit}/s"
    if state.away_s is not None:
        share = f"Redis is unreachable, and {share}"
    elif not (limit.share or limit.asks_per_s):
        share = "this member does not use it now"
    text = f"{numbers.limit(limit.rate_per_s)}{unit}/s for {_members(state)}; {share}"
    return FleetShare(**msgspec.structs.asdict(limit), may_per_s=may, text=text)


def _of_fleet(limit: AppliedLimit, now: Fleet) -> str:
    dimension = "bytes" if limit.limit.unit == "bytes" else "messages"
    for each in now.limits:
        if (each.kind, each.name, each.dimension) == (limit.kind, limit.name, dimension):
            return each.text
    idle = "; this member does not use it now" if len(now.limits) < MAX_FLEET_LIMITS else ""
    return f"for {_members(now)}{idle}"


# --- flow -----------------------------------------------------------------------------------------


def flow(now: Flow) -> Flow:
    connections = tuple(
        replace(each, connection=stage(each.connection), others=tuple(map(stage, each.others)))
        for each in now.connections
    )
    nobody = "No bottleneck: connections waited only briefly." if connections else "No connections are waiting."
    return replace(
        now,
        sentences=tuple(each.text for each in now.findings) or (nobody,),
        details=tuple(_flow_details(now)),
        connections=connections,
        store=None if now.store is None else stage(now.store),
        alarms=tuple(replace(each, status=_alarm(each)) for each in now.alarms),
        confirms=tuple(replace(each, by=_confirmed_by(each)) for each in now.confirms),
    )


def _flow_details(now: Flow) -> Iterator[Detail]:
    if now.store is not None:
        often = stage(now.store).text
        yield Detail("spool disk", "; ".join(filter(None, (state_word(now.store.state), often))))
    for kind, word in _STAGES.items():
        counts = {each.state: each.stages for each in now.counts if each.kind == kind and each.stages}
        if counts:
            said = (f"{counts[state]} {state_word(state)}" for state in _STATES if state in counts)
            yield Detail(word, ", ".join(said))
    yield Detail("busy", f"{now.busy_ratio:.0%} of the last second")


def stage(each: StageState) -> StageState:
    counted = (
        ("in flow", each.flow_total, each.flow_s),
        ("throttled", each.throttled_total, each.throttled_s),
        ("blocked", each.blocked_total, each.blocked_s),
    )
    text = "; ".join(f"{word} {_times(total, seconds)}" for word, total, seconds in counted if total)
    return replace(each, text=text) if text else each


def _alarm(alarm: AlarmState) -> str:
    if alarm.stands:
        return f"RAISED: {alarm.text}"
    before = f"; raised {_times(alarm.total, alarm.stood_s)}" if alarm.total else ""
    if alarm.bytes_now is None or alarm.bytes_limit is None:
        return f"none; usage is unknown{before}"
    what = "used, alarm above" if alarm.scarce == "memory" else "free, alarm below"
    return f"none: {size_text(alarm.bytes_now)} {what} {size_text(alarm.bytes_limit)}{before}"


# --- spool ----------------------------------------------------------------------------------------


def spool(now: Spool) -> Spool:
    holds = now.holds
    if holds is None:
        why = f": {now.folder.error}" if now.folder.error else ""
        return replace(now, sentences=(f"There is no spool{why}; waiting messages are held in memory.",))
    return replace(now, sentences=tuple(_spool(holds, now.folder.directory)), details=tuple(_spool_details(holds)))


def _spool(holds: SpoolState, directory: str | None) -> Sequence[str]:
    size = size_text(sum(holds.content_bytes.values()))
    messages, queues = _count(sum(holds.messages.values()), "message"), _count(holds.queues, "queue")
    sentences = [f"{messages} of {size} in {queues}, in {directory}"]
    if holds.alarm:
        sentences.append(
            f"The disk does not accept writes: {holds.alarm}. Until it does, new messages are held in memory."
        )
    if holds.stopped:
        sentences.append(
            "Memory is full: until some is free, Sluice does not read from clients whose messages would be spooled."
        )
    return sentences


def _spool_details(holds: SpoolState) -> Iterator[Detail]:
    places = (f"{word} {count}" for word, count in holds.messages.items() if count)
    yield Detail("places", ", ".join(places) or "empty")
    yield Detail("memory", f"{size_text(holds.memory_bytes)} of {size_text(holds.memory_limit_bytes)}")
    writing = f", {size_text(holds.writing_bytes)} being written" if holds.writing_bytes else ""
    yield Detail("disk", f"{size_text(holds.disk_bytes)} of {size_text(holds.disk_limit_bytes)}{writing}")
    moved = f"{holds.in_total} in, {holds.out_total} out"
    yield Detail("so far", f"{moved}, {holds.written_total} written, {holds.read_total} read")
    ended = (
        (holds.lost_total, "lost on disk"),
        (holds.expired_total, "expired"),
        (holds.too_old_total, "too old"),
        (holds.stops_total, "stops because memory was full"),
    )
    if said := ", ".join(f"{count} {word}" for count, word in ended if count):
        yield Detail("ended", said)


def _times(total: int, seconds: float) -> str:
    return f"{_count(total, 'time')}, {short_span(seconds)}"


def _count(amount: int, what: str) -> str:
    return f"{amount} {what}{'s' * (amount != 1)}"


def _spaced(word: str) -> str:
    return word.replace("_", " ")
