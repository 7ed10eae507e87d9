"""The whole configuration as types: every key, what it means, its default and what is allowed.

These models are the one place where a key is defined; the sample ``deploy/sluice.toml`` is tested against
them. Where the values come from, and how an error names its place, is ``admin.sources``; what is made of them
is ``admin.composition``.
"""

import math
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from admin.endpoint import DEFAULT_ADMIN, Endpoint, parse_endpoint
from admin.faults import number_meant
from limiter.errors import RuleError
from limiter.patterns import read_network
from limiter.rejections import DEFAULT_TOLD_APART
from limiter.rule import DEFAULT_MAX_FAIR_KEYS, MAX_FAIR_KEYS, Action, Count, FairBy

DEFAULT_PROTOCOL = "rocketmq"
DEFAULT_SCOPE = "default"

OFF: Literal["off"] = "off"
UNLIMITED: Literal["unlimited"] = "unlimited"


def _parse_broker(value: object) -> Endpoint:
    endpoint = parse_endpoint(value)
    if endpoint.port == 0:
        raise ValueError("must name the broker's port, from 1 to 65535")
    return endpoint


def _parse_admin(value: object) -> Endpoint | Literal["off"]:
    if value == OFF:
        return OFF
    try:
        return parse_endpoint(value)
    except ValueError as error:
        hint = "; the commands that ask a sidecar take a URL, from SLUICE_URL" if "://" in str(value) else ""
        raise ValueError(f'{error}; or "off"{hint}') from None


def _parse_rate(value: object) -> float | Literal["unlimited"]:
    if value == UNLIMITED:
        return UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        meant = f"; write {number}" if isinstance(value, str) and (number := number_meant(value)) else ""
        allowed = 'must be a number of at least 0 (messages per second, 0 refuses all) or "unlimited"'
        raise ValueError(allowed + meant)
    return float(value)


def _parse_network(value: object) -> IPv4Network | IPv6Network:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    network, allowed = None, '"10.1.2.3", "10.0.0.0/8" or "2001:db8::/32"'
    if isinstance(value, str):
        try:
            network = read_network(value).network
        except RuleError as error:
            allowed = allowed if "," in error.allowed else f'"{error.allowed}"'
    if network is None:
        raise ValueError(f"must be an address or a network: {allowed}")
    return network


_TEXT: Final = (PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"}))
ListenAddress = Annotated[Endpoint, PlainValidator(parse_endpoint), *_TEXT]
BrokerAddress = Annotated[Endpoint, PlainValidator(_parse_broker), *_TEXT]
AdminAddress = Annotated[Endpoint | Literal["off"], PlainValidator(_parse_admin), *_TEXT]
Rate = Annotated[
    float | Literal["unlimited"],
    PlainValidator(_parse_rate),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "unlimited"}]}),
]
Network = Annotated[IPv4Network | IPv6Network, PlainValidator(_parse_network), *_TEXT]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Burst = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class ListenerSettings(_Table):
    """One address that clients connect to, and the broker behind it."""

    name: Name | None = Field(None, description="names the listener in logs and metrics; its address if not given")
    listen: ListenAddress = Field(description="where clients connect")
    broker: BrokerAddress = Field(description="the broker that gets what passes")
    protocol: Name = Field(DEFAULT_PROTOCOL, description="what the clients speak")
    scope: Name = Field(
        DEFAULT_SCOPE, description="what limits of kind listener name; listeners of one scope share them"
    )
    exempt: list[Network] = Field(
        default_factory=list, description="clients that are never limited, by address or network"
    )
    max_connections_per_client: int | None = Field(
        None, ge=1, description="connections from one address at once, to all listeners of the scope; any if not given"
    )
    new_connections_per_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="connections accepted each second; any if not given"
    )
    tls: Literal["refuse", "pass"] | None = Field(
        None, description="clients that speak TLS: close with a reason (the default), or relay unread and so unlimited"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the protocol's own options")

    @property
    def label(self) -> str:
        """The listener's name, or its address where it was given none."""
        return self.name or str(self.listen)


class Limit(_Table):
    """How much is admitted, and what happens above it."""

    rate: Rate | None = Field(
        None,
        description='messages per second; 0 refuses all, "unlimited" admits all, as does leaving it out beside'
        " bytes_per_s",
    )
    burst_s: Burst = Field(1.0, description="seconds of the rate that may be admitted at once after a pause")
    bytes_per_s: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="bytes of whole requests per second; not limited if not given"
    )
    bytes_burst_s: Burst = Field(1.0, description="burst_s of the bytes")
    count: Count = Field("messages", description="what the rate counts: messages, or requests of any number of them")
    action: Action | None = Field(
        None, description="above the limit: reject, shadow, delay; off for a limit that is kept; the kind's own if not"
    )
    max_delay_s: Seconds | None = Field(
        None, description="with delay: seconds for which a request is held at most; the kind's own if not given"
    )
    busy_code: int | None = Field(None, description="the number of the refusal; the protocol's own if not given")
    fair_by: FairBy | None = Field(None, description="whose shares of the limit are kept apart")
    max_fair_keys: int = Field(
        DEFAULT_MAX_FAIR_KEYS,
        ge=1,
        le=MAX_FAIR_KEYS,
        description="with fair_by: how many are told apart; the rest share one share",
    )
    warm_up_s: Seconds = Field(0.0, description="seconds in which the rate rises to the full one after idleness")
    break_s: Seconds | None = Field(
        None,
        description="seconds for which all is refused after the limit was hit; 1, and 0 for totals, scopes, delay"
        " and warm_up_s, if not given",
    )
    allow_under_limit: bool = Field(
        False, description="allow a break longer than the burst, which admits less than the rate"
    )

    @property
    def _is_exempt(self) -> bool:
        return isinstance(self, WrittenLimit) and self.exempt

    @model_validator(mode="after")
    def _limits_something(self) -> "Limit":
        if self.rate is None and self.bytes_per_s is None and self.action != OFF and not self._is_exempt:
            raise ValueError('must have a rate or bytes_per_s, or action = "off"')
        return self


