"""The options of a listener: networks as an operator writes them."""

from functools import partial
from ipaddress import IPv4Network, IPv6Network

import pytest

from admin.config.faults import FaultsError, read
from limiter.rules.errors import RuleError
from limiter.rules.rule import Rule
from proxy.protocols.rocketmq import PROTOCOL
from proxy.protocols.rocketmq.options import Networks, RocketMQOptions, check_rule

_read = partial(read, RocketMQOptions)


def test_by_default_only_this_machine_may_read_limits_and_none_may_change_them() -> None:
    options = _read({})
    assert options.remote_view_from == (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
    assert options.remote_update_from == ()
    assert options == RocketMQOptions()


def test_networks_are_read_from_text() -> None:
    options = _read({"remote_update_from": ["10.1.2.3", "10.0.0.0/8", "2001:db8::/32"]})
    assert str(options.remote_update_from) == "[10.1.2.3, 10.0.0.0/8, 2001:db8::/32]"
    assert _read({"remote_view_from": []}).remote_view_from == Networks()


def test_networks_that_were_read_are_taken_as_they_are() -> None:
    networks = Networks((IPv4Network("10.0.0.0/8"),))
    assert RocketMQOptions(remote_view_from=networks) == _read({"remote_view_from": networks})
    assert _read({"remote_view_from": (IPv4Network("10.0.0.0/8"),)}).remote_view_from == networks


@pytest.mark.parametrize("option", ["remote_view_from", "remote_update_from"])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("10.0.0.0/8", "must be a list of addresses and networks"),
        (True, "must be a list of addresses and networks"),
        ([7], "must be a list of addresses and networks"),
        (["*"], "must be a list of addresses and networks"),
        (["broker.example"], 'invalid network "broker.example"'),
        (["10.1.2.3/8"], 'invalid network "10.1.2.3/8"'),
    ],
)
def test_error_names_the_option_and_allowed_values(option: str, value: object, what: str) -> None:
    with pytest.raises(FaultsError) as caught:
        _read({option: value})
    (fault,) = caught.value.faults
    assert fault.place == (option,)
    assert what in fault.what


@pytest.mark.parametrize("busy_code", [None, 2, 215])
@pytest.mark.parametrize("kind", ["topic", "retry_group", "subscription", "listener"])
def test_a_word_for_busy_is_taken(kind: str, busy_code: int | None) -> None:
    check_rule(Rule(kind, "*", 5, busy_code=busy_code))


@pytest.mark.parametrize("busy_code", [0, 1, 10, 14, 216, -2])
@pytest.mark.parametrize("kind", ["topic", "listener"])
def test_a_number_that_clients_do_not_take_for_busy_is_not(kind: str, busy_code: int) -> None:
    with pytest.raises(RuleError, match=f"busy_code {busy_code}.*allowed: 2 or 215"):
        check_rule(Rule(kind, "*", 5, busy_code=busy_code))


@pytest.mark.parametrize(
    ("pattern", "meant"), [("%RETRY%g", "g"), ("%RETRY%g*", "g*"), ("%RETRY%", "*"), ("[%]RETRY%g", "g")]
)
@pytest.mark.parametrize("kind", ["topic", "retry_group"])
def test_a_retry_topic_is_written_as_its_group(kind: str, pattern: str, meant: str) -> None:
    with pytest.raises(RuleError) as caught:
        check_rule(Rule(kind, pattern, 5))
    assert caught.value.allowed == f"kind retry_group and the group's name, {meant}"


@pytest.mark.parametrize("pattern", ["orders", "g[*]"])
def test_a_subscription_without_its_topic_is_not(pattern: str) -> None:
    with pytest.raises(RuleError, match=r"allowed: GROUP@TOPIC"):
        check_rule(Rule("subscription", pattern, 5))


def test_the_rules_that_are_built_in_are_taken() -> None:
    for rule in PROTOCOL.default_rules:
        PROTOCOL.check_rule(rule)
