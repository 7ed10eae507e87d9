"""Brokers' addresses in a name server's answers are replaced in place, and nothing else changes."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.base import ListenerAddresses
from proxy.protocols.rocketmq.routes import (
    Addresses,
    Rewritten,
    advertised_addresses,
    read_address,
    rewrite,
    without_vip,
)

_TOLD = {("10.0.0.5", 10911): b"sluice.example.com:10911", ("::1", 10911): b"[2001:db8::7]:10911"}
_REST = '"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}'


def _route(addresses: str) -> bytes:
    broker = f'{{"brokerAddrs":{addresses},"brokerName":"a","cluster":"c","enableActingMaster":false}}'
    return f'{{"brokerDatas":[{broker}],{_REST}'.encode()


@pytest.mark.parametrize(
    ("addresses", "then", "replaced", "left"),
    [
        ('{0:"10.0.0.5:10911"}', '{0:"sluice.example.com:10911"}', 1, 0),
        ('{"0":"10.0.0.5:10911"}', '{"0":"sluice.example.com:10911"}', 1, 0),
        ('{0:"10.0.0.5:10911",1:"10.0.0.6:10911"}', '{0:"sluice.example.com:10911",1:"10.0.0.6:10911"}', 1, 1),
        ('{ "0" : "10.0.0.5:10911" , "1" :"x" }', '{ "0" : "sluice.example.com:10911" , "1" :"x" }', 1, 1),
        # A slave that has become the acting master, and one behind a listener.
        ('{0:"10.0.0.7:10911",2:"10.0.0.5:10911"}', '{0:"10.0.0.7:10911",2:"sluice.example.com:10911"}', 1, 1),
        ('{-1:"10.0.0.5:10911"}', '{-1:"sluice.example.com:10911"}', 1, 0),
        # RocketMQ writes no brackets.
        ('{0:"::1:10911"}', '{0:"[2001:db8::7]:10911"}', 1, 0),
        ('{0:"[0:0:0:0:0:0:0:1]:10911"}', '{0:"[2001:db8::7]:10911"}', 1, 0),
        ('{0:"10.0.0.5:10909"}', '{0:"10.0.0.5:10909"}', 0, 1),
        ('{0:"\u6d4b:10911"}', '{0:"\u6d4b:10911"}', 0, 1),
        ("{}", "{}", 0, 0),
        ("null", "null", 0, 0),
    ],
)
def test_addresses_are_replaced_and_all_else_stays(addresses: str, then: str, replaced: int, left: int) -> None:
    assert rewrite(_route(addresses), _TOLD) == Rewritten(_route(then), replaced, left)


@pytest.mark.parametrize(
    "addresses",
    [
        '{0:"10.0.0.5:10911"',
        '{0:"10.0.0.5\\u003a10911"}',
        "{0:'10.0.0.5:10911'}",
        '{a:"10.0.0.5:10911"}',
        '{0:"10.0.0.5:10911",}',
        '["10.0.0.5:10911"]',
        '{"$ref":"$.brokerDatas[0].brokerAddrs"}',
        '{0:"10.0.0.5:10911" 1:"10.0.0.5:10911"}',
        "7",
    ],
)
def test_unreadable_routes_are_unchanged(addresses: str) -> None:
    assert rewrite(_route(addresses), _TOLD) is None


def test_words_in_strings_are_not_addresses() -> None:
    order = r'"orderTopicConf":"\"brokerAddrs\":{0:\"10.0.0.5:10911\"}, brokerAddr"'
    body = f'{{"brokerDatas":[{{"brokerAddrs":{{0:"10.0.0.5:10911"}},"brokerName":"brokerAddrs"}}],{order}}}'.encode()
    then = body.replace(b'{0:"10.0.0.5:10911"}', b'{0:"sluice.example.com:10911"}')
    assert rewrite(body, _TOLD) == Rewritten(then, 1, 0)


def test_of_a_body_that_is_cut_nothing_else_changes() -> None:
    body = _route('{0:"10.0.0.5:10911"}')
    for end in range(len(body)):
        rewritten = rewrite(body[:end], _TOLD)
        then = body[:end].replace(b'"10.0.0.5:10911"', b'"sluice.example.com:10911"')
        assert rewritten in (None, Rewritten(then, 1, 0)), body[:end]


_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_hosts = st.sampled_from(["10.0.0.5:10911", "10.0.0.6:10911", "broker.example.com:10911", "", "x"])
_routes = st.fixed_dictionaries(
    {
        "brokerDatas": st.lists(
            st.fixed_dictionaries(
                {"brokerAddrs": st.dictionaries(st.integers(0, 9).map(str), _hosts), "brokerName": _names}
            ),
            max_size=4,
        ),
        "orderTopicConf": _names,
    }
)


@given(route=_routes, ascii_only=st.booleans(), spaced=st.booleans(), unquoted=st.booleans())
def test_a_route_is_unchanged_except_for_the_addresses(
    *, route: dict[str, Any], ascii_only: bool, spaced: bool, unquoted: bool
) -> None:
    text = json.dumps(route, ensure_ascii=ascii_only, separators=(" , ", " : ") if spaced else (",", ":"))
    then = text.replace('"10.0.0.5:10911"', '"sluice.example.com:10911"')
    addresses = [address for each in route["brokerDatas"] for address in each["brokerAddrs"].values()]
    replaced = addresses.count("10.0.0.5:10911")
    if unquoted:
        text, then = (re.sub(r'(?<=[{,])( ?)"(\d)"(?= ?:)', r"\1\2", each) for each in (text, then))
    assert rewrite(text.encode(), _TOLD) == Rewritten(then.encode(), replaced, len(addresses) - replaced)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5:10911", ("10.0.0.5", 10911)),
        ("Broker-A.example.com:1", ("broker-a.example.com", 1)),
        ("[2001:DB8::1]:65535", ("2001:db8::1", 65535)),
        ("2001:db8:0::1:10911", ("2001:db8::1", 10911)),
        ("10.0.0.5", None),
        ("10.0.0.5:0", None),
        ("10.0.0.5:65536", None),
        ("10.0.0.5:1x", None),
        (":10911", None),
        ('a"b:10911', None),
        ("a b:10911", None),
        ("", None),
    ],
)
def test_addresses_are_read_as_rocketmq_writes_them(text: str, address: tuple[str, int] | None) -> None:
    assert read_address(text) == address


def _front(listen: tuple[str, int], *brokers: tuple[str, int]) -> ListenerAddresses:
    return ListenerAddresses("rocketmq", listen, brokers)


def test_configured_addresses_override_those_of_listeners() -> None:
    fronts = [_front(("127.0.0.2", 10911), ("10.0.0.5", 10911)), _front(("127.0.0.3", 10911), ("10.0.0.5", 10911))]
    addresses = Addresses([(("10.0.0.5", 10911), ("sluice", 1)), (("192.0.2.1", 10911), ("sluice", 2))])
    assert advertised_addresses(Addresses(), "", fronts, "") == {("10.0.0.5", 10911): b"127.0.0.2:10911"}
    assert advertised_addresses(addresses, "", fronts, "") == {
        ("10.0.0.5", 10911): b"sluice:1",
        ("192.0.2.1", 10911): b"sluice:2",
    }


def test_vip_channel_belongs_to_the_listener_two_ports_above() -> None:
    main = _front(("127.0.0.2", 10911), ("10.0.0.5", 10911))
    vip = _front(("127.0.0.2", 10909), ("10.0.0.5", 10909))
    anywhere = _front(("0.0.0.0", 10909), ("10.0.0.5", 10909))
    elsewhere = _front(("127.0.0.3", 10909), ("10.0.0.5", 10909))
    assert without_vip([main, vip]) == without_vip([main, anywhere]) == []
    assert without_vip([main]) == without_vip([main, elsewhere]) == [("127.0.0.2", 10911)]
    assert without_vip([_front(("127.0.0.2", 0), ("10.0.0.5", 10911))]) == []