class WrittenLimit(Limit):
    """All that can be said of the limit of one name or pattern: in the file, and in a live edit."""

    exempt: bool = Field(
        False, description="true: never limited, neither by this nor by totals and scopes; in place of a rate"
    )
    between: str | None = Field(
        None, description="hours at which it holds, HH:MM-HH:MM; those over midnight belong to the day they begin"
    )
    days: list[Day] | None = Field(None, min_length=1, description="days on which it holds; every day if not given")
    time_zone: str = Field("UTC", description="whose clocks between and days go by")


class LimitSettings(WrittenLimit):
    """The limit of one resource or scope, or of those whose names match a pattern: of each, or of all together."""

    kind: Name = Field(description="a kind of resource, as the protocol names it; or client, producer_group, listener")
    name: Name = Field(description="an exact name or a pattern with * ? []; of clients an address, a network or *")
    shared: bool = Field(False, description="true: one limit for all that match together, besides that of each")


KEY_HINTS: Final = {
    ("limits", "enabled"): 'unknown; write action = "off" for a limit that is kept but does not hold',
    ("defaults", "enabled"): 'unknown; write action = "off" for a default that is kept but does not hold',
} | {
    ("defaults", key): 'not for a default, which holds always and for each; write it as [[limits]] with name = "*"'
    for key in LimitSettings.model_fields.keys() - Limit.model_fields.keys()
}
"""What to write instead of a key that is not there, by the first part of its place and the key."""

EDIT_KEY_HINTS: Final = {
    "enabled": 'unknown; write action "off" for a limit that is kept but does not hold',
    "kind": "no key of an edit; it is in the limit's address",
    "name": "no key of an edit; it is in the limit's address",
    "shared": "no key of an edit; what all have together is addressed as kind total, name KIND:PATTERN",
}
"""The same for the keys of a live edit."""

VALUE_HINTS: Final = {
    ("exempt", "*"): "networks of clients are exempt by their listener: exempt = [...] in [[listeners]]",
    ("action", "refuse"): 'did you mean "reject"?',
    ("action", "deny"): 'did you mean "reject"?',
    ("action", "drop"): 'did you mean "reject"?',
    ("action", "hold"): 'did you mean "delay"?',
    ("action", "wait"): 'did you mean "delay"?',
    ("action", "log"): 'did you mean "shadow"?',
    ("action", "count"): 'did you mean "shadow"?',
    ("action", "none"): 'did you mean "off"?',
    ("count", "bytes"): "bytes are limited by bytes_per_s",
    ("fair_by", "address"): 'did you mean "client"?',
    ("fair_by", "ip"): 'did you mean "client"?',
    ("fair_by", "group"): 'did you mean "producer_group"?',
}
"""What may have been meant by a value that a key does not take; ``*`` is any."""

KIND_HINTS: Final = {
    **dict.fromkeys(("consumer_group", "consumer", "group", "subscription_group"), ("subscription", "retry_group")),
    **dict.fromkeys(("address", "ip", "host", "network", "client_address"), ("client",)),
}
"""The kinds that may have been meant by other words."""


