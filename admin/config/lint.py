"""Warns about settings that are valid but probably mistakes. Each warning is a single line."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from admin.config.faults import Origins
from admin.config.limit_fields import FIELDS, UNLIMITED
from admin.config.rule_fields import longest_delay_s
from admin.config.rulebook import BUILT_IN, written_limits
from admin.config.settings import DEFAULT_SCOPE, Settings, Written
from limiter.rules.patterns import Matcher
from limiter.rules.resource import CERTIFICATE, LISTENER, SCOPES
from limiter.rules.rule import Rule
from proxy.protocols.base import Kind


def warnings(settings: Settings, rules: Sequence[Rule], kinds: Iterable[Kind], origins: Origins) -> list[str]:
    by_name = {kind.name: kind for kind in kinds}
    patience = [
        kind.client_timeout_s for kind in by_name.values() if kind.client_timeout_s is not None and not kind.consumes
    ]
    for scope in by_name.keys() & set(SCOPES):
        # A scope limits sent messages of all kinds, so the shortest of their client timeouts applies.
        by_name[scope] = replace(by_name[scope], client_timeout_s=min(patience, default=None))
    found: list[str] = []
    for place, kind, _, limit in written_limits(settings):
        doubts = _of_limit(limit, by_name[kind])
        found += [origins.problem((*place, key), what, limit[key]) for key, what in doubts if key in limit]
        if too_long := _longer_than_clients_wait(limit, by_name[kind]):
            found.append(origins.problem((*place, "max_delay_s"), too_long))
    found += _of_listeners(settings, rules, origins)
    found += _of_weights(settings, rules, origins)
    if settings.fleet is not None and not any(rule.fleet for rule in rules):
        found.append(origins.problem(("fleet",), "has no effect: no limit has fleet = true"))
    limiting = [rule for rule in rules if rule.limits]
    if not limiting and all(rule.source == BUILT_IN for rule in rules):
        found.append("no limits are configured, and the protocol has no default limits, so all requests pass")
    if limiting and all(rule.action == "shadow" for rule in limiting):
        found.append('every limit has action = "shadow", so requests are counted but never refused')
    return found


def _of_limit(limit: Written, kind: Kind) -> Iterable[tuple[str, str]]:
    rate, bytes_per_s = limit.get("rate", UNLIMITED), limit.get("bytes_per_s")
    adaptive = limit.get("adaptive", False)
    action = limit.get("action", "reject" if adaptive else kind.action)
    given = {**limit, "action": action}
    for field in FIELDS:
        if why := field.idle(given):
            yield field.key, f"has no effect {why}"
    if rate == UNLIMITED and not adaptive:
        yield from ((key, "has no effect without a rate") for key in ("count", "burst_s"))
        if bytes_per_s is None:
            yield from ((key, "has no effect without a rate or bytes_per_s") for key in ("max_debt_s", "fair_by"))
    yield from ((key, f"has no effect: {why}; remove it") for key, why in kind.ignores.items() if limit.get(key))
    if not kind.refuses:
        yield from ((key, f"has no effect: {kind.waits}") for key in ("busy_code", "max_delay_s"))
    elif kind.by_credit and action == "delay":
        what = "has no effect: messages wait at the sender until the limit admits them"
        yield from ((key, what) for key in ("max_delay_s", "spool"))
    if kind.consumes:
        yield "spool", "has no effect: only published messages are spooled, not deliveries"
    if action == "delay" and 0 in {rate, bytes_per_s}:
        yield "action", 'holds all requests and never admits any; use "reject" to refuse them'
    if bytes_per_s == 0:
        yield "bytes_per_s", "refuses everything; remove it if you do not want to limit bytes"
    if limit.get("confirm") == "after_consume" and kind.queues is None and "confirm_queues" not in limit:
        yield "confirm", "has no effect without confirm_queues, the number of queues that each message is routed to"


def _longer_than_clients_wait(limit: Written, kind: Kind) -> str:
    action = limit.get("action", kind.action)
    if action != "delay" or kind.client_timeout_s is None or kind.by_credit or not kind.refuses:
        return ""
    delay_s = limit.get("max_delay_s", longest_delay_s(kind, action=action, spool=limit.get("spool")))
    wait = f"{delay_s:g} s is longer than the {kind.client_timeout_s:g} s that most clients wait for a response"
    return f"{wait}, so clients may give up and send again" if delay_s > kind.client_timeout_s else ""


def _of_weights(settings: Settings, rules: Sequence[Rule], origins: Origins) -> Iterable[str]:
    is_adaptive = any(rule.adaptive and rule.limits for rule in rules)
    for place, kind, _, limit in written_limits(settings):
        if "weight" not in limit:
            continue
        what = "" if is_adaptive else f"has no effect: no limit of kind {LISTENER} has adaptive = true"
        if kind in SCOPES or limit.get("shared"):
            what = "has no effect here; set weight on the limit of a topic or queue"
        if what:
            yield origins.problem((*place, "weight"), what, limit["weight"])


def _of_listeners(settings: Settings, rules: Sequence[Rule], origins: Origins) -> Iterable[str]:
    listeners = settings.listeners
    matcher = Matcher((rule.matches, rule) for rule in rules if rule.kind == LISTENER)
    counting = {listener.scope for listener in listeners if listener.max_connections_per_client is not None}
    for index, listener in enumerate(listeners):
        place = ("listeners", index)
        for number, network in enumerate(listener.proxy_protocol_from):
            if network.prefixlen == 0:
                what = "lets every client forge its address; list only the load balancers"
                yield origins.problem((*place, "proxy_protocol_from", number), what, str(network))
        if listener.scope not in {DEFAULT_SCOPE, *counting} and matcher.match(listener.scope) is None:
            what = f"has no effect: no limit of kind {LISTENER} matches it"
            yield origins.problem((*place, "scope"), what, listener.scope)
    if listeners and not any(listener.tls_client_ca_file for listener in listeners):
        for index, limit in enumerate(settings.limits):
            for key in ("kind", "fair_by"):
                if limit.get(key) == CERTIFICATE:
                    what = "no listener asks clients for certificates; set tls_client_ca_file"
                    yield origins.problem(("limits", index, key), what, CERTIFICATE)
