"""Rules: which resource gets which limit, and the immutable set of them that is in force.

A rule names a kind of resource and a pattern. The most specific rule wins: the exact name, then the pattern
with most literal characters (of equals the one written first), then the kind's default, which is the rule
with the pattern ``*``. A kind without a default is unlimited.

Patterns are globs: ``*`` any run of characters, ``?`` any one, ``[abc]`` ``[a-z]`` ``[!x]`` one of a set.
These characters never stand for themselves. A resource that really is called ``a*b`` is written
``a[*]b``: a set of one character is that character, and a pattern of such characters alone is an exact name.

What is written here is only what ought to be in force; the live state is the registry's. Where rules come from
(files, flags, the API) is the business of who builds them.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, KeysView
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from limiter.bucket import NS_PER_S, UPERMITS_PER_PERMIT
from limiter.resource import Resource

DEFAULT_PATTERN: Final = "*"
MAX_RATE_PER_S: Final = 1_000_000_000
"""With ``MAX_TIME_S`` as the burst this still fits a signed 64-bit integer of micro-permits."""
MAX_TIME_S: Final = 3600
"""The longest burst or break, in seconds."""

_KIND = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_RATE = re.compile(rf"({_NUMBER})/s")
_BARE_NUMBER = re.compile(_NUMBER)
_OTHER_UNIT = re.compile(rf"{_NUMBER}/[a-z]+", re.IGNORECASE)
_NEGATIVE = re.compile(rf"-{_NUMBER}(/s)?")
_RATES_ALLOWED: Final = f"0 to {MAX_RATE_PER_S} messages per second, or unlimited"
_LIMIT_ALLOWED: Final = (
    "KIND:NAME-or-glob=RATE/s, =0/s or =unlimited, with a number of messages per second, e.g. topic:orders=500/s"
)


class RuleError(ValueError):
    """A rule that cannot be.

    Attributes:
        what: what is wrong, with the offending value.
        allowed: what would be right.
    """

    def __init__(self, what: str, allowed: str) -> None:
        super().__init__(f"{what}; allowed: {allowed}")
        self.what = what
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Rule:
    """The limit of the resources of one kind whose names match.

    Attributes:
        kind: the kind of resource, e.g. ``topic``.
        pattern: an exact name or a glob; ``*`` is the kind's default.
        rate_per_s: permits per second, in steps of a millionth; 0 refuses everything, None is unlimited.
        burst_s: how many seconds' worth of permits can be stored.
        break_s: how long the breaker stays open after permits are available again, in seconds; 0 turns it off.
        enabled: False means not limited, with the rate kept for later.
        allow_under_limit: allow a break longer than the burst, which admits less than the rate on average.
        source: where the rule comes from, e.g. ``flag``, ``file:NAME``, ``built-in``; for people to read.
        name: ``kind:pattern``, the rule's name in logs and metrics.
        rate_upermits_per_s: the rate in micro-permits per second; 0 if unlimited.
        capacity_upermits: the most that is stored, in micro-permits.
        burst_ns: ``burst_s`` in nanoseconds.
        break_ns: ``break_s`` in nanoseconds.
        exact_name: the one resource name the pattern stands for, or None if it is a glob.
        literals: how many characters of the pattern stand for themselves.

    Raises:
        RuleError: some value, or their combination, is not allowed.
    """

    kind: str
    pattern: str
    rate_per_s: float | None
    burst_s: float = 1.0
    break_s: float = 1.0
    enabled: bool = True
    allow_under_limit: bool = False
    source: str = "default"
    name: str = field(init=False, repr=False, compare=False)
    rate_upermits_per_s: int = field(init=False, repr=False, compare=False)
    capacity_upermits: int = field(init=False, repr=False, compare=False)
    burst_ns: int = field(init=False, repr=False, compare=False)
    break_ns: int = field(init=False, repr=False, compare=False)
    exact_name: str | None = field(init=False, repr=False, compare=False)
    literals: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise RuleError(f"rule kind {self.kind!r}", "lower-case letters, digits and _, e.g. topic")
        name = f"{self.kind}:{self.pattern}"
        literals, exact_name = _read_pattern(self.pattern)
        rate = 0 if self.rate_per_s is None else self._scaled("rate_per_s", MAX_RATE_PER_S, UPERMITS_PER_PERMIT)
        burst_ns = self._scaled("burst_s", MAX_TIME_S, NS_PER_S)
        break_ns = self._scaled("break_s", MAX_TIME_S, NS_PER_S)
        capacity = rate * burst_ns // NS_PER_S
        if self.rate_per_s and not capacity:
            raise RuleError(
                f"rule {name}: rate_per_s {self.rate_per_s} with burst_s {self.burst_s} stores nothing",
                "a rate and a burst that store at least a millionth of a permit, or a rate of 0",
            )
        if break_ns > burst_ns and not self.allow_under_limit:
            raise RuleError(
                f"rule {name}: break_s {self.break_s} is longer than burst_s {self.burst_s},"
                " which admits less than the limit",
                f"0 to {self.burst_s}, or allow_under_limit",
            )
        self._derive("name", name)
        self._derive("rate_upermits_per_s", rate)
        self._derive("capacity_upermits", capacity)
        self._derive("burst_ns", burst_ns)
        self._derive("break_ns", break_ns)
        self._derive("exact_name", exact_name)
        self._derive("literals", literals)

    def __str__(self) -> str:
        """Return the text form, without burst and break; ``parse_limit`` reads it unless the name forbids that."""
        return f"{self.name}={self.rate_text}"

    @property
    def rate_text(self) -> str:
        """The rate as people write it: ``500/s``, ``0.5/s`` or ``unlimited``."""
        if self.rate_per_s is None:
            return "unlimited"
        whole, millionths = divmod(self.rate_upermits_per_s, UPERMITS_PER_PERMIT)
        return f"{whole}.{millionths:06}".rstrip("0").rstrip(".") + "/s"

    @property
    def limits(self) -> bool:
        """Whether the rule limits anything: it is on and not unlimited."""
        return self.enabled and self.rate_per_s is not None

    @property
    def key(self) -> tuple[str, str, bool]:
        """What two rules of one source must not share: kind, name or pattern, and which of the two it is."""
        if self.exact_name is not None:
            return self.kind, self.exact_name, True
        return self.kind, self.pattern, False

    def _scaled(self, attribute: str, most: int, scale: int) -> int:
        """Return a number as an integer of its smallest unit; refuse what is none or out of range."""
        value: object = getattr(self, attribute)
        allowed = _RATES_ALLOWED if attribute == "rate_per_s" else f"0 to {most} seconds"
        # The comparison is false for NaN, too.
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most:
            return round(value * scale)
        raise RuleError(f"rule {self.kind}:{self.pattern}: {attribute} {value!r}", allowed)

    def _derive(self, attribute: str, value: object) -> None:
        object.__setattr__(self, attribute, value)


def parse_limit(text: str, *, source: str = "flag") -> Rule:
    """Read ``KIND:NAME-or-glob=RATE/s``, ``=0/s`` or ``=unlimited``, with the usual burst and break.

    The name may hold ``:``, but neither ``=`` nor what separates limits in a list, ``,`` and white space: with
    them, two limits in a row would be read as one with a strange name.

    Raises:
        RuleError: the text is not of that form; the error shows it and the form.
    """
    target, equals, rate = text.rpartition("=")
    kind, colon, pattern = target.partition(":")
    if not (equals and colon and kind and pattern):
        raise RuleError(f"limit {text!r} is not of the form KIND:NAME=RATE/s", _LIMIT_ALLOWED)
    if any(character in "=," or character.isspace() for character in target):
        raise RuleError(
            f"limit {text!r}: a name with =, a comma or white space can only be written in the file; this one is"
            f" {pattern!r}",
            _LIMIT_ALLOWED,
        )
    if rate == "unlimited":
        rate_per_s = None
    elif number := _RATE.fullmatch(rate):
        rate_per_s = float(number[1])
    else:
        raise RuleError(f"limit {text!r}: {_why_no_rate(rate)}", _LIMIT_ALLOWED)
    try:
        return Rule(kind, pattern, rate_per_s, source=source)
    except RuleError as error:
        raise RuleError(f"limit {text!r}: {error.what}", error.allowed) from None


def _why_no_rate(text: str) -> str:
    """Say what is wrong with the part behind the ``=``."""
    if _BARE_NUMBER.fullmatch(text):
        return f"the rate needs its unit: {text}/s"
    if _OTHER_UNIT.fullmatch(text):
        return f"rate {text!r} is not per second, the only unit"
    if _NEGATIVE.fullmatch(text):
        return f"rate {text!r} is negative; 0/s refuses everything"
    if text.lower() == "unlimited":
        return f"rate {text!r} is written in lower case: unlimited"
    return f"rate {text!r}"


def layer_rules(*sources: Iterable[Rule]) -> tuple[Rule, ...]:
    """Lay sources of rules over each other, weakest first: of one kind and pattern the last source's rule stays.

    The result has the strongest source's rules first, so that of two equally literal patterns the stronger
    source's one wins, and within a source the one written first.

    Raises:
        RuleError: two rules of one source share kind and pattern.
    """
    layered: dict[tuple[str, str, bool], Rule] = {}
    for rules in reversed(sources):
        for key, rule in _by_key(rules).items():
            layered.setdefault(key, rule)
    return tuple(layered.values())


@dataclass(frozen=True, slots=True, eq=False)
class RuleSet:
    """All rules in force at one moment. It never changes; ``replace`` makes the next one.

    Attributes:
        rules: the rules, in the order they were written.
        enabled: the global switch; False limits nothing.
        version: counts up with every ``replace``.

    Raises:
        RuleError: two rules share kind and pattern.
    """

    rules: tuple[Rule, ...] = ()
    enabled: bool = True
    version: int = 1
    _exact: dict[Resource, Rule] = field(init=False, repr=False)
    _globs: dict[str, tuple[tuple[Callable[[str], object], Rule], ...]] = field(init=False, repr=False)
    _defaults: dict[str, Rule] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        exact: dict[Resource, Rule] = {}
        globs: dict[str, list[Rule]] = {}
        defaults: dict[str, Rule] = {}
        for rule in _by_key(self.rules).values():
            if rule.exact_name is not None:
                exact[Resource(rule.kind, rule.exact_name)] = rule
            elif rule.pattern == DEFAULT_PATTERN:
                defaults[rule.kind] = rule
            else:
                globs.setdefault(rule.kind, []).append(rule)
        compiled = {
            # The sort is stable: among equally literal patterns the order they were written in decides.
            kind: tuple((_compile(rule.pattern), rule) for rule in sorted(rules, key=_most_literal_first))
            for kind, rules in globs.items()
        }
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_globs", compiled)
        object.__setattr__(self, "_defaults", defaults)

    def match(self, resource: Resource) -> Rule:
        """Return the one rule that holds for a resource, limiting or not, whatever the global switch says."""
        rule = self._exact.get(resource)
        if rule is not None:
            return rule
        for matches, rule in self._globs.get(resource.kind, ()):
            if matches(resource.name):
                return rule
        return self.default(resource.kind)

    def limit(self, resource: Resource) -> Rule | None:
        """Return the rule that limits a resource, or None if nothing does: unlimited, off, or all switched off."""
        if not self.enabled:
            return None
        rule = self.match(resource)
        return rule if rule.limits else None

    def default(self, kind: str) -> Rule:
        """Return the kind's default: the rule ``KIND:*``, or else an unlimited one."""
        return self._defaults.get(kind) or _unlimited(kind)

    @property
    def exact_resources(self) -> KeysView[Resource]:
        """The resources that have a rule of their own."""
        return self._exact.keys()

    @property
    def in_match_order(self) -> tuple[Rule, ...]:
        """The rules as ``match`` tries them: exact names, then globs, then the kinds' defaults; for people to read."""
        globs = (rule for rules in self._globs.values() for _, rule in rules)
        return (*self._exact.values(), *globs, *self._defaults.values())

    def replace(self, *, rules: Iterable[Rule] | None = None, enabled: bool | None = None) -> "RuleSet":
        """Return the next version, with other rules or the global switch changed.

        Raises:
            RuleError: two of the rules share kind and pattern.
        """
        return RuleSet(
            rules=self.rules if rules is None else tuple(rules),
            enabled=self.enabled if enabled is None else enabled,
            version=self.version + 1,
        )


