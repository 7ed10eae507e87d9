"""What ``sluice check`` prints: everything that a configuration would put in force, and where it came from."""

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from admin.common.confirms import promise
from admin.common.numbers import number
from admin.common.tables import Rows
from admin.config.rule_fields import scope_kinds_of
from admin.config.settings import OFF, AlarmSettings, ListenerSettings
from admin.edits.model import is_over
from admin.edits.places import Place, active_in
from admin.edits.state import State
from admin.rejection_log import places as log_places
from admin.rejection_log.advice import usual as usual_report
from admin.run import spool_place
from admin.run.composition import Plan, PlannedListener
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.resource import CLIENT, LISTENER
from limiter.rules.rule import NS_PER_S, Rule
from proxy.flow.alarms import size_text
from proxy.protocols.base import Kind

#: Off a terminal nothing is wrapped or cut: the output is read by scripts and by diff.
_WIDE_COLUMNS: Final = 1000
#: What is said of a listener's and of a certificate's words.
_DONE: Final = {"accept": "accepted", "require": "required"}
#: So many live edits are written out.
_EDITS_SHOWN: Final = 5


def show(renderable: RenderableType, stream: TextIO | None = None) -> None:
    """Print to a stream, stdout if not given; off a terminal without colours, wrapping or trailing blanks."""
    console = Console(file=stream, highlight=False)
    if console.is_terminal:
        console.print(renderable)
        return
    plain = Console(file=io.StringIO(), highlight=False, width=_WIDE_COLUMNS, color_system=None)
    with plain.capture() as capture:
        plain.print(renderable)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")
    print(text, file=stream, flush=True)


def report(plan: Plan, now: datetime, place: Place | None = None) -> RenderableType:
    """Lay out a plan: listeners, handlers, rules in the order in which they are tried, limits in that of a request.

    Args:
        plan: what would be in force.
        now: the moment at which rules with hours are looked at.
        place: where live edits are kept; None says nothing of them.
    """
    edits = None if place is None else _edits(plan, place, now)
    return Group(
        *_section("Listeners", _listeners(plan) if plan.listeners else _no_listeners()),
        *_section("Handlers, in the order in which they decide", _handlers(plan)),
        *_section("Rules, in the order in which they are tried", _rules(plan, now)),
        *_section("Limits of one request, in the order in which they are asked", _order(plan)),
        *([] if edits is None else _section("Live edits, over all of this", edits)),
        *(_section("From the environment, in place of the file", _replaced(plan)) if plan.replaced else []),
        *_section("Everything else", _rest(plan, place)),
    )


def _replaced(plan: Plan) -> Text:
    return Text("\n".join(plan.replaced))


def _edits(plan: Plan, place: Place, now: datetime) -> Text | None:
    """Say where edits are kept and what those that stand make of the configuration; None of a usual place without."""
    active, problem = active_in(place)
    active = {path: each for path, each in active.items() if not is_over(each, now)}
    if not (place.given or active or problem):
        return None
    if place.directory is None:
        return Text("kept until the restart only")
    drift = State(plan.rulebook, active, now).drift()
    lines = [f"kept in {place.directory}; edits that stand: {len(drift)}", *drift[:_EDITS_SHOWN]]
    if problem is not None:
        lines.append(problem)
    if (more := len(drift) - _EDITS_SHOWN) > 0:
        lines.append(f"and {more} more")
    return Text("\n".join(lines))


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(title, style="bold"), Padding(body, (0, 0, 1, 2), expand=False)]


def _no_listeners() -> Text:
    return Text("none")


def _listeners(plan: Plan) -> Rows:
    columns = "listen", "broker", "protocol", "name", "scope", "exempt", "connections", "TLS", "options", "from"
    return Rows(columns, (_listener(listener) for listener in plan.listeners)).used()


def _listener(listener: PlannedListener) -> Sequence[str]:
    settings = listener.settings
    connections = []
    if settings.max_connections_per_client is not None:
        connections.append(f"{settings.max_connections_per_client} per client")
    if settings.new_connections_per_s is not None:
        connections.append(f"{number(settings.new_connections_per_s)} new/s")
    if settings.proxy_protocol_from:
        connections.append(f"PROXY header from {', '.join(map(str, settings.proxy_protocol_from))}")
    if settings.send_proxy_protocol is not None:
        connections.append(f"PROXY header {settings.send_proxy_protocol} to the broker")
    if settings.idle_timeout_s is not None:
        connections.append(f"idle for {number(settings.idle_timeout_s)} s")
    return (
        str(settings.listen),
        ", ".join([str(settings.broker), *(f"backup {each}" for each in settings.backup_brokers)]),
        settings.protocol,
        settings.label,
        settings.scope,
        ", ".join(map(str, settings.exempt)),
        ", ".join(connections),
        _tls(settings),
        _options(listener.options),
        listener.source,
    )


