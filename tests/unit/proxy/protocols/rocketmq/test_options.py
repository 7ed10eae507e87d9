"""The options of a listener: networks as an operator writes them."""

from ipaddress import IPv4Network, IPv6Network

import pytest
from pydantic import TypeAdapter, ValidationError

from proxy.protocols.rocketmq.options import Networks, RocketMQOptions

_read = TypeAdapter(RocketMQOptions).validate_python


def test_without_options_only_this_machine_may_see_limits_and_nobody_may_change_them() -> None:
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
        (["broker.example"], '"broker.example" is none'),
        (["10.1.2.3/8"], '"10.1.2.3/8" is none'),
    ],
)
def test_error_names_the_option_and_what_is_allowed(option: str, value: object, what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _read({option: value})
    (error,) = caught.value.errors()
    assert error["loc"] == (option,)
    assert what in error["msg"]
