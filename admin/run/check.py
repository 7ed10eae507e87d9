"""Prints the settings that a configuration would activate, and where each one comes from."""

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from admin.common.tables import Rows
from admin.config import folders
from admin.config.faults import keys
from admin.config.folders import Folder
from admin.config.rule_fields import fields_of, scope_kinds_of, written
from admin.config.settings import OFF
from admin.edits.effective import EffectiveLimits
from admin.edits.model import is_over
from admin.edits.store import active_in
from admin.rejection_log.advice import usual as usual_report
from admin.run.composition import Plan
from admin.wire.sentences import promise
from limiter.rules.rule import Rule
from proxy.protocols.base import Kind

_WIDE_COLUMNS: Final = 1000
_MAX_EDITS_SHOWN: Final = 5
_IN_COLUMNS: Final = frozenset(
    {"rate", "bytes_per_s", "count", "action", "max_delay_s", "spool", "busy_code", "exempt", "fair_by"}
    | {"adaptive", "floor", "ceiling", "between", "days", "time_zone"}
)
_LISTENER_COLUMNS: Final = ("listen", "broker", "protocol", "name", "scope")


def show(renderable: RenderableType, stream: TextIO | None = None) -> None:
    """Print ``renderable`` to ``stream`` (default: stdout), as plain unwrapped text if that is not a terminal."""
    console = Console(file=stream, highlight=False)
    if console.is_terminal:
        console.print(renderable)
        return
    plain = Console(file=io.StringIO(), highlight=False, width=_WIDE_COLUMNS, color_system=None)
    with plain.capture() as capture:
        plain.print(renderable)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")
    print(text, file=stream, flush=True)


def report(plan: Plan, now: datetime, place: Folder | None = None) -> RenderableType:
    """Describe a plan and the rules that apply at ``now``.

    ``place`` is where live edits are stored. If it is None, they are not shown.
    """
    sections: dict[str, RenderableType | None] = {
        "Listeners": _listeners(plan),
        "Handlers, in order": _handlers(plan),
        "Rules, highest precedence first": _rules(plan, now),
        "Live edits, which override the rules": None if place is None else _edits(plan, place, now),
        "Overridden by the environment": Text("\n".join(plan.replaced)) if plan.replaced else None,
        "Other settings": Rows((), [*_rest(plan, place)]),
    }
    return Group(
        *(
            each
            for title, body in sections.items()
            if body is not None
            for each in (Text(title, style="bold"), Padding(body, (0, 0, 1, 2), expand=False))
        )
    )


def _edits(plan: Plan, place: Folder, now: datetime) -> Text | None:
    active, problem = active_in(place)
    active = {path: each for path, each in active.items() if not is_over(each, now)}
    if not (place.given or active or problem):
        return None
    if place.path is None:
        return Text("in memory, lost on restart")
    drift = list(EffectiveLimits(plan.rulebook, active, now).differences())
    lines = [f"saved in {place.path}; active edits: {len(drift)}", *drift[:_MAX_EDITS_SHOWN]]
    if problem is not None:
        lines.append(problem)
    if (more := len(drift) - _MAX_EDITS_SHOWN) > 0:
        lines.append(f"and {more} more")
    return Text("\n".join(lines))


def _listeners(plan: Plan) -> RenderableType:
    if not plan.listeners:
        return Text("none")
    rows = []
    for listener in plan.listeners:
        settings = listener.settings
        others = (_changed(settings, (*_LISTENER_COLUMNS, "options")), _changed(listener.options, ("tls",)))
        cells = (settings.listen, settings.broker, settings.protocol, settings.label, settings.scope)
        rows.append((*map(str, cells), ", ".join(filter(None, others)), listener.source))
    return Rows((*_LISTENER_COLUMNS, "settings", "from"), rows).used()


def _handlers(plan: Plan) -> Rows:
    rows = [
        (
            each.plugin.name,
            each.lane or "handler's default",
            str(each.lanes),
            str(each.capacity),
            f"{each.deadline_ms:g} ms",
            _changed(each.options),
            source,
        )
        for each, source in zip(plan.handlers, plan.handler_sources, strict=True)
    ]
    return Rows(("handler", "lane", "lanes", "capacity", "deadline", "options", "from"), rows).used()


def _rules(plan: Plan, now: datetime) -> RenderableType:
    rules = plan.rule_set.at(now)
    kinds = {kind.name: kind for kind in (*plan.kinds, *scope_kinds_of(plan.protocols))}
    defaults = [rule for kind in plan.kinds if (rule := rules.default(kind.name)) not in rules.tried]
    rows = [
        *(_rule(rule, kinds[rule.kind], "" if rule.hours is None else "now") for rule in rules.tried),
        *(_rule(rule, kinds[rule.kind], "not now") for rule in rules.untried),
        *(_rule(rule, kinds[rule.kind], "") for rule in defaults),
    ]
    table = Rows(("rule", "limit", "above it", "settings", "active", "from"), rows).used()
    notes = [*_waits(plan), *_confirms(rules.rules, kinds)]
    return Group(table, Text("\n".join(notes))) if notes else table