def _tls(settings: ListenerSettings) -> str:
    """Say where TLS is spoken; nothing where it does not end here."""
    sides = []
    if settings.tls in _DONE:
        certificates = ""
        if settings.tls_client_ca_file is not None:
            certificates = f", certificates {_DONE[settings.tls_client_certificate]}"
        sides.append(f"{_DONE[settings.tls]} from clients{certificates}")
    if settings.broker_tls:
        sides.append("to the broker" + ("" if settings.broker_tls_verify else ", unverified"))
    return "; ".join(sides)


def _handlers(plan: Plan) -> Rows:
    return Rows(
        ("handler", "lane", "lanes", "capacity", "deadline", "options", "from"),
        (
            (
                handler.plugin.name,
                handler.lane or "the handler's own",
                str(handler.lanes),
                str(handler.capacity),
                f"{handler.deadline_ms:g} ms",
                _options(handler.options),
                source,
            )
            for handler, source in zip(plan.handlers, plan.handler_sources, strict=True)
        ),
    ).used()


def _rules(plan: Plan, now: datetime) -> RenderableType:
    columns = "rule", "limit", "of", "above it", "burst", "break", "fair by", "warm-up", "confirmed by", "holds", "from"
    rules = plan.rule_set.at(now)
    tried = rules.tried
    defaults = [rules.default(kind.name) for kind in plan.kinds]
    kinds = {kind.name: kind for kind in (*plan.kinds, *scope_kinds_of(plan.protocols))}
    rows = Rows(
        columns,
        [
            *(_rule(rule, kinds.get(rule.kind)) for rule in tried),
            *(_rule(rule, kinds.get(rule.kind), holds=False) for rule in rules.untried),
            *(_rule(rule, kinds.get(rule.kind)) for rule in defaults if rule not in tried),
        ],
    ).used()
    notes = [*_waits(plan), *_confirms(rules.rules, kinds)]
    return Group(rows, Text("\n".join(notes))) if notes else rows


