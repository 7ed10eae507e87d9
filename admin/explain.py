"""What ``sluice limits explain`` does: ask a running sidecar, or a configuration file, and lay the answer out.

What limits a request is ``proxy.explanation``'s to know; this is the client's side of the HTTP API.
"""

import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from admin import wire
from admin.addresses import WILDCARDS
from admin.errors import OperatorError, SettingsError
from admin.settings import DEFAULT_ADMIN, Endpoint, parse_endpoint
from admin.sources import Flags, load
from limiter.resource import SCOPES
from proxy.control import AppliedLimit, Explanation, LimitState, Question, QuestionError, ShareView

_TIMEOUT_S: Final = 5.0
_ADMIN_VARIABLE: Final = "SLUICE_ADMIN"
_WORDS: Final = {"kind": "KIND", "name": "NAME"}
"""What parameters are called on the command line; the others are flags."""


class NoAnswerError(OperatorError):
    """Nobody answers at the admin address, or not Sluice."""


def admin_endpoint(flag: str | None) -> Endpoint:
    """Return the admin address to ask: that of the flag, else the environment's, else the usual one.

    Raises:
        SettingsError: it is none.
    """
    source, value = ("--admin", flag) if flag is not None else (_ADMIN_VARIABLE, os.environ.get(_ADMIN_VARIABLE))
    if not value:
        value = DEFAULT_ADMIN
    try:
        endpoint = parse_endpoint(value)
    except ValueError as error:
        raise SettingsError(f"{source} {value}: {error}") from None
    if endpoint.host in WILDCARDS:
        # What listens on every address is reached on this machine's own.
        return endpoint._replace(host="::1" if endpoint.host == "::" else "127.0.0.1")
    return endpoint


def ask_sidecar(endpoint: Endpoint, question: Question) -> Explanation:
    """Ask a running sidecar.

    Raises:
        SettingsError: the question makes no sense there.
        NoAnswerError: nobody answers there, or not Sluice.
    """
    # Imported only here: who asks a file needs no HTTP client, and it takes its time.
    import httpx2  # noqa: PLC0415 - see above

    given = {name: value for name, value in msgspec.to_builtins(question).items() if value}
    for parameter, value in given.items():
        if not value.isprintable():
            # Among them what is not UTF-8, which could not be asked for.
            raise _wrong(parameter, f"{value!r} has characters that cannot be printed")
    try:
        # A proxy of the environment is no way to this machine's own address.
        with httpx2.Client(base_url=f"http://{endpoint}", timeout=_TIMEOUT_S, trust_env=False) as client:
            response = client.get(wire.EXPLAIN, params=given)
    except httpx2.TimeoutException:
        raise NoAnswerError(f"no answer from http://{endpoint} within {_TIMEOUT_S:g} s; is it overloaded?") from None
    except httpx2.HTTPError as error:
        why = re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        raise NoAnswerError(
            f"nobody answers at http://{endpoint} ({why}): start `sluice run`, name its admin address with --admin,"
            " or ask a file with --config"
        ) from None
    try:
        if response.status_code == httpx2.codes.OK:
            return msgspec.json.decode(response.content, type=Explanation)
        if response.headers.get("content-type", "").startswith(wire.PROBLEM):
            problem = msgspec.json.decode(response.content, type=wire.Problem)
            raise _wrong(problem.parameter, problem.detail)
    except msgspec.DecodeError:
        pass
    raise NoAnswerError(
        f"http://{endpoint} answers {response.status_code} and no explanation: name the admin address of a Sluice of"
        " this version with --admin"
    )


def ask_file(file: str, question: Question) -> Explanation:
    """Say what a configuration file would do now; nothing is running, so there is no live state.

    Raises:
        SettingsError: the file is wrong, or the question makes no sense with it.
    """
    # Imported only here: who asks a sidecar needs neither data path nor protocols, and they take their time.
    from admin.composition import compose  # noqa: PLC0415 - see above
    from limiter.limits import Limits  # noqa: PLC0415 - see above
    from proxy.explanation import explain  # noqa: PLC0415 - see above

    plan = compose(load(file, os.environ, Flags()))
    limits = Limits(plan.rule_set.at(datetime.now(UTC)))
    try:
        return explain(question, limits, plan.data_path_config().listeners, plan.protocols, 0)
    except QuestionError as error:
        raise _wrong(error.parameter, error.detail) from None


def _wrong(parameter: str, detail: str) -> SettingsError:
    return SettingsError(f"{_WORDS.get(parameter) or '--' + parameter.replace('_', '-')}: {detail}")