def _rule(rule: Rule, kind: Kind, active: str) -> Sequence[str]:
    fields = {key: value for key, value in written(fields_of(rule)).items() if key not in _IN_COLUMNS}
    return (
        rule.name,
        f"off ({rule.limit_text})" if rule.action == OFF else rule.limit_text,
        _above(rule, kind) if rule.limits else "",
        _pairs(fields) if rule.limits or rule.confirms_after_consume or rule.weight != 1 else "",
        active,
        rule.source,
    )


def _above(rule: Rule, kind: Kind) -> str:
    if rule.action == "shadow":
        return "count only"
    if kind.by_credit and (rule.action == "delay" or not kind.refuses):
        return "withhold credit"
    if not kind.refuses:
        return "hold"
    has_code = rule.busy_code is not None and "busy_code" not in kind.ignores
    refuse = f"refuse with code {rule.busy_code}" if has_code else "refuse"
    if rule.credit_waits:
        return f"{refuse}; {kind.credit_waits}: withhold credit"
    spools = rule.spool and not kind.consumes and "spool" not in kind.ignores
    where = " in the spool" if spools else ""
    return f"hold up to {rule.max_delay_s:g} s{where}, then {refuse}" if rule.action == "delay" else refuse


def _confirms(rules: Sequence[Rule], kinds: Mapping[str, Kind]) -> Iterator[str]:
    promises: dict[str, list[str]] = {}
    for rule in rules:
        queues = kinds[rule.kind].queues or rule.confirm_queues
        if rule.confirms_after_consume and queues is not None:
            promised = promise(
                below_bytes=rule.confirm_below_bytes,
                within_s=rule.confirm_within_s,
                queues=queues,
                fallback=rule.fallback,
            )
            promises.setdefault(promised, []).append(rule.name)
    return (f"{', '.join(names)}: {promised}." for promised, names in promises.items())


def _waits(plan: Plan) -> Iterator[str]:
    stopping = {rule.kind for rule in plan.rule_set.rules if rule.limits and rule.action != "shadow"}
    by_scope = any(kind.name in stopping for kind in scope_kinds_of(plan.protocols))
    reasons: dict[str, list[str]] = {}
    for kind in (kind for protocol in plan.protocols for kind in protocol.kinds):
        names = reasons.setdefault(kind.waits, [])
        if kind.waits and kind.name not in names and (kind.name in stopping or (by_scope and not kind.consumes)):
            names.append(kind.name)
    return (f"{', '.join(names)}: {reason}." for reason, names in reasons.items() if names)


def _rest(plan: Plan, place: Folder | None) -> Iterator[tuple[str, str]]:
    settings = plan.settings
    yield "limiting", "on" if settings.limiting else OFF
    readers = dict.fromkeys((each.protocol.name, each.protocol.reads_by(each.options)) for each in plan.listeners)
    yield from ((f"{name} read by", reader) for name, reader in readers if reader)
    admin = settings.admin.listen
    scheme = "http" if plan.certificate is None else "https"
    yield "admin", OFF if admin == OFF else f"{scheme}://{admin}/: page, API, /metrics, /healthz, /readyz"
    if admin != OFF:
        names = ", ".join(f"{token.name} ({token.role})" for token in plan.access.tokens)
        yield "admin tokens", names or "none: anyone who can reach the address has full access"
    if place is not None:
        advice, why = usual_report(settings.report, place.path)
        yield "state_dir", str(place)
        yield "rejection_log", str(folders.rejections(settings.rejection_log, place.path))
        yield "spool", str(folders.spool(settings.spool, place.path))
        yield "report", str(Folder(advice, why=why))
    yield "grace_s", f"{settings.grace_s:g}"
    for table in ("rejection_log", "spool", "alarms", "log", "bounds"):
        values = msgspec.structs.asdict(getattr(settings, table))
        yield f"[{table}]", _pairs({key: value for key, value in values.items() if key != "dir"})
    if settings.fleet is not None:
        values = msgspec.structs.asdict(settings.fleet)
        yield "[fleet]", _pairs({key: value for key, value in values.items() if key != "password"})


def _changed(values: Any, hidden: Sequence[str] = ()) -> str:
    of: Any = type(values)
    found = {key: getattr(values, key) for key in keys(of) if key not in hidden}
    return _pairs({key: value for key, value in found.items() if value != keys(of)[key].default})


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {_value(value)}" for key, value in values.items() if value is not None)


def _value(value: object) -> str:
    if isinstance(value, list | tuple) and type(value).__str__ is object.__str__:
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
