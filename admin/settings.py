"""The whole configuration as types: every key, what it means, its default and what is allowed.

These models are the one place where a key is defined; the sample ``deploy/sluice.toml`` is tested against
them. Where the values come from, and how an error names its place, is ``admin.sources``; what is made of them
is ``admin.composition``.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

DEFAULT_ADMIN = "127.0.0.1:9870"
DEFAULT_PROTOCOL = "rocketmq"
DEFAULT_SCOPE = "default"

OFF: Literal["off"] = "off"
UNLIMITED: Literal["unlimited"] = "unlimited"


class Endpoint(NamedTuple):
    """A TCP address, written ``host:port`` (``[::1]:port`` for IPv6)."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the spelling that ``parse_endpoint`` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(value: object) -> Endpoint:
    """Read ``host:port``.

    Raises:
        ValueError: with what is allowed, to be put behind the name of the place.
    """
    if isinstance(value, Endpoint):
        return value
    problem = ValueError('must be "host:port", for example "127.0.0.1:10911" or "[::1]:10911"')
    if not isinstance(value, str):
        raise problem
    host, colon, port_text = value.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('must have brackets around an IPv6 address, for example "[::1]:10911"')
    if not colon or not host or any(char.isspace() or char in "[]/" for char in host):
        raise problem
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError("must end in a port from 0 to 65535")
    return Endpoint(host, int(port_text))


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
        raise ValueError(f'{error}; or "off"') from None


def _parse_rate(value: object) -> float | Literal["unlimited"]:
    if value == UNLIMITED:
        return UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError('must be a number of at least 0 (messages per second, 0 refuses all) or "unlimited"')
    return value


ListenAddress = Annotated[Endpoint, PlainValidator(parse_endpoint), WithJsonSchema({"type": "string"})]
BrokerAddress = Annotated[Endpoint, PlainValidator(_parse_broker), WithJsonSchema({"type": "string"})]
AdminAddress = Annotated[Endpoint | Literal["off"], PlainValidator(_parse_admin), WithJsonSchema({"type": "string"})]
Rate = Annotated[
    float | Literal["unlimited"],
    PlainValidator(_parse_rate),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "unlimited"}]}),
]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class ListenerSettings(_Table):
    """One address that clients connect to, and the broker behind it."""

    name: Name | None = Field(None, description="names the listener in logs and metrics; its address if not given")
    listen: ListenAddress = Field(description="where clients connect")
    broker: BrokerAddress = Field(description="the broker that gets what passes")
    protocol: Name = Field(DEFAULT_PROTOCOL, description="what the clients speak")
    scope: Name = Field(DEFAULT_SCOPE, description="listeners of one scope share their limits, as a broker's ports do")
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

    rate: Rate = Field(description='messages per second; 0 refuses all, "unlimited" admits all')
    burst_s: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="seconds of the rate that may be admitted at once after a pause"
    )
    break_s: Seconds = Field(
        1.0, description="seconds without traffic debt before a refused resource is admitted again"
    )
    allow_under_limit: bool = Field(
        False, description="allow a break longer than the burst, which admits less than the rate"
    )


class LimitSettings(Limit):
    """The limit of one resource, or of every resource whose name matches a pattern."""

    kind: Name = Field(description="the kind of resource, as the protocol names it")
    name: Name = Field(description="an exact name or a pattern with * ? []")
    enabled: bool = Field(True, description="false: not limited, with the rate kept for later")


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
    """The HTTP address of metrics and health."""

    listen: AdminAddress = Field(
        parse_endpoint(DEFAULT_ADMIN),
        description='where /metrics, /healthz and /readyz are served; "off" serves none',
        json_schema_extra={"env": "SLUICE_ADMIN"},  # besides SLUICE_ADMIN_LISTEN, as the flag is --admin
    )


class LogSettings(_Table):
    """What is written to stderr, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="the least that is written")
    format: Literal["auto", "human", "json"] = Field("auto", description="auto: human on a terminal, otherwise json")


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
    grace_s: Seconds = Field(10.0, description="seconds that requests in flight get to finish on SIGTERM")
    listeners: list[ListenerSettings] = Field(default_factory=list)
    limits: list[LimitSettings] = Field(default_factory=list)
    defaults: dict[str, Limit] = Field(
        default_factory=dict, description="by kind: the limit of a resource that no rule matches"
    )
    handlers: list[HandlerSettings] = Field(default_factory=lambda: [HandlerSettings(name="rate_limit")])
    admin: AdminSettings = Field(default_factory=AdminSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    bounds: BoundsSettings = Field(default_factory=BoundsSettings)
