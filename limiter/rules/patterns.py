"""Patterns define which names a rule matches. A ``Matcher`` finds the most specific pattern that matches a name.

Globs match names: ``*`` matches any characters, ``?`` matches one character, and ``[abc]``, ``[a-z]`` or ``[!x]`` match
one character of a set. Networks such as ``10.0.0.0/8`` match client addresses. The pattern ``*`` is the default in both
cases.

The most specific pattern wins: the exact name, then the pattern with the most literal characters or the longest prefix,
and finally the default.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Generic, NamedTuple, TypeVar

from limiter.rules.errors import RuleError

DEFAULT_PATTERN: Final = "*"
_MAX_REMEMBERED: Final = 65_536

T = TypeVar("T")
_Network = IPv4Network | IPv6Network
_SPECIAL: Final = re.compile(r"[*?\[\]]")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_OCTETS: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3}){0,2})(?:\.\*)*\.?")


class Pattern(NamedTuple):
    text: str  # as written, except that networks are in canonical form
    exact_name: str | None  # None if the pattern can match more than one name
    literals: int  # specificity: literal characters, or prefix length in bits
    network: _Network | None = None

    def stands_for(self, name: str) -> bool:
        if self.exact_name is not None:
            return self.exact_name == name
        if self.text == DEFAULT_PATTERN:
            return True
        if self.network is not None:
            address = _address(name)
            return address is not None and address in self.network
        return _compiled(self.text)(name) is not None


def read_glob(text: str) -> Pattern:
    """Parse a glob.

    Raises:
        RuleError: the glob is empty, or contains a control character or an unclosed ``[``.
    """
    if not text or not text.isprintable():
        raise RuleError(f"invalid rule pattern {text!r}", "a name or a glob of printable characters", "pattern")
    literals: list[str] = []
    is_glob = False
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character in "*?":
            is_glob = True
        elif character == "[":
            # As in fnmatch, a ] directly after [ or [! belongs to the set.
            first = at + 1 if text[at : at + 1] == "!" else at
            end = text.find("]", first + 1)
            if end < 0:
                raise RuleError(
                    f"rule pattern {text!r} contains an unclosed [",
                    "a set such as [abc], or [[] for a literal [",
                    "pattern",
                )
            if end - at == 1:
                literals.append(text[at])
            else:
                is_glob = True
            at = end + 1
        else:
            literals.append(character)
    return Pattern(text, None if is_glob else "".join(literals), len(literals))


def glob_of(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def read_network(text: str) -> Pattern:
    """Parse a network of client addresses, a single address, or ``*``. Accepts IPv4-mapped IPv6 addresses.

    Raises:
        RuleError: the text has none of these forms, or the network has host bits set.
    """
    if text == DEFAULT_PATTERN:
        return Pattern(text, None, 0)
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        allowed = _network_meant(text) or "10.1.2.3, 10.0.0.0/8, 2001:db8::/32, or * for every client"
        raise RuleError(f"client {text!r} is neither an address nor a network", allowed, "pattern") from None
    if "/" in text and ip_address(text.partition("/")[0]) != network.network_address:
        raise RuleError(f"client {text!r} has host bits set", str(network), "pattern")
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        # Mapped client addresses are normalized to IPv4.
        mapped = int(network.network_address) - int(_MAPPED.network_address)
        network = IPv4Network((mapped, network.prefixlen - _MAPPED.prefixlen))
    if network.prefixlen == network.max_prefixlen:
        address = str(network.network_address)
        return Pattern(address, address, network.prefixlen + 1, network)
    return Pattern(str(network), None, network.prefixlen + 1, network)


def _network_meant(text: str) -> str | None:
    found = _OCTETS.fullmatch(text)
    if found is None:
        return None
    octets = found[1].split(".")
    try:
        return str(ip_network(f"{'.'.join([*octets, '0', '0', '0'][:4])}/{8 * len(octets)}"))
    except ValueError:
        return None


class Matcher(Generic[T]):
    def __init__(self, patterns: Iterable[tuple[Pattern, T]]) -> None:
        self.exact: dict[str, T] = {}
        self.default: T | None = None
        globs: dict[Pattern, T] = {}
        networks: dict[tuple[int, int], dict[int, T]] = {}
        for pattern, value in patterns:
            if pattern.exact_name is not None:
                self.exact.setdefault(pattern.exact_name, value)
            elif pattern.text == DEFAULT_PATTERN:
                self.default = value if self.default is None else self.default
            elif pattern.network is not None:
                net = pattern.network
                shift = net.max_prefixlen - net.prefixlen
                networks.setdefault((net.version, shift), {}).setdefault(int(net.network_address) >> shift, value)
            else:
                globs.setdefault(pattern, value)
        self._globs: tuple[tuple[Callable[[str], object], T], ...] = tuple(
            (_compiled(pattern.text), value)
            for pattern, value in sorted(globs.items(), key=lambda each: -each[0].literals)
        )
        literals = (_SPECIAL.split(pattern.text) for pattern in globs)
        self._ends = tuple({(each[0], each[-1]) for each in literals})
        # IP version, number of host bits, and values by prefix. The longest prefix comes first.
        self._networks: tuple[tuple[int, int, dict[int, T]], ...] = tuple(
            (version, shift, values) for (version, shift), values in sorted(networks.items())
        )
        self._remembered: dict[str, T | None] = {}

    @property
    def ends(self) -> tuple[tuple[str, str], ...] | None:
        """The (prefix, suffix) pairs of the globs, or None if any name could match a non-default pattern.

        A name must fit one of the pairs to match a glob.
        """
        return None if self._networks or ("", "") in self._ends else self._ends

    def match(self, name: str) -> T | None:
        found = self.exact.get(name)
        if found is not None:
            return found
        try:
            return self._remembered[name]
        except KeyError:
            found = self._find(name)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[name] = found
        return found

    def _find(self, name: str) -> T | None:
        for matches, value in self._globs:
            if matches(name):
                return value
        found = self._in_network(name) if self._networks else None
        return found if found is not None else self.default

    def _in_network(self, name: str) -> T | None:
        address = _address(name)
        if address is None:
            return None
        number = int(address)
        for version, shift, values in self._networks:
            if version == address.version and (found := values.get(number >> shift)) is not None:
                return found
        return None

    def in_order(self) -> Iterator[T]:
        yield from self.exact.values()
        for _, value in self._globs:
            yield value
        for _, _, values in self._networks:
            yield from values.values()
        if self.default is not None:
            yield self.default


@lru_cache(maxsize=256)
def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


@lru_cache(maxsize=16_384)
def _compiled(glob: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(glob)).match
