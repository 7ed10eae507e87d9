"""Converts between rules and the fields that describe them in the configuration file and in live edits."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple, get_args

from msgspec import Meta

from admin.config.faults import FaultsError, read, spell, unknown_key
from admin.config.limit_fields import FIELDS, UNLIMITED, Limit
from admin.config.plugins import own_protocols
from admin.config.settings import OFF
from limiter.rules.errors import RuleError
from limiter.rules.patterns import Matcher
from limiter.rules.resource import CERTIFICATE, CLIENT, LISTENER, PRODUCER_GROUP, SCOPES, TOTAL, USER, VHOST
from limiter.rules.rule import MAX_TIME_S, FairBy, Rule
from limiter.rules.schedule import DAYS, EVERY_DAY, Hours, read_hours
from proxy.protocols.base import Kind, Protocol, ignored_by_all, kinds_of, unsupported_kind

SCOPE_KINDS: Final = (
    Kind(CLIENT, "all messages sent from an address or a network"),
    Kind(PRODUCER_GROUP, "all messages sent by a producer group"),
    Kind(CERTIFICATE, "all messages sent by clients with a TLS certificate of this name"),
    Kind(USER, "all messages sent by a user, as identified by the connection's login"),
    Kind(VHOST, "all messages sent in a virtual host"),
    Kind(LISTENER, "all messages sent through the listeners of a scope; the limit's name is the scope"),
)

_ATTRIBUTES: Final = {"rate": "rate_per_s", "name": "pattern", "floor": "floor_per_s", "ceiling": "ceiling_per_s"}
_KEYS: Final = {attribute: key for key, attribute in _ATTRIBUTES.items()}
_GIVEN: Final = {
    each.key: attribute
    for each in FIELDS
    if each.key != "rate" and (attribute := _ATTRIBUTES.get(each.key, each.key)) in Rule.__dataclass_fields__
}
_KIND_HINTS: Final = dict.fromkeys(("address", "ip", "host", "network", "client_address"), (CLIENT,))
#: Characters that are taken literally only in brackets.
_SPECIAL: Final = frozenset("*?[")
_LIMIT: Final = Annotated[dict[str, Any], Meta(extra={"table": Limit})]
_OF_ADDRESS: Final = frozenset({"kind", "name", "shared"})


class Target(NamedTuple):
    """The kind and normalized name of a limit. If ``kind`` is ``total``, ``name`` is ``KIND:PATTERN``."""

    kind: str
    name: str


class FieldError(Exception):
    """Raised if fields are invalid. ``problems`` contains pairs of a field and an error message.

    The field is empty if the error concerns the whole rule.
    """

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{field}: {what}" if field else what for field, what in self.problems))


def scope_kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Return the scope kinds that the protocols support, in the order in which their limits are applied.

    Limits on scopes delay messages by default if the protocols delay all sent messages by default. Otherwise they
    reject messages, except on connections whose protocol delays messages by default.
    """
    protocols = tuple(protocols)
    sent = [kind for kind in kinds_of(protocols) if not kind.consumes]
    delays = bool(sent) and all(kind.action == "delay" for kind in sent)
    by_credit = bool(sent) and all(kind.by_credit for kind in sent)
    waits = [] if delays else [kind.credit_waits for kind in sent if kind.credit_waits]
    waits += [] if delays else [each.name for each in protocols if _grants(each)]
    credit_waits = ", ".join(dict.fromkeys(waits))
    ignores = ignored_by_all(sent)
    return tuple(
        replace(
            kind,
            action="delay" if delays else kind.action,
            credit_waits=credit_waits,
            by_credit=by_credit,
            ignores=ignores,
        )
        for kind in SCOPE_KINDS
        if any(protocol.has(kind.name) for protocol in protocols)
    )


def _grants(protocol: Protocol) -> bool:
    sent = [kind for kind in protocol.kinds if not kind.consumes]
    return bool(sent) and all(kind.by_credit and kind.action == "delay" for kind in sent)


