from dataclasses import replace

import pytest

from admin.common.errors import SettingsError
from admin.config.faults import Origins
from admin.config.plugins import options
from proxy.protocols.base import ListenerAddresses, kinds_of
from proxy.protocols.rocketmq import PROTOCOL as REMOTING
from proxy.protocols.rocketmq_grpc import PROTOCOL
from proxy.protocols.rocketmq_grpc.options import RocketMQGrpcOptions

_LISTENERS = (ListenerAddresses("rocketmq-grpc", ("192.0.2.10", 8081), (("127.0.0.1", 18081),)),)


def _read(**given: object) -> RocketMQGrpcOptions:
    return options(RocketMQGrpcOptions, given, ("listeners", 0, "options"), Origins(None, {}, {}))


def test_one_set_of_rules_serves_both_protocols() -> None:
    assert [replace(kind, ignores={}) for kind in PROTOCOL.kinds] == [*REMOTING.kinds]
    assert kinds_of((PROTOCOL, REMOTING)) == kinds_of((REMOTING, PROTOCOL)) == REMOTING.kinds
    assert PROTOCOL.default_rules is REMOTING.default_rules


@pytest.mark.parametrize("advertise", ["", "sluice.example.com:8081", "192.0.2.7:1", "[2001:db8::7]:8081"])
def test_an_address_can_be_advertised(advertise: str) -> None:
    assert _read(advertise=advertise).advertise == advertise


@pytest.mark.parametrize("advertise", ["sluice.example.com", "sluice.example.com:0", "a b:1", ":8081"])
def test_the_advertised_value_is_an_address(advertise: str) -> None:
    with pytest.raises(SettingsError, match=r"must be a host and a port"):
        _read(advertise=advertise)


@pytest.mark.parametrize("advertise", ["", "sluice.example.com:8081"])
def test_an_address_of_sluice_is_not_doubted(advertise: str) -> None:
    assert [*PROTOCOL.lint(RocketMQGrpcOptions(advertise), _LISTENERS)] == []


def test_who_advertises_the_proxy_sends_clients_past_sluice() -> None:
    ((option, doubt),) = PROTOCOL.lint(RocketMQGrpcOptions("127.0.0.1:18081"), _LISTENERS)
    assert option == "advertise"
    assert "bypass Sluice" in doubt