def text(explanation: Explanation, *, live: bool) -> str:
    """Lay an explanation out for people.

    Args:
        explanation: what is to be shown.
        live: it comes from a running sidecar, so that a limit without a state says something.
    """
    return "\n".join(_lines(explanation, live=live))


def as_json(explanation: Explanation) -> str:
    """Write an explanation as the API does, indented."""
    return msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode()


def _lines(explanation: Explanation, *, live: bool) -> Iterator[str]:
    question = explanation.question
    yield ", ".join(
        f"{word.replace('_', ' ')} {name}"
        for word, name in (
            (question.kind, question.name),
            ("client", question.client),
            ("producer_group", question.producer_group),
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
    if not explanation.limits:
        yield ""
        yield "Nothing limits it." if explanation.unapplied else "No rule matches, so nothing limits it."
    for number, limit in enumerate(explanation.limits, 1):
        yield ""
        yield f"{number}. {_spaced(limit.kind)} {limit.name}: {_admitted(limit)}"
        yield from (f"   {word:<6} {what}" for word, what in _details(limit, live=live))
    if explanation.unapplied:
        yield ""
        yield "These match and do not limit:"
        for each in explanation.unapplied:
            rule = f"{each.rule.name} = {each.rule.limit} ({each.rule.source})"
            yield f"   {_spaced(each.kind)} {each.name}: {rule}: {each.why}"


def _details(limit: AppliedLimit, *, live: bool) -> Iterator[tuple[str, str]]:
    rule = limit.rule
    yield "rule", f"{rule.name} = {rule.limit} ({rule.source})"
    yield "why", limit.why
    yield "above", _above(limit)
    if limit.state is not None:
        yield "now", _now(limit, limit.state)
        yield from (("share", f"of {share.key}: {_stored(limit, share)}") for share in limit.state.shares)
    elif live:
        yield "now", "nobody has needed it yet"
    if limit.usage is not None:
        used = zip(("1 s", "10 s", "60 s"), msgspec.structs.astuple(limit.usage), strict=True)
        yield "used", ", ".join(f"{share:.0%} over {window}" for window, share in used)
    if limit.held:
        yield "held", f"{limit.held} requests wait for it"


def _admitted(limit: AppliedLimit) -> str:
    figures = limit.limit
    if not figures.rate_per_s:
        return f"no {figures.unit} at all"
    parts = [f"{_number(figures.rate_per_s)} {figures.unit} per second", f"burst {_number(figures.burst_s)} s"]
    if figures.warm_up_s:
        parts.append(f"warming up in {_number(figures.warm_up_s)} s")
    if figures.fair_by is not None:
        parts.append(f"shared fairly by {_spaced(figures.fair_by)}")
    return ", ".join(parts)


def _above(limit: AppliedLimit) -> str:
    figures = limit.limit
    refused = "refused" if figures.busy_code is None else f"refused with code {figures.busy_code}"
    match limit.rule.action:
        case "shadow":
            return "passes, and is counted as what would be refused"
        case "delay":
            return f"held for up to {_number(figures.max_delay_s or 0)} s, then {refused}"
        case _ if not figures.rate_per_s:
            return f"everything is {refused}"
        case _ if figures.break_s:
            return f"{refused}, with all that comes until {_number(figures.break_s)} s after there are permits again"
        case _:
            return refused


def _now(limit: AppliedLimit, state: LimitState) -> str:
    refused = (
        "nothing refused so far"
        if state.last_refused_s is None
        else f"last refused {_number(state.last_refused_s)} s ago"
    )
    return f"{_stored(limit, state)}; {refused}"


def _stored(limit: AppliedLimit, state: LimitState | ShareView) -> str:
    unit = limit.limit.unit
    if not limit.limit.rate_per_s:
        return "refuses everything" if limit.rule.action != "shadow" else "would refuse everything"
    if state.open:
        return f"refuses everything for another {_number(state.wait_s)} s"
    if state.wait_s:
        owed = f", {_number(-state.stored_permits)} {unit} owed" if state.stored_permits < 0 else ""
        return f"admits again in {_number(state.wait_s)} s{owed}"
    if state.stored_permits < 0:
        # Only a share: what keeps it going is not its own.
        return f"{_number(-state.stored_permits)} {unit} owed, admits what others leave over"
    return f"{_number(state.stored_permits)} {unit} in store"


def _alternatives(scopes: Sequence[str]) -> str:
    return " or ".join(map(_spaced, scopes))


def _not_asked(kind: str) -> str:
    if kind in SCOPES:
        return "this says what limits the scope by itself"
    return f"they limit what is sent, and a {_spaced(kind)} is asked for messages"


def _spaced(word: str) -> str:
    return word.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