def _confirms(rules: Sequence[Rule], kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Say what rules promise to publishers whose messages consumers confirm; a line for each promise."""
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
    """Say of which kinds some requests over a limit wait, as they cannot be refused; a line for each reason."""
    stopping = {rule.kind for rule in plan.rule_set.rules if rule.limits and rule.action != "shadow"}
    by_scope = any(kind.name in stopping for kind in scope_kinds_of(plan.protocols))
    reasons: dict[str, list[str]] = {}
    for kind in (kind for protocol in plan.protocols for kind in protocol.kinds):
        names = reasons.setdefault(kind.waits, [])
        if kind.waits and kind.name not in names and (kind.name in stopping or (by_scope and not kind.consumes)):
            names.append(kind.name)
    return (f"{', '.join(names)}: {reason}." for reason, names in reasons.items() if names)


def _rule(rule: Rule, kind: Kind | None, *, holds: bool = True) -> Sequence[str]:
    off = rule.action == "off"
    live = rule.limits
    return (
        rule.name,
        f"off ({rule.limit_text})" if off else rule.limit_text,
        _of(rule),
        _above(rule, kind) if live else "",
        _by_dimension(rule, "burst_ns") if live else "",
        _by_dimension(rule, "break_ns") if live else "",
        f"{rule.fair_by}, {rule.max_fair_keys} at most" if live and rule.fair_by else "",
        f"{rule.warm_up_s:g} s" if live and rule.warm_up_s else "",
        "consumers" if rule.confirms_after_consume else "",
        "" if rule.hours is None and holds else "now" if holds else "not now",
        rule.source,
    )


def _of(rule: Rule) -> str:
    one = {CLIENT: "address", LISTENER: "scope"}.get(rule.kind, "name")
    if rule.exact_name is not None:
        return f"this {one}"
    if rule.shared:
        return "all together" if rule.pattern == DEFAULT_PATTERN else "all such together"
    return f"every other {rule.kind.replace('_', ' ')}" if rule.pattern == DEFAULT_PATTERN else f"each such {one}"


def _above(rule: Rule, kind: Kind | None) -> str:
    if rule.action == "shadow":
        return "only count"
    if kind is not None and kind.by_credit and (rule.action == "delay" or not kind.refuses):
        return "withhold credit"
    if kind is not None and not kind.refuses:
        return "hold"
    refuse = "refuse" if rule.busy_code is None else f"refuse with code {rule.busy_code}"
    if rule.credit_waits and kind is not None:
        return f"{refuse}; {kind.credit_waits}: withhold credit"
    where = " in the spool" if rule.spool and not (kind is not None and kind.consumes) else ""
    return f"hold up to {rule.max_delay_s:g} s{where}, then {refuse}" if rule.action == "delay" else refuse


def _by_dimension(rule: Rule, attribute: str) -> str:
    """Write a time of a rule; of one that limits messages and bytes both, if they differ."""
    parts = [part for part in (rule.part("messages"), rule.part("bytes")) if part is not None]
    times = [f"{getattr(part, attribute) / NS_PER_S:g} s" for part in parts]
    return times[0] if len(set(times)) == 1 else f"{times[0]}, bytes {times[1]}"


def _order(plan: Plan) -> RenderableType:
    limited = {rule.kind for rule in plan.rule_set.rules if rule.limits}
    totals = {rule.kind for rule in plan.rule_set.rules if rule.limits and rule.shared}
    resources = [kind for kind in plan.kinds if kind.name in limited]
    known = scope_kinds_of(plan.protocols)
    scopes = [kind for kind in known if kind.name in limited]
    rows = []
    steps = ([resources] if resources else []) + [[scope] for scope in scopes]
    for place, step in enumerate(steps, 1):
        names = [kind.name for kind in step]
        total = "its own limit, then the total it falls under" if totals.intersection(names) else "its own limit"
        rows.append((f"{place}", _alternatives(names), total))
    if not steps:
        return Text("none")
    notes = "All must admit it; what one refuses spends nothing in the others."
    if any(kind.consumes for kind in resources) and scopes:
        consuming = ", ".join(kind.name for kind in resources if kind.consumes)
        notes += f" What is consumed ({consuming}) belongs to no {_alternatives([kind.name for kind in known])}."
    return Group(Rows((), rows), Text(notes))


def _alternatives(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _rest(plan: Plan, place: Place | None) -> Rows:
    settings = plan.settings
    rows = []
    rows.append(("limiting", "on" if settings.limiting else "off"))
    read_by = dict.fromkeys((each.protocol.name, each.protocol.reads_by(each.options)) for each in plan.listeners)
    rows += [(f"{name} read by", reader) for name, reader in read_by if reader]
    admin = settings.admin.listen
    scheme = "http" if plan.certificate is None else "https"
    rows.append(("admin", OFF if admin == OFF else f"{scheme}://{admin}/: page, API, /metrics, /healthz, /readyz"))
    if admin != OFF:
        names = ", ".join(f"{token.name} ({token.role})" for token in plan.access.tokens)
        rows.append(("admin tokens", names or "none: whoever reaches it may do everything"))
    if place is not None:
        rows.append(("state_dir", _kept(place)))
    if place is not None:
        rows.append(("rejection_log", _recorded(plan, place)))
        rows.append(("spool", _spooled(plan, place)))
        report, why = usual_report(settings.report, place.directory)
        rows.append(("report", OFF + (f" ({why})" if why else "") if report is None else f"{report}"))
    flow, alarms = settings.flow, settings.alarms
    stages, store = (
        f"{initial} messages, {more} more after as many"
        for initial, more in (
            (flow.initial_credit, flow.more_credit_after),
            (flow.store_initial_credit, flow.store_more_credit_after),
        )
    )
    rows.append(("flow", f"credit {stages}; to the spool's disk {store}"))
    rows.append(("alarms", _alarms(alarms)))
    rows.append(("log", f"{settings.log.level}, {settings.log.format}"))
    rows.append(("grace_s", f"{settings.grace_s:g}"))
    for key, value in settings.bounds.model_dump().items():
        rows.append((f"bounds.{key}", f"{value}"))
    return Rows((), rows)


def _kept(place: Place) -> str:
    if place.directory is not None:
        return str(place.directory)
    return "none: edits are kept until the restart" + (f" ({place.why})" if place.why else "")


def _recorded(plan: Plan, place: Place) -> str:
    settings = plan.settings.rejection_log
    log = log_places.of(settings, place.directory)
    if log.directory is None:
        return OFF + (f" ({log.why})" if log.why else "")
    instance = settings.instance or "host name and port"
    bounds = f"files of {settings.max_file_bytes} bytes or {settings.max_file_age_s:g} s"
    return f"{log.directory}: instance {instance}, {bounds}, {settings.max_total_bytes} bytes in all"


def _spooled(plan: Plan, place: Place) -> str:
    settings = plan.settings.spool
    spool = spool_place.of(settings, place.directory)
    if spool.directory is None:
        return OFF + (f" ({spool.why})" if spool.why else "")
    bounds = f"{size_text(settings.memory_bytes)} in memory, {size_text(settings.max_disk_bytes)} on disk"
    age = f"for at most {settings.max_age_s:g} s" if settings.max_age_s else "however long it takes"
    after = "sent after a restart" if settings.recover else "dropped at a restart"
    return f"{spool.directory}: {bounds}, {age}; messages on disk that expect no answer are {after}"


def _alarms(settings: AlarmSettings) -> str:
    memory = f"above {settings.memory_high_watermark:.0%} of memory"
    disk = settings.disk_free_bytes
    return f"publishers stop {memory}" + (f", and below {size_text(disk)} of free disk" if disk else "")


def _options(options: object) -> str:
    """Write the options that are not as they are by default."""
    fields = getattr(type(options), "__dataclass_fields__", None) or getattr(type(options), "model_fields", {})
    values = ((name, getattr(options, name), _default(field)) for name, field in fields.items())
    return ", ".join(f"{name} = {_value(value)}" for name, value, default in values if value != default)


def _default(field: Any) -> object:
    """Return the default of a dataclass's or a model's field."""
    make = field.default_factory
    return make() if callable(make) else field.default


def _value(value: object) -> str:
    if isinstance(value, list | tuple) and type(value).__str__ is object.__str__:
        return f"[{', '.join(map(_value, value))}]"
    # Some types of options say how they are written.
    return str(value)