class HandlerSettings(_Table):
    """One link of the pipeline every request goes through, in the order of the file."""

    name: Name = Field(description="an installed handler")
    lane: Literal["task", "thread", "inline"] | None = Field(
        None, description="where it runs; its own choice if not given"
    )
    lanes: int = Field(1, ge=1, le=256, description="lanes its connections are spread over")
    capacity: int = Field(10_000, ge=1, description="batches that may wait on a lane before it is bypassed")
    deadline_ms: float = Field(
        20.0, gt=0, allow_inf_nan=False, description="milliseconds a batch waits for its verdict before it is bypassed"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the handler's own options")


class AdminSettings(_Table):
    """The HTTP address of page, API, metrics and health, and who may use it."""

    listen: AdminAddress = Field(
        parse_endpoint(DEFAULT_ADMIN),
        description='where page, API, /metrics, /healthz and /readyz are served; "off" serves none',
        json_schema_extra={"env": "SLUICE_ADMIN"},  # besides SLUICE_ADMIN_LISTEN, as the flag is --admin
    )
    token_file: Name | None = Field(None, description="file of tokens, a line each: NAME ROLE TOKEN; read or write")
    token: Name | None = Field(
        None, repr=False, description="one token that may read and write; better in the environment"
    )
    read_token: Name | None = Field(
        None, repr=False, description="one token that may only read; better in the environment"
    )
    allow_anyone: bool = Field(
        False, description="true: without any token, on an address that others reach, too; they can change limits"
    )
    allowed_hosts: list[Name] = Field(
        default_factory=list, description="names under which the address is reached, besides localhost and addresses"
    )
    public_metrics: bool = Field(False, description="true: /metrics wants no token")
    tls_certificate_file: Name | None = Field(None, description="PEM file; with the key it makes the address HTTPS")
    tls_key_file: Name | None = Field(None, description="PEM file of the certificate's key")


class LogSettings(_Table):
    """What is written to stderr, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="the least that is written")
    format: Literal["auto", "human", "json"] = Field("auto", description="auto: human on a terminal, otherwise json")


class RejectionLogSettings(_Table):
    """The log of what was refused, by whom and how much, and of the traffic it stood in."""

    dir: Name | None = Field(
        None, description='folder of its files; "off" writes none; not given: `rejections` in the state directory'
    )
    instance: Annotated[Name, Field(max_length=200)] | None = Field(
        None, description="this sidecar's name in the log; not given: host name and port of the first listener"
    )
    max_file_bytes: int = Field(64 * 1024 * 1024, ge=64 * 1024, description="a file this long is finished")
    max_file_age_s: float = Field(
        60.0, ge=1, le=86_400, description="seconds after which a file with refusals or traffic is finished"
    )
    max_total_bytes: int = Field(
        1024 * 1024 * 1024, ge=1024 * 1024, description="all files together; beyond it the oldest are deleted"
    )
    max_keys_per_s: int = Field(
        DEFAULT_TOLD_APART,
        ge=1,
        le=1_000_000,
        description="refusals told apart in a second; the rest is counted as _other",
    )
    max_resources: int = Field(
        DEFAULT_TOLD_APART,
        ge=1,
        le=1_000_000,
        description="resources told apart in a minute; the rest is counted as _other",
    )


class BoundsSettings(_Table):
    """What Sluice may use at most."""

    max_connections: int = Field(10_000, ge=1, description="client connections open at once; more are closed at once")
    max_live_limiters: int = Field(
        100_000, ge=1, description="limiters in memory; new names beyond it share one for each rule"
    )
    max_resource_labels: int = Field(
        1_000, ge=1, description="resources with metrics of their own; the rest is counted as _other"
    )
    buffer_budget_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="read buffers of all connections; beyond it reads get smaller"
    )


class Settings(_Table):
    """The root of the configuration."""

    limiting: bool = Field(True, description="false: everything passes and is counted")
    state_dir: Name | None = Field(
        None, description='where live edits are kept; "off" keeps them until the restart; a usual place if not given'
    )
    grace_s: Seconds = Field(10.0, description="seconds that requests in flight get to finish on SIGTERM")
    reload_on_change: bool = Field(
        False, description="true: the configuration and its files are read again when they change, as on SIGHUP"
    )
    listeners: list[ListenerSettings] = Field(default_factory=list)
    limits: list[LimitSettings] = Field(default_factory=list)
    defaults: dict[str, Limit] = Field(
        default_factory=dict, description="by kind: the limit of each that no other limit matches"
    )
    handlers: list[HandlerSettings] = Field(default_factory=lambda: [HandlerSettings(name="rate_limit")])
    admin: AdminSettings = Field(default_factory=AdminSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    rejection_log: RejectionLogSettings = Field(default_factory=RejectionLogSettings)
    bounds: BoundsSettings = Field(default_factory=BoundsSettings)
