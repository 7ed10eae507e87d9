"""What ``sluice check`` prints: everything that a configuration would put in force, and where it came from."""

import io
from typing import Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from admin.composition import Plan
from admin.settings import OFF
from limiter.patterns import DEFAULT_PATTERN
from limiter.rule import Rule

#: Off a terminal nothing is wrapped or cut: the output is read by scripts and by diff.
_WIDE_COLUMNS: Final = 1000


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


def report(plan: Plan) -> RenderableType:
    """Lay out a plan: listeners, handlers, rules in the order they are tried, defaults."""
    return Group(
        *_section("Listeners", _listeners(plan) if plan.listeners else _no_listeners()),
        *_section("Handlers, in the order in which they decide", _handlers(plan)),
        *_section("Rules, in the order in which they are tried", _rules(plan)),
        *_section("Everything else", _rest(plan)),
    )


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(title, style="bold"), Padding(body, (0, 0, 1, 2), expand=False)]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _no_listeners() -> Text:
    return Text("none")


def _listeners(plan: Plan) -> Table:
    table = _table("listen", "broker", "protocol", "name", "scope", "options", "from")
    for listener in plan.listeners:
        settings = listener.settings
        table.add_row(
            str(settings.listen),
            str(settings.broker),
            settings.protocol,
            settings.label,
            settings.scope,
            _options(listener.options),
            listener.source,
        )
    return table


def _handlers(plan: Plan) -> Table:
    table = _table("handler", "lane", "lanes", "capacity", "deadline", "options", "from")
    for handler, source in zip(plan.handlers, plan.handler_sources, strict=True):
        table.add_row(
            handler.plugin.name,
            handler.lane or "the handler's own",
            str(handler.lanes),
            str(handler.capacity),
            f"{handler.deadline_ms:g} ms",
            _options(handler.options),
            source,
        )
    return table


def _rules(plan: Plan) -> Table:
    table = _table("rule", "limit", "burst", "break", "matches", "from")
    rules = plan.rule_set.in_match_order
    for rule in rules:
        limit = rule.rate_text if rule.action != "off" else f"off ({rule.rate_text})"
        times = (f"{rule.burst_s:g} s", f"{rule.break_in_force_s:g} s") if rule.limits else ("", "")
        table.add_row(rule.name, limit, *times, _matches(rule), rule.source)
    for rule in plan.defaults():
        if rule not in rules:
            table.add_row(rule.name, rule.rate_text, "", "", _matches(rule), rule.source)
    return table


def _matches(rule: Rule) -> str:
    if rule.exact_name is not None:
        return "this name"
    if rule.pattern == DEFAULT_PATTERN:
        return f"every other {rule.kind.replace('_', ' ')}"
    return "each such name, with a limit of its own" if rule.limits else "each such name"


def _rest(plan: Plan) -> Table:
    settings = plan.settings
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row("limiting", "on" if settings.limiting else "off")
    admin = settings.admin.listen
    table.add_row("admin", OFF if admin == OFF else f"http://{admin}/metrics, /healthz, /readyz")
    table.add_row("log", f"{settings.log.level}, {settings.log.format}")
    table.add_row("grace_s", f"{settings.grace_s:g}")
    for key, value in settings.bounds.model_dump().items():
        table.add_row(f"bounds.{key}", f"{value}")
    return table


def _options(options: object) -> str:
    fields = getattr(type(options), "__dataclass_fields__", None) or getattr(type(options), "model_fields", {})
    return ", ".join(f"{name} = {getattr(options, name)}" for name in fields) or "none"
