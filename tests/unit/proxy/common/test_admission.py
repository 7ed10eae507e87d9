from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.common.admission import ConnectionRate, client_address, client_of, in_networks

NS_PER_S = 1_000_000_000


class TestAddress:
    @pytest.mark.parametrize(
        ("host", "address"),
        [
            ("10.1.2.3", "10.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("::FFFF:a01:203", "10.1.2.3"),
            ("2001:DB8:0::1", "2001:db8::1"),
            ("::1", "::1"),
            ("fe80::1%eth0", "fe80::1%eth0"),
        ],
    )
    def test_has_one_spelling(self, host: str, address: str) -> None:
        assert client_address(host) == address

    @pytest.mark.parametrize("host", ["", "localhost", "10.1", "10.0.0.0/8"])
    def test_that_is_invalid_is_an_error(self, host: str) -> None:
        with pytest.raises(ValueError, match="does not appear to be"):
            client_address(host)


class TestNetworks:
    @pytest.mark.parametrize(
        ("address", "inside"),
        [("10.1.2.3", True), ("11.1.2.3", False), ("2001:db8::7", True), ("2001:db9::7", False), ("fe80::1%x", True)],
    )
    def test_hold_their_addresses_of_either_family(self, address: str, inside: bool) -> None:  # noqa: FBT001 - a table
        networks = [ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"), ip_network("fe80::/10")]
        assert in_networks(address, networks) is inside

    def test_none_hold_nothing(self) -> None:
        assert not in_networks("10.1.2.3", ())


class TestRate:
    def test_a_second_of_rest_is_saved_and_no_more(self) -> None:
        rate = ConnectionRate(3, 0)
        assert [rate.take(10 * NS_PER_S) for _ in range(4)] == [True, True, True, False]

    def test_less_than_one_a_second_takes_one_at_a_time(self) -> None:
        rate = ConnectionRate(0.5, 0)
        assert rate.take(0)
        assert not rate.take(NS_PER_S - 1)
        assert rate.take(2 * NS_PER_S)
        assert not rate.take(2 * NS_PER_S)

    def test_none_at_all_is_a_rate_too(self) -> None:
        rate = ConnectionRate(0, 0)
        assert not rate.take(3600 * NS_PER_S)

    @given(st.integers(1, 50), st.lists(st.integers(0, NS_PER_S), max_size=60))
    def test_never_more_than_the_rate_and_one_second_of_it(self, per_s: int, pauses: list[int]) -> None:
        rate = ConnectionRate(per_s, 0)
        now_ns = taken = 0
        for pause_ns in pauses:
            now_ns += pause_ns
            taken += rate.take(now_ns)
        assert taken <= -(-now_ns * per_s // NS_PER_S) + per_s


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::", "2001:db8:1:2::"),
        ("::1", "::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_all_addresses_of_a_64_are_one_client(address: str, client: str) -> None:
    assert client_of(address) == client
