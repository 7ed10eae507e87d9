"""Options of the RocketMQ protocol: a listener's ``options`` table."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Final, Literal

from msgspec import Meta

from limiter.rules.errors import RuleError
from limiter.rules.patterns import read_network
from limiter.rules.rule import Rule
from proxy.common.admission import Network
from proxy.protocols.options import Scan, Tls
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import (
    BUSY_CODES,
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    RETRY_PREFIX,
    SUBSCRIPTION_MARK,
)


class Networks(tuple[Network, ...]):
    """The networks of allowed clients. If empty, no client is allowed."""

    __slots__ = ()

    def __str__(self) -> str:
        return "[" + ", ".join(str(each).removesuffix(f"/{each.max_prefixlen}") for each in self) + "]"


def _read_networks(value: object) -> Networks:
    if isinstance(value, Networks):
        return value
    allowed = (
        'must be a list of addresses and networks, like ["10.1.2.3", "10.0.0.0/8", "2001:db8::/32"];'
        " [] allows no client"
    )
    if not isinstance(value, list | tuple):
        raise ValueError(allowed)  # noqa: TRY004 - what is wrong with a value is a ValueError
    return Networks(_read_network(each, allowed) for each in value)


def _read_network(value: object, allowed: str) -> Network:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    network = None
    if isinstance(value, str):
        try:
            network = read_network(value).network
        except RuleError as error:
            raise ValueError(f'invalid network "{value}"; allowed: {error.allowed}') from None
    if network is None:
        raise ValueError(allowed)
    return network


_NO_NETWORKS: Final = Networks()
_LOOPBACK: Final = Networks((IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")))


_Networks = Annotated[Networks, Meta(extra={"read": _read_networks})]


@dataclass(frozen=True, slots=True)
class RocketMQOptions:
    """Options of a RocketMQ listener.

    Attributes:
        tls: what to do if a client begins a TLS handshake and the listener does not terminate TLS. ``refuse`` closes
            the connection. ``pass`` relays the encrypted connection without applying limits.
        max_frame_bytes: maximum size of a frame, including its length word. If a client sends a longer frame, Sluice
            closes the connection, as the broker does.
        remote_view_from: networks of clients that may read the current limits (request 9002).
        remote_update_from: networks of clients that may change limits (request 9003).
        internal_topics: what to do with messages to the broker's internal topics, such as ``rmq_sys_wheel_timer``, and
            with messages that set their own message count (``INNER_NUM``). Both would bypass every limit. ``refuse``
            responds like a broker that forbids the request. ``pass`` treats them like any other message.
        scan: code that parses ordinary frames. ``compiled`` is the package sluice_native. ``python`` is slower but
            always available. ``auto`` uses the package if it is installed.
    """

    tls: Tls = "refuse"
    max_frame_bytes: Annotated[int, Meta(ge=codes.PREFIX_BYTES)] = codes.MAX_FRAME_BYTES
    remote_view_from: _Networks = _LOOPBACK
    remote_update_from: _Networks = _NO_NETWORKS
    internal_topics: Literal["refuse", "pass"] = "refuse"
    scan: Scan = "auto"


def check_rule(rule: Rule) -> None:
    """Raise RuleError if the protocol does not support a rule, or if the rule can never match."""
    if rule.busy_code is not None and rule.busy_code not in BUSY_CODES:
        raise RuleError(
            f"rule {rule.name}: clients do not treat busy_code {rule.busy_code} as busy",
            " or ".join(map(str, sorted(BUSY_CODES))),
            "busy_code",
        )
    name = rule.matches.exact_name
    written = rule.pattern if name is None else name
    if rule.kind in {KIND_TOPIC, KIND_RETRY_GROUP} and written.startswith(RETRY_PREFIX):
        group = written.removeprefix(RETRY_PREFIX) or "*"
        raise RuleError(
            f"rule {rule.name}: the name contains {RETRY_PREFIX}, but retry topics are limited by their group",
            f"kind {KIND_RETRY_GROUP} and the group's name, {group}",
            "pattern",
        )
    if rule.kind == KIND_SUBSCRIPTION and name is not None and SUBSCRIPTION_MARK not in name:
        raise RuleError(
            f"rule {rule.name}: {name} must contain both a group and a topic",
            f"GROUP{SUBSCRIPTION_MARK}TOPIC, e.g. {name}{SUBSCRIPTION_MARK}* for the group or"
            f" *{SUBSCRIPTION_MARK}{name} for the topic",
            "pattern",
        )
