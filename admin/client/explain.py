"""What ``sluice limits explain`` does: ask a running sidecar, or a configuration file, and lay the answer out.

What limits a request is ``proxy.datapath.explanation``'s to know; this is the client's side of the HTTP API.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from admin.client.api import Api, flag, path
from admin.common import numbers
from admin.common.confirms import REASONS, promise
from admin.common.errors import SettingsError
from admin.common.numbers import measured, number
from admin.wire import FieldProblem
from limiter.rules.resource import SCOPES
from limiter.rules.rule import DEFAULT_MAX_DEBT_S
from proxy.stats.question import AppliedLimit, ConfirmView, Explanation, LimitState, Question, QuestionError, ShareView
from proxy.stats.snapshot import ConfirmState


def ask_sidecar(api: Api, question: Question) -> Explanation:
    """Ask a running sidecar.

    Raises:
        OperatorError: the question makes no sense there, or nobody answers.
    """
    given = {name: value for name, value in msgspec.to_builtins(question).items() if value}
    for parameter, value in given.items():
        if not value.isprintable():
            # Among them what is not UTF-8, which could not be asked for.
            raise _wrong(parameter, f"{value!r} has characters that cannot be printed")
    return api.get(path("explain"), given).read(Explanation)


def ask_file(file: str, question: Question) -> Explanation:
    """Say what a configuration file would do now; nothing is running, so there is no live state.

    Raises:
        SettingsError: the file is wrong, or the question makes no sense with it.
    """
    # Imported only here: who asks a sidecar needs neither data path nor protocols, and they take their time.
    from admin.config.sources import Flags, load  # noqa: PLC0415 - see above
    from admin.run.composition import compose  # noqa: PLC0415 - see above
    from limiter.deciding.limits import Limits  # noqa: PLC0415 - see above
    from proxy.datapath.explanation import explain  # noqa: PLC0415 - see above

    plan = compose(load(file, os.environ, Flags()))
    limits = Limits(plan.rule_set.at(datetime.now(UTC)))
    try:
        return explain(question, limits, plan.data_path_config().listeners, plan.protocols, 0)
    except QuestionError as error:
        raise _wrong(error.parameter, error.detail) from None


def _wrong(parameter: str, detail: str) -> SettingsError:
    return SettingsError(f"{flag(FieldProblem(parameter, detail))}: {detail}")


def text(explanation: Explanation, *, live: bool) -> str:
    """Lay an explanation out for people.

    Args:
        explanation: what is to be shown.
        live: it comes from a running sidecar, so that a limit without a state says something.
    """
    return "\n".join(_lines(explanation, live=live))


def _lines(explanation: Explanation, *, live: bool) -> Iterator[str]:
    question = explanation.question
    yield ", ".join(
        f"{word.replace('_', ' ')} {name}"
        for word, name in (
            (question.kind, question.name),
            ("client", question.client),
            ("producer_group", question.producer_group),
            ("certificate", question.certificate),
            ("user", question.user),
            ("vhost", question.vhost),
            ("listener scope", question.listener),
        )
        if name
    ) + (f", at {question.at}" if question.at else "")
    if not explanation.limiting:
        yield "Limiting is switched off: everything passes."
    if explanation.exempt_on:
        yield f"The client is exempt on listener {', '.join(explanation.exempt_on)}: nothing limits it there."
    if explanation.ignored:
        yield f"Limits of a {_alternatives(explanation.ignored)} do not matter for it: {_not_asked(question.kind)}."
    if explanation.waits and any(limit.rule.action in {"reject", "delay", "default"} for limit in explanation.limits):
        yield f"{explanation.waits[0].upper()}{explanation.waits[1:]}."
    for refusal in explanation.refusals:
        where = ", ".join(refusal.listeners)
        yield f"It is refused on listener {where} whatever the limits are: {refusal.rule}."
    if not explanation.limits:
        yield ""
        if explanation.refusals:
            yield "No limit applies to it."
        else:
            yield "Nothing limits it." if explanation.unapplied else "No rule matches, so nothing limits it."
    for place, limit in enumerate(explanation.limits, 1):
        yield ""
        yield f"{place}. {_spaced(limit.kind)} {limit.name}: {_admitted(limit)}"
        details = _details(limit, explanation, live=live)
        yield from (f"   {word:<6} {what}" for word, what in details)
    if explanation.confirm is not None:
        yield ""
        yield from _confirm(explanation.confirm, live=live)
    # The one that says what confirms is said above.
    confirming = None if explanation.confirm is None else explanation.confirm.rule
    if unapplied := [each for each in explanation.unapplied if each.rule != confirming]:
        yield ""
        yield "These rules match but do not apply:"
        for each in unapplied:
            rule = f"{each.rule.name} = {each.rule.limit} ({each.rule.source})"
            yield f"   {_spaced(each.kind)} {each.name}: {rule}: {each.why}"


def _details(limit: AppliedLimit, explanation: Explanation, *, live: bool) -> Iterator[tuple[str, str]]:
    rule = limit.rule
    yield "rule", f"{rule.name} = {rule.limit} ({rule.source})"
    yield "why", limit.why
    yield "above", _above(limit, explanation)
    if limit.state is not None:
        yield "now", _now(limit, limit.state)
        yield from (("share", f"of {share.key}: {_stored(limit, share)}") for share in limit.state.shares)
    elif live:
        yield "now", "nobody has needed it yet"
    if limit.usage is not None:
        used = zip(("1 s", "10 s", "60 s"), msgspec.structs.astuple(limit.usage), strict=True)
        yield "used", ", ".join(f"{share:.0%} over {window}" for window, share in used)
    if limit.held:
        yield "held", "1 request waits for it" if limit.held == 1 else f"{limit.held} requests wait for it"


def _confirm(confirm: ConfirmView, *, live: bool) -> Iterator[str]:
    rule = f"{confirm.rule.name} ({confirm.rule.source})"
    if confirm.left_alone or confirm.queues is None:
        yield f"The broker confirms it, although {rule} says after_consume: {confirm.left_alone}."
        return
    yield f"Confirmed by its consumers, as {rule} says:"
    promised = promise(
        below_bytes=confirm.below_bytes,
        within_s=confirm.within_s,
        queues=confirm.queues,
        fallback=confirm.fallback,
    )
    yield f"   {promised}"
    now = confirm.now
    if now is None:
        yield from ["   now    nothing was published of late"] if live else []
        return
    by = "by its consumers" if now.mode == "after_consume" else f"by the broker: {REASONS.get(now.reason, now.reason)}"
    oldest = f", the oldest for {measured(now.oldest_ms / 1000)} s"
    waiting = f"{now.pending} {'waits' if now.pending == 1 else 'wait'}{oldest}" if now.pending else "none waits"
    yield f"   now    {by}; {waiting}"
    yield f"   so far {_ways(now)}"


def _ways(state: ConfirmState) -> str:
    """Say how many messages of a destination were confirmed in which way."""
    counted = (
        (state.after_consume_total, "by consumers"),
        (state.broker_total, "by the broker"),
        (state.persisted_total, "published again"),
        (state.nacked_total, "refused"),
    )
    return ", ".join(f"{count} {way}" for count, way in counted if count) or "none"


def _admitted(limit: AppliedLimit) -> str:
    figures = limit.limit
    if not figures.rate_per_s:
        return f"no {figures.unit} at all"
    parts = [f"{numbers.limit(figures.rate_per_s)} {figures.unit} per second", f"burst {number(figures.burst_s)} s"]
    if figures.max_debt_s != DEFAULT_MAX_DEBT_S and figures.unit != "requests":
        parts.append(f"at most {numbers.limit(figures.most_at_once)} in one request")
    if figures.warm_up_s:
        parts.append(f"warming up in {number(figures.warm_up_s)} s")
    if figures.fair_by is not None:
        parts.append(f"shared fairly by {_spaced(figures.fair_by)}")
    return ", ".join(parts)


def _above(limit: AppliedLimit, explanation: Explanation) -> str:
    figures = limit.limit
    refused = "refused" if figures.busy_code is None else f"refused with code {figures.busy_code}"
    match limit.rule.action:
        case "shadow":
            return "passes, and is counted as what would be refused"
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
            until = f"{number(figures.break_s)} s after permits are available again"
            return f"{refused}, and so is everything else until {until}"
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
        # Only a share: what keeps it going is not its own.
        return f"{measured(-state.stored_permits)} {unit} owed, {admits} what others leave over"
    return f"{measured(state.stored_permits)} {unit} in store"


def _alternatives(scopes: Sequence[str]) -> str:
    return " or ".join(map(_spaced, scopes))


def _not_asked(kind: str) -> str:
    if kind in SCOPES:
        return "this says what limits the scope by itself"
    return f"they limit what is sent, and a {_spaced(kind)} is what is consumed"


def _spaced(word: str) -> str:
    return word.replace("_", " ")