def longest_delay_s(kind: Kind, *, action: str, spool: bool | None) -> float:
    """Return the default ``max_delay_s``. It is large for spooled messages, unless their clients would time out."""
    spools = spool and not kind.consumes and "spool" not in kind.ignores
    put_aside = spools and action == "delay" and kind.client_timeout_s is None
    return float(MAX_TIME_S) if put_aside else kind.max_delay_s


class RuleReader:
    def __init__(self, protocols: Sequence[Protocol], scopes: Iterable[str], *, has_fleet: bool = True) -> None:
        self.protocols = tuple(protocols)
        self._has_fleet = has_fleet
        kinds = (*kinds_of(protocols), *scope_kinds_of(protocols))
        self.kinds: Mapping[str, Kind] = {kind.name: kind for kind in kinds}
        self._scopes = frozenset(scopes)
        self._meant = dict(_KIND_HINTS)
        for word, meant in (pair for each in protocols for pair in each.kind_hints.items()):
            self._meant[word] = tuple(dict.fromkeys((*meant, *self._meant.get(word, ()))))

    def unknown(self, kind: str, allowed: Collection[str] = ()) -> str:
        """Return an error message for an unknown kind. If ``allowed`` is empty, all supported kinds are allowed."""
        allowed = allowed or self.kinds
        if not allowed:
            return f"unknown; limits are not supported by {' and '.join(each.name for each in self.protocols)}"
        meant = [f'"{word}"' for word in self._meant.get(kind, ()) if word in allowed]
        others = [each.name for each in own_protocols() if kind not in self.kinds and each.has(kind)]
        speak = " and ".join(each.name for each in self.protocols)
        of = f"not supported by {speak}, only by {', '.join(others)}" if others else ""
        if meant:
            return f"{of or 'unknown'}; did you mean {' or '.join(meant)}?"
        if of and kind not in SCOPES:
            return f"{of}; check the listener's protocol. Allowed here: {', '.join(sorted(allowed))}"
        if kind in SCOPES and kind not in self.kinds:
            return f"unknown; {unsupported_kind(self.protocols, kind)}; allowed here: {', '.join(sorted(allowed))}"
        return unknown_key(kind, allowed)

    def no_kind(self, kind: str, allowed: Collection[str] = ()) -> str:
        what = self.unknown(kind, allowed).removeprefix("unknown; ").replace("allowed here: ", "must be one of ", 1)
        return f'unknown kind "{kind}"; {what}'

    def rule(self, kind: str, pattern: str, limit: Mapping[str, Any], source: str, *, shared: bool = False) -> Rule:
        """Make a rule from valid fields. Raises RuleError if their combination is invalid."""
        of = self.kinds[kind]
        # confirm = "broker" counts too. It is left over when after_consume is removed from a limit.
        given = limit.keys() & {"rate", "bytes_per_s", "confirm", "weight"}
        adaptive = limit.get("adaptive", False)
        if not given and limit.get("action") != OFF and not limit.get("exempt") and not adaptive:
            allowed = 'rate or bytes_per_s, action = "off", exempt = true, confirm = "after_consume", or weight'
            allowed += f"; for a {LISTENER} also adaptive = true"
            raise RuleError("no limit is set", allowed, "rate_per_s")
        fields: dict[str, Any] = {
            _GIVEN[each.key]: getattr(of, each.key, None)
            if (value := limit.get(each.key, each.default)) is None
            else value
            for each in FIELDS
            if each.key in _GIVEN
        }
        if adaptive:
            # Requests that wait for an overloaded broker would add to its load.
            fields["action"] = limit.get("action", "reject")
        if "max_delay_s" not in limit:
            fields["max_delay_s"] = longest_delay_s(of, action=fields["action"], spool=limit.get("spool"))
        rate = limit.get("rate")
        rule = Rule(
            kind=kind,
            pattern=pattern,
            rate_per_s=None if rate == UNLIMITED else rate,
            shared=shared,
            hours=_hours(limit),
            source=source,
            credit_waits=bool(of.credit_waits) and "action" not in limit and not adaptive,
            **fields,
        )
        return self.check(rule)

    def check(self, rule: Rule) -> Rule:
        """Return the rule. Raises RuleError if a protocol does not support it or no listener has its scope."""
        concerned = [protocol for protocol in self.protocols if protocol.has(rule.kind)]
        for protocol in concerned:
            protocol.check_rule(rule)
        if rule.fair_by is not None and not any(protocol.has(rule.fair_by) for protocol in concerned):
            what = (
                f'rule {rule.name}: fair_by "{rule.fair_by}" cannot be used,'
                f" because {unsupported_kind(concerned, rule.fair_by)}"
            )
            known = {
                kind.name for kind in (*scope_kinds_of(concerned), *(kinds_of(concerned) if rule.adaptive else ()))
            }
            raise RuleError(what, ", ".join(word for word in get_args(FairBy) if word in known), "fair_by")
        if rule.fleet and not self._has_fleet:
            what = f"rule {rule.name}: fleet = true requires [fleet] in the configuration"
            raise RuleError(what, "fleet = false, or [fleet] with url and name", "fleet")
        if rule.confirm == "after_consume":
            _check_confirmed(rule, concerned)
        if rule.kind == LISTENER and self._scopes:
            matcher = Matcher([(rule.matches, rule)])
            if not any(matcher.match(scope) for scope in self._scopes):
                what = f"rule {rule.name}: no listener has this scope"
                raise RuleError(what, ", ".join(sorted(self._scopes)), "pattern")
        return rule

    def target(self, kind: str, name: str) -> Target:
        """Normalize a kind and a name. Raises FieldError if either is invalid."""
        return target_of(self._unlimited(kind, name))

    def read(self, kind: str, name: str, fields: Mapping[str, Any], source: str) -> Rule:
        """Make the rule that a live edit defines.

        Raises a FieldError that lists all invalid fields, or the first problem with the rule as a whole.
        """
        named = self._unlimited(kind, name)
        try:
            limit = {key: value for key, value in read(_LIMIT, dict(fields)).items() if value is not None}
        except FaultsError as error:
            raise FieldError(
                (
                    spell(each.place),
                    "not allowed in an edit, because it is part of the path; for a shared limit, use kind total"
                    if each.place[0] in _OF_ADDRESS
                    else each.told,
                )
                for each in error.faults
            ) from None
        try:
            return self.rule(named.kind, named.pattern, limit, source, shared=named.shared)
        except RuleError as error:
            raise FieldError([_field_problem(error)]) from None

    def base(self, target: Target, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields to patch, without a default ``max_delay_s``, because the patch may change the default."""
        kind = self.kinds[target.name.partition(":")[0] if target.kind == TOTAL else target.kind]
        usual_s = longest_delay_s(kind, action=fields["action"] or kind.action, spool=fields["spool"])
        given = {key: value for key, value in fields.items() if (key, value) != ("max_delay_s", usual_s)}
        return written(given)

    def _unlimited(self, kind: str, name: str) -> Rule:
        of, pattern, shared = kind, name, kind == TOTAL
        if shared:
            of, colon, pattern = name.partition(":")
            if not (of and colon and pattern):
                example = f"{next(iter(self.kinds), 'topic')}:orders-*"
                what = f"{name!r} is not the name of a shared limit; use KIND:PATTERN, for example {example}"
                raise FieldError([("name", what)])
        if of not in self.kinds:
            raise FieldError([("name" if shared else "kind", self.no_kind(of))])
        try:
            return self.check(Rule(of, pattern, None, shared=shared))
        except RuleError as error:
            raise FieldError([_field_problem(error)]) from None


def _check_confirmed(rule: Rule, protocols: Sequence[Protocol]) -> None:
    able = dict.fromkeys(kind.name for each in protocols for kind in each.kinds if kind.after_consume)
    if rule.kind not in able:
        names = " and ".join(protocol.name for protocol in protocols)
        here = f"{names} for a {rule.kind.replace('_', ' ')}" if able else names
        what = f'rule {rule.name}: confirm "after_consume" is not supported by {here}'
        raise RuleError(what, f"after_consume for a rule of kind {' or '.join(able)}" if able else "broker", "confirm")


def target_of(rule: Rule) -> Target:
    exact = rule.exact_name
    text = rule.matches.text
    if exact is not None and exact != text:
        text = "".join(f"[{character}]" if character in _SPECIAL else character for character in exact)
    return Target(TOTAL, f"{rule.kind}:{text}") if rule.shared else Target(rule.kind, text)


def fields_of(rule: Rule) -> dict[str, Any]:
    """Return all fields of a rule, including defaults, in the format of the configuration file."""
    hours = rule.hours
    whole_day = hours is not None and (hours.from_minute, hours.to_minute) == (0, 24 * 60)
    otherwise = {
        "action": None if rule.credit_waits else rule.action,
        "rate": (None if rule.exempt or rule.adaptive else UNLIMITED) if rule.rate_per_s is None else rule.rate_per_s,
        "between": None if hours is None else _between(hours, whole_day=whole_day),
        "days": None if hours is None or hours.days == EVERY_DAY else [DAYS[day] for day in sorted(hours.days)],
        "time_zone": "UTC" if hours is None else hours.time_zone,
    }
    return {
        each.key: otherwise[each.key] if each.key in otherwise else getattr(rule, _GIVEN[each.key]) for each in FIELDS
    }


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {each.key: value for each in FIELDS if (value := fields.get(each.key)) is not None and value != each.default}


def patched(fields: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a limit's fields after a merge patch. In the patch, None removes a field.

    Fields that no longer have an effect are also removed, unless the patch sets them.
    """
    found = {key: value for key, value in {**fields, **patch}.items() if value is not None}
    gone: set[str] = set()
    if patch.get("exempt") or patch.get("adaptive"):
        gone = {"rate", "bytes_per_s"}
    elif patch.get("rate") is not None or patch.get("bytes_per_s") is not None:
        gone = {"exempt", "adaptive"}
    gone |= {each.key for each in FIELDS if each.not_with and patch.get(each.not_with)}
    left = {key: value for key, value in found.items() if key not in gone}
    changed = gone | patch.keys()
    gone |= {each.key for each in FIELDS if each.only_with and each.only_with[0] in changed and not each.fits(left)}
    return {key: value for key, value in found.items() if key not in gone or key in patch}


def key_of(error: RuleError) -> str:
    """Return the configuration key that caused an error, or an empty string if there is no single key."""
    return _KEYS.get(error.attribute or "", error.attribute or "")


def worded(error: RuleError) -> str:
    """Return the error message, with configuration keys in place of attribute names."""
    return str(error).replace("rate_per_s", "rate")


def _field_problem(error: RuleError) -> tuple[str, str]:
    key = key_of(error)
    # Edits have no ``shared`` key. Their kind is ``total`` instead.
    return "name" if key == "shared" else key, worded(error)


def _between(hours: Hours, *, whole_day: bool) -> str | None:
    if whole_day and hours.days != EVERY_DAY:
        return None
    times = (hours.from_minute, hours.to_minute)
    return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in times)


def _hours(limit: Mapping[str, Any]) -> Hours | None:
    between, days, time_zone = limit.get("between"), limit.get("days"), limit.get("time_zone", "UTC")
    if between is None and days is None:
        # Check the time zone even without hours, because they may be added later.
        read_hours("00:00-24:00", (), time_zone)
        return None
    return read_hours(between, days or (), time_zone)