def _by_key(rules: Iterable[Rule]) -> dict[tuple[str, str, bool], Rule]:
    by_key: dict[tuple[str, str, bool], Rule] = {}
    for rule in rules:
        other = by_key.setdefault(rule.key, rule)
        if other is not rule:
            raise RuleError(
                f"two rules for {rule.name}: {other} ({other.source}) and {rule} ({rule.source})",
                "one rule for each kind and pattern; delete one of them",
            )
    return by_key


def _read_pattern(pattern: str) -> tuple[int, str | None]:
    """Return how many characters of a glob are literal, and the one name it stands for, if it is no glob.

    Raises:
        RuleError: the pattern is empty, has control characters, or a ``[`` that is never closed.
    """
    if not pattern or not pattern.isprintable():
        raise RuleError(f"rule pattern {pattern!r}", "a name or a glob of at least one character, all printable")
    literals: list[str] = []
    is_glob = False
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character in "*?":
            is_glob = True
        elif character == "[":
            # As fnmatch reads it: a ] right after the opening or the ! belongs to the set.
            first = at + 1 if pattern[at : at + 1] == "!" else at
            end = pattern.find("]", first + 1)
            if end < 0:
                raise RuleError(f"rule pattern {pattern!r}: [ is never closed", "[abc], or [[] for the character [")
            if end - at == 1:
                literals.append(pattern[at])
            else:
                is_glob = True
            at = end + 1
        else:
            literals.append(character)
    return len(literals), None if is_glob else "".join(literals)


@lru_cache(maxsize=64)
def _unlimited(kind: str) -> Rule:
    return Rule(kind, DEFAULT_PATTERN, None)


def _compile(pattern: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(pattern)).match


def _most_literal_first(rule: Rule) -> int:
    return -rule.literals
