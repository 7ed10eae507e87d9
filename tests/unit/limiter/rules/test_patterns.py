import fnmatch
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.rules.errors import RuleError
from limiter.rules.patterns import Matcher, Pattern, read_glob, read_network


def globs(*texts: str) -> Matcher[str]:
    return Matcher((read_glob(text), text) for text in texts)


def networks(*texts: str) -> Matcher[str]:
    return Matcher((read_network(text), text) for text in texts)


# --- globs


@pytest.mark.parametrize("text", ["", "a\nb", "a[b", "[", "[]", "[!]", "a*[x", "[!x"])
def test_glob_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(RuleError, match="rule pattern") as error:
        read_glob(text)

    assert error.value.attribute == "pattern"


@pytest.mark.parametrize(
    ("text", "exact_name"),
    [
        ("orders", "orders"),
        ("%RETRY%x", "%RETRY%x"),
        ("a[*]b", "a*b"),
        ("[[]x]", "[x]"),
        ("[]]", "]"),
        ("a*", None),
        ("a?", None),
        ("a[bc]", None),
        ("a[!b]", None),
    ],
)
def test_glob_is_an_exact_name_if_it_can_match_only_one(text: str, exact_name: str | None) -> None:
    assert read_glob(text).exact_name == exact_name


@given(st.text(alphabet="ab*?[]!-^&~|.\\", min_size=1, max_size=8), st.text(alphabet="ab*[]!-^.\\", max_size=5))
def test_any_glob_either_is_refused_or_matches_as_fnmatch_does(text: str, name: str) -> None:
    try:
        pattern = read_glob(text)
    except RuleError:
        return

    assert (Matcher([(pattern, text)]).match(name) is not None) == fnmatch.fnmatchcase(name, text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "orders"),
        ("orders-eu-1", "orders-eu-*"),
        ("orders-us-1", "orders-*"),
        ("payments-1", "payments-?"),
        ("payments-12", "*"),
        ("", "*"),
    ],
)
def test_exact_name_wins_over_more_literals_over_fewer(name: str, expected: str) -> None:
    assert globs("*", "orders-*", "orders-eu-*", "orders", "payments-?").match(name) == expected


def test_many_wildcards_do_not_make_a_made_up_name_expensive() -> None:
    assert globs("a*" * 30 + "b").match("a" * 4000) is None


# --- networks


@pytest.mark.parametrize(
    "text", ["", "orders", "10.0.0.0.0", "10.0.0.0/33", "300.*", "::1/129", "10.0.0.0/8/8", " 10.0.0.1"]
)
def test_invalid_network_is_refused_with_a_valid_one(text: str) -> None:
    with pytest.raises(RuleError, match="neither an address nor a network") as error:
        read_network(text)

    assert "10.0.0.0/8" in error.value.allowed


@pytest.mark.parametrize(
    ("text", "meant"), [("10.*", "10.0.0.0/8"), ("10.1.*.*", "10.1.0.0/16"), ("10.1.2.", "10.1.2.0/24")]
)
def test_network_written_as_a_glob_is_refused_with_the_one_meant(text: str, meant: str) -> None:
    with pytest.raises(RuleError, match="neither an address nor a network") as error:
        read_network(text)

    assert error.value.allowed == meant


@pytest.mark.parametrize(
    ("text", "meant"), [("10.1.2.3/8", "10.0.0.0/8"), ("2001:db8::1/32", "2001:db8::/32"), ("1.2.3.4/0", "0.0.0.0/0")]
)
def test_network_with_bits_beyond_its_prefix_is_refused_with_the_one_meant(text: str, meant: str) -> None:
    with pytest.raises(RuleError, match="has host bits set") as error:
        read_network(text)

    assert error.value.allowed == meant


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.4", "10.1.2.0/24"),
        ("10.1.3.4", "10.0.0.0/8"),
        ("192.0.2.1", "0.0.0.0/0"),
        ("2001:db8:1::1", "2001:db8:1::/48"),
        ("2001:db8:2::1", "2001:db8::/32"),
        ("::ffff:10.1.2.3", "*"),
        ("fe80::1%eth0", "*"),
        ("no-address", "*"),
    ],
)
def test_longest_prefix_wins_and_no_ipv4_network_has_an_ipv6_address(name: str, expected: str) -> None:
    matcher = networks("*", "0.0.0.0/0", "10.0.0.0/8", "10.1.2.0/24", "10.1.2.3", "2001:db8::/32", "2001:db8:1::/48")

    assert matcher.match(name) == expected


_ADDRESSES = st.one_of(
    st.integers(0, 2**32 - 1).map(IPv4Address),
    # Few bits of an IPv6 address differ, so that prefixes match.
    st.integers(0, 255).map(lambda low: IPv6Address((0x20010DB8 << 96) | low << 88)),
    st.integers(0, 2**32 - 1).map(IPv6Address),
)
_NETWORKS = st.tuples(_ADDRESSES, st.integers(0, 128)).map(
    lambda each: ip_network((each[0], min(each[1], each[0].max_prefixlen)), strict=False)
)


@given(st.lists(_NETWORKS, max_size=8), _ADDRESSES)
def test_match_is_the_smallest_network_that_has_the_address(given_networks: list[object], address: object) -> None:
    texts = [str(network) for network in given_networks]
    having = [
        network
        for network in map(ip_network, texts)
        if network.version == ip_address(str(address)).version and ip_address(str(address)) in network
    ]
    smallest = max(having, key=lambda network: network.prefixlen, default=None)
    matcher: Matcher[Pattern] = Matcher((pattern, pattern) for pattern in map(read_network, texts))
    found = matcher.match(str(address))

    assert (None if found is None else found.network) == smallest


@pytest.mark.parametrize("text", ["10.0.0.0/8", "2001:db8::/32", "::ffff:192.0.2.0/120", "10.1.2.3", "*"])
@pytest.mark.parametrize("name", ["10.1.2.3", "11.1.2.3", "2001:db8::1", "192.0.2.9", "fe80::1%lo", "a pipe", ""])
def test_network_name_covers_its_matches(text: str, name: str) -> None:
    pattern = read_network(text)
    assert pattern.stands_for(name) == (Matcher([(pattern, "found")]).match(name) is not None)


_GLOBS = st.text(alphabet="ab*?[]!-", min_size=1, max_size=6)


@given(st.lists(_GLOBS, max_size=4), st.text(alphabet="abc", max_size=6))
def test_glob_literals_are_prefix_and_suffix_of_every_match(texts: list[str], name: str) -> None:
    patterns = []
    for text in texts:
        try:
            patterns.append(read_glob(text))
        except RuleError:
            continue
    matcher: Matcher[Pattern] = Matcher((pattern, pattern) for pattern in patterns)
    found = matcher.match(name)
    if found is not None and found.exact_name is None and found.text != "*" and matcher.ends is not None:
        assert any(name.startswith(first) and name.endswith(last) for first, last in matcher.ends)
