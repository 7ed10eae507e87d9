"""What is allowed but probably not meant: rules that can never do what somebody wrote them for.

Each doubt is one line that names its place, as errors do; nothing is refused for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from admin.config.faults import Origins
from admin.config.limit_fields import FIELDS
from admin.config.rule_fields import longest_delay_s
from admin.config.rulebook import BUILT_IN
from admin.config.settings import DEFAULT_SCOPE, UNLIMITED, Limit, LimitSettings, Settings
from admin.config.toml_lines import Path as Place
from limiter.rules.patterns import DEFAULT_PATTERN, Matcher
from limiter.rules.resource import CERTIFICATE, LISTENER, SCOPES
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.protocols.base import Kind

#: Any schedule has come round by then.
_LOOK_AHEAD: Final = timedelta(days=15)


def about(settings: Settings, rules: RuleSet, kinds: Sequence[Kind], origins: Origins, now: datetime) -> list[str]:
    """Return what is doubtful about the limits.

    Args:
        settings: as configured.
        rules: what they amount to.
        kinds: all that there are, scopes included.
        origins: where each value came from.
        now: from when on rules are looked at.
    """
    by_name = {kind.name: kind for kind in kinds}
    patience = [kind.patience_s for kind in kinds if kind.patience_s is not None and not kind.consumes]
    for scope in by_name.keys() & set(SCOPES):
        # All that is sent belongs to these.
        by_name[scope] = replace(by_name[scope], patience_s=min(patience, default=None))
    sources = frozenset(rule.source for rule in rules.rules)
    found: list[str] = []
    for index, limit in enumerate(settings.limits):
        found += _idle_keys(limit, by_name[limit.kind], ("limits", index), origins)
        found += _hidden(limit, ("limits", index), rules, sources, origins)
    for kind, default in settings.defaults.items():
        found += _idle_keys(default, by_name[kind], ("defaults", kind), origins)
        found += _hidden(default, ("defaults", kind), rules, sources, origins)
    found += _clashes(rules.rules, now)
    found += _unlike_in_scope(settings, origins)
    found += _believes_anybody(settings, origins)
    found += _unused_scopes(settings, rules, origins)
    found += _uncertified(settings, origins)
    limiting = [rule for rule in rules.rules if rule.limits]
    if sources <= {BUILT_IN} and not limiting:
        found.append("no limit is given, and the protocol has none of its own: everything passes")
    if limiting and all(rule.action == "shadow" for rule in limiting):
        found.append('every limit has action = "shadow": all passes and is only counted')
    return found


def _idle_keys(limit: Limit, kind: Kind, place: Place, origins: Origins) -> Iterable[str]:
    """Name the keys of one limit that are written and change nothing."""
    action = limit.action or kind.action
    delays = action == "delay" and kind.refuses and not kind.by_credit
    has_rate = limit.rate not in {None, UNLIMITED}
    limited = has_rate or limit.bytes_per_s is not None
    given = {**limit.model_dump(), "action": action}
    never_refused = f"means nothing here: {kind.waits}"
    not_sent = "means nothing here: what is over the limit is not sent until the limit admits it"
    # Keys, whether they change something, and what is missing for that.
    conditions = (
        *((each.key, each.matters(given), f"means nothing without {each.needs()}") for each in FIELDS),
        ("count", has_rate, "means nothing without a rate"),
        ("burst_s", has_rate, "means nothing without a rate; the bytes have bytes_burst_s"),
        ("max_debt_s", limited, "means nothing without a limit"),
        ("warm_up_s", limited or not limit.warm_up_s, "means nothing without a limit"),
        ("fair_by", limited, "means nothing without a limit"),
        ("action", limited or action in {"off", "reject"}, "means nothing without a limit"),
        ("busy_code", action != "shadow", 'means nothing with action = "shadow", which refuses nothing'),
        ("busy_code", kind.refuses, never_refused),
        ("max_delay_s", kind.refuses or action != "delay", never_refused),
        ("max_delay_s", not kind.by_credit or not kind.refuses or action != "delay", not_sent),
        (
            "spool",
            not kind.consumes,
            "means nothing here: only what is sent is put aside, not what is consumed",
        ),
        ("spool", not kind.by_credit or kind.consumes or action != "delay", f"{not_sent}, so nothing is put aside"),
        ("action", kind.refuses or action != "reject", never_refused),
        ("confirm", action != "off" or limit.confirm == "broker", 'means nothing with action = "off"'),
    )
    for key, means_something, why in conditions:
        if key in limit.model_fields_set and not means_something:
            yield origins.problem((*place, key), why, getattr(limit, key))
    if delays and limit.max_delay_s == 0:
        yield origins.problem((*place, "max_delay_s"), 'holds nothing; action = "reject" says the same', 0)
    max_delay_s = limit.max_delay_s
    if max_delay_s is None:
        max_delay_s = longest_delay_s(kind, action=action, spool=limit.spool)
    if delays and kind.patience_s is not None and max_delay_s > kind.patience_s:
        what = f"is longer than most clients wait for an answer, {kind.patience_s:g} s: they give up and may send again"
        yield origins.problem((*place, "max_delay_s"), what, max_delay_s)
    if delays and 0 in {limit.rate, limit.bytes_per_s}:
        what = f"holds everything for {max_delay_s:g} s and then refuses it, since nothing is admitted"
        what += '; "reject" says so'
        yield origins.problem((*place, "action"), what, "delay")
    if kind.by_credit and action == "delay" and 0 in {limit.rate, limit.bytes_per_s}:
        what = 'lets nobody send, who is told nothing; "reject" refuses everything instead'
        yield origins.problem((*place, "action"), what, "delay")
    if limit.bytes_per_s == 0:
        what = "refuses everything; leave it out for no limit on bytes"
        yield origins.problem((*place, "bytes_per_s"), what, 0)
    if limit.confirm == "after_consume" and kind.queues is None and limit.confirm_queues is None:
        what = "leaves all to the broker: confirm_queues must say to how many queues each message goes"
        yield origins.problem((*place, "confirm"), what, limit.confirm)
    if limit.fair_by is not None and limit.max_fair_keys == 1:
        yield origins.problem((*place, "max_fair_keys"), "makes one share for all, so fair_by changes nothing", 1)
    if limit.fair_by == "producer_group" and kind.consumes:
        what = "tells nobody apart here: who asks for messages has no producer group"
        yield origins.problem((*place, "fair_by"), what, limit.fair_by)


def _hidden(limit: Limit, place: Place, rules: RuleSet, sources: frozenset[str], origins: Origins) -> Iterable[str]:
    """Name a limit of the file that a rate elsewhere replaces, if it says more than that can."""
    said = ", ".join(
        key for key in type(limit).model_fields if key in limit.model_fields_set - {"kind", "name", "rate"}
    )
    if not said or origins.of(place) in sources:
        return
    kind, name = (limit.kind, limit.name) if isinstance(limit, LimitSettings) else (str(place[-1]), DEFAULT_PATTERN)
    pattern = Rule(kind, name, None).key[:3]
    by = next((rule for rule in rules.rules if rule.key[:3] == pattern and not rule.shared), None)
    if by is not None:
        what = f"replaced as a whole by {by.source} {by}: what it says besides a rate does not hold either ({said})"
        yield origins.problem(place, what)


def _clashes(rules: Sequence[Rule], now: datetime) -> Iterable[str]:
    """Name rules that lose against others of the same pattern at some of their hours, or at all of them."""
    same_pattern: dict[object, list[Rule]] = {}
    for rule in rules:
        same_pattern.setdefault(rule.key._replace(hours=None), []).append(rule)
    for group in same_pattern.values():
        if len(group) == 1:
            continue
        winners, overlaps = _in_turn(RuleSet(tuple(group)), now)
        for rule in group:
            if rule not in winners:
                name = rule.name if rule.hours else f"{rule.name} (always)"
                yield f"{rule.source}: rule {name} never holds: at all its hours another one of the same pattern does"
        for loser, winner in overlaps:
            if loser in winners:
                yield (
                    f"{loser.source}: rule {loser.name} overlaps with {winner.name} ({winner.source}): when both would"
                    " hold, the latter does, as it comes first"
                )


def _in_turn(rules: RuleSet, now: datetime) -> tuple[list[Rule], list[tuple[Rule, Rule]]]:
    """Return which rules of one pattern hold at some time, and which with hours lose to which at some of both's hours.

    That a rule takes a part of another one's hours, and has no others, is what it is written for.
    """
    states: list[tuple[Rule, ...]] = []
    moment: datetime | None = now
    while moment is not None and moment < now + _LOOK_AHEAD:
        in_force = rules.at(moment).in_force
        if in_force and in_force not in states:
            states.append(in_force)
        moment = rules.next_change(moment)
    winners = list(dict.fromkeys(held[0] for held in states))
    pairs = dict.fromkeys((rule, held[0]) for held in states for rule in held[1:] if rule.hours is not None)
    overlaps = [
        (loser, winner) for loser, winner in pairs if any(winner in held and loser not in held for held in states)
    ]
    return winners, overlaps


def _unlike_in_scope(settings: Settings, origins: Origins) -> Iterable[str]:
    """Name listeners of one scope that treat the same client differently."""
    firsts: dict[str, int] = {}
    for index, listener in enumerate(settings.listeners):
        first = firsts.setdefault(listener.scope, index)
        for key in ("exempt", "max_connections_per_client"):
            if getattr(listener, key) != getattr(settings.listeners[first], key):
                what = f"unlike that of listeners[{first}], of the same scope: each goes by its own"
                if key == "max_connections_per_client":
                    what += ", and counts the connections to both"
                value = getattr(listener, key)
                yield origins.problem(
                    ("listeners", index, key), what, list(map(str, value)) if key == "exempt" else value
                )


def _believes_anybody(settings: Settings, origins: Origins) -> Iterable[str]:
    """Name listeners on which every client can say who it is."""
    for index, listener in enumerate(settings.listeners):
        for number, network in enumerate(listener.proxy_protocol_from):
            if network.prefixlen == 0:
                what = "lets every client say who it is; name the load balancers only"
                yield origins.problem(("listeners", index, "proxy_protocol_from", number), what, str(network))


def _uncertified(settings: Settings, origins: Origins) -> Iterable[str]:
    """Name the limits by certificates while no client is asked for one."""
    if not settings.listeners or any(listener.tls_client_ca_file is not None for listener in settings.listeners):
        return
    for index, limit in enumerate(settings.limits):
        for key in ("kind", "fair_by"):
            if getattr(limit, key) == CERTIFICATE:
                what = "no listener asks clients for certificates; give it tls_client_ca_file"
                yield origins.problem(("limits", index, key), what, CERTIFICATE)


def _unused_scopes(settings: Settings, rules: RuleSet, origins: Origins) -> Iterable[str]:
    named = Matcher((rule.matches, rule) for rule in rules.rules if rule.kind == LISTENER)
    per_client = {listener.scope for listener in settings.listeners if listener.max_connections_per_client is not None}
    for index, listener in enumerate(settings.listeners):
        if listener.scope not in {DEFAULT_SCOPE, *per_client} and named.match(listener.scope) is None:
            what = f"is used by nothing: no limit of kind {LISTENER} names it"
            yield origins.problem(("listeners", index, "scope"), what, listener.scope)
