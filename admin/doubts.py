"""What is allowed but probably not meant: rules that can never do what somebody wrote them for.

Each doubt is one line that names its place, as errors do; nothing is refused for it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from admin.faults import Origins
from admin.settings import DEFAULT_SCOPE, Limit, Settings
from admin.toml_lines import Path as Place
from limiter.patterns import Matcher
from limiter.resource import LISTENER
from limiter.rule import Rule
from limiter.rules import RuleSet
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
    found: list[str] = []
    for index, limit in enumerate(settings.limits):
        found += _idle_keys(limit, by_name[limit.kind], ("limits", index), origins)
        if limit.between is None and limit.days is None and "time_zone" in limit.model_fields_set:
            place = ("limits", index, "time_zone")
            found.append(origins.problem(place, "means nothing without between or days", limit.time_zone))
    for kind, default in settings.defaults.items():
        found += _idle_keys(default, by_name[kind], ("defaults", kind), origins)
    found += [
        f"{rule.source}: rule {rule.name} ({rule.hours or 'always'}) never holds: at all its hours another one of the"
        " same pattern does"
        for rule in _never_reached(rules.rules, now)
    ]
    found += _unused_scopes(settings, rules, origins)
    limiting = [rule for rule in rules.rules if rule.limits]
    if limiting and all(rule.action == "shadow" for rule in limiting):
        found.append('every limit has action = "shadow": all passes and is only counted')
    return found


def _idle_keys(limit: Limit, kind: Kind, place: Place, origins: Origins) -> Iterable[str]:
    """Name the keys of one limit that are written and change nothing."""
    action = limit.action or kind.action
    delays = action == "delay"
    # Keys, whether they change something, and what is missing for that.
    conditions = (
        ("max_delay_s", delays, 'means nothing without action = "delay"'),
        ("max_fair_keys", limit.fair_by is not None, "means nothing without fair_by"),
        ("bytes_burst_s", limit.bytes_per_s is not None, "means nothing without bytes_per_s"),
        ("count", limit.rate is not None, "means nothing without a rate"),
        ("burst_s", limit.rate is not None, "means nothing without a rate; the bytes have bytes_burst_s"),
        ("busy_code", action != "shadow", 'means nothing with action = "shadow", which refuses nothing'),
    )
    for key, means_something, why in conditions:
        if key in limit.model_fields_set and not means_something:
            yield origins.problem((*place, key), why, getattr(limit, key))
    if delays and limit.max_delay_s == 0:
        yield origins.problem((*place, "max_delay_s"), 'holds nothing; action = "reject" says the same', 0)
    if limit.fair_by is not None and limit.max_fair_keys == 1:
        yield origins.problem((*place, "max_fair_keys"), "makes one share for all, so fair_by changes nothing", 1)
    if limit.fair_by == "producer_group" and kind.consumes:
        what = "tells nobody apart here: who asks for messages has no producer group"
        yield origins.problem((*place, "fair_by"), what, limit.fair_by)


def _never_reached(rules: Sequence[Rule], now: datetime) -> Iterable[Rule]:
    """Yield the rules that lose at every moment against others of the same pattern."""
    same_pattern: dict[object, list[Rule]] = {}
    for rule in rules:
        same_pattern.setdefault(rule.key._replace(hours=None), []).append(rule)
    for group in same_pattern.values():
        if len(group) > 1:
            winners = _winners(RuleSet(tuple(group)), now)
            yield from (rule for rule in group if rule not in winners)


def _winners(rules: RuleSet, now: datetime) -> list[Rule]:
    winners = []
    moment: datetime | None = now
    while moment is not None and moment < now + _LOOK_AHEAD:
        held = rules.at(moment).in_force
        if held and held[0] not in winners:
            winners.append(held[0])
        moment = rules.next_change(moment)
    return winners


def _unused_scopes(settings: Settings, rules: RuleSet, origins: Origins) -> Iterable[str]:
    named = Matcher((rule.matches, rule) for rule in rules.rules if rule.kind == LISTENER)
    per_client = {listener.scope for listener in settings.listeners if listener.max_connections_per_client is not None}
    for index, listener in enumerate(settings.listeners):
        if listener.scope not in {DEFAULT_SCOPE, *per_client} and named.match(listener.scope) is None:
            what = f"is used by nothing: no limit of kind {LISTENER} names it"
            yield origins.problem(("listeners", index, "scope"), what, listener.scope)
