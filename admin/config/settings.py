"""Every key of the configuration: its meaning, type, default and bounds.

These models are the only definition of a key. Where values come from is ``admin.config.sources``.
"""

import re
import sys
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from admin.config.addresses import DEFAULT_ADMIN, Endpoint, parse_endpoint
from admin.config.limit_fields import FIELDS, LimitField
from limiter.counting.rejections import DEFAULT_TOLD_APART
from limiter.rules.errors import RuleError
from limiter.rules.patterns import read_network
from proxy.protocols import DEFAULT

DEFAULT_SCOPE = "default"

OFF: Literal["off"] = "off"
UNLIMITED: Literal["unlimited"] = "unlimited"

_PER_SECOND: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)/s")


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
        hint = "; Sluice listens here. Commands take a URL: `sluice state --admin URL`" if "://" in str(value) else ""
        raise ValueError(f'{error}; or "off"{hint}') from None


def _parse_rate(value: object) -> float | Literal["unlimited"]:
    if value == UNLIMITED:
        return UNLIMITED
    if isinstance(value, str) and (found := _PER_SECOND.fullmatch(value)):
        # As flags, variables and commands have it.
        value = float(found[1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ValueError('must be a number of at least 0 (messages per second, 0 refuses all) or "unlimited"')
    return _unsigned_zero(float(value))


def _unsigned_zero(value: float) -> float:
    """Turn -0.0 into 0.0."""
    return value + 0.0


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
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_unsigned_zero)]
Credit = Annotated[int, Field(ge=1, le=1_000_000)]
StoreCredit = Annotated[int, Field(ge=1, le=10_000_000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class ListenerSettings(_Table):
    """One address that clients connect to, and the broker behind it."""

    name: Name | None = Field(None, description="name in logs and metrics; default: its address")
    listen: ListenAddress = Field(
        description="address that clients connect to; [::] is all addresses, or only IPv6 if another one listens on the"
        " port with IPv4"
    )
    broker: BrokerAddress = Field(description="address of the broker behind it")
    backup_brokers: list[BrokerAddress] = Field(
        default_factory=list,
        description="further addresses of the broker: while `broker` does not answer, the first that does is used",
    )
    protocol: Name = Field(DEFAULT, description="protocol of the clients")
    scope: Name = Field(
        DEFAULT_SCOPE, description="name that limits of kind listener use; listeners of one scope share these limits"
    )
    exempt: list[Network] = Field(
        default_factory=list, description="addresses and networks of clients that are never limited"
    )
    max_connections_per_client: int | None = Field(
        None, ge=1, description="open connections from one address to all listeners of the scope; default: no bound"
    )
    new_connections_per_s: Positive | None = Field(
        None, description="connections accepted per second; default: no bound"
    )
    proxy_protocol_from: list[Network] = Field(
        default_factory=list,
        description="addresses and networks of load balancers; connections from there must begin with a PROXY header,"
        " v1 or v2, which names the client",
    )
    send_proxy_protocol: Literal["v1", "v2"] | None = Field(
        None,
        description="version of the PROXY header sent to the broker, which must expect it; default: none",
    )
    handshake_timeout_s: Positive = Field(
        10.0,
        description="seconds for a client's PROXY header and TLS handshake to arrive, and then for its first bytes",
    )
    frame_timeout_s: Positive = Field(
        60.0,
        description="seconds (up to twice as many) for a client to complete a frame, if it sends less than 1 KiB/s",
    )
    idle_timeout_s: Positive | None = Field(
        None,
        description="seconds without a byte from client or broker that end a connection; default: no bound",
    )
    write_timeout_s: Positive | None = Field(
        None,
        le=2_000_000,
        description="seconds after which a client that reads nothing is disconnected; default: no bound",
    )
    tls: Literal["refuse", "pass", "accept", "require"] | None = Field(
        None,
        description="clients that begin with TLS: refuse closes the connection (the default), pass relays it unread and"
        " without limits, accept ends TLS here, require does so and refuses clients without TLS",
    )
    tls_certificate_file: Name | None = Field(
        None, description="PEM file of Sluice's certificate for clients, with its chain"
    )
    tls_key_file: Name | None = Field(None, description="PEM file of the certificate's key")
    tls_client_ca_file: Name | None = Field(
        None, description="PEM file of the CAs of clients' certificates; with it, clients are asked for a certificate"
    )
    tls_client_certificate: Literal["require", "accept"] = Field(
        "require", description="require: clients without a certificate are refused; accept: they are served"
    )
    tls_minimum_version: Literal["1.2", "1.3"] = Field("1.2", description="oldest version of TLS that clients may use")
    tls_ciphers: Name | None = Field(
        None, description="ciphers of TLS 1.2 (not of 1.3), as for `openssl ciphers`; default: OpenSSL's own"
    )
    broker_tls: bool = Field(False, description="true: Sluice speaks TLS to the broker")
    broker_tls_ca_file: Name | None = Field(
        None, description="PEM file of the CAs of the broker's certificate; default: the system's"
    )
    broker_tls_certificate_file: Name | None = Field(
        None, description="PEM file of Sluice's certificate for the broker, with its chain"
    )
    broker_tls_key_file: Name | None = Field(None, description="PEM file of that certificate's key")
    broker_tls_server_name: Name | None = Field(
        None, description="name in the broker's certificate; default: the host of `broker`"
    )
    broker_tls_verify: bool = Field(
        True, description="false: the broker's certificate is not checked, so anyone in between can read along"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the protocol's own options")

    @property
    def label(self) -> str:
        """The listener's name, or its address if it has no name."""
        return self.name or str(self.listen)


def _of_fields(base: type[_Table], *, named: bool) -> Any:
    """Return a table with the fields of a limit: all but the named ones, or only these."""
    fields: dict[str, Any] = {
        each.key: (_annotation(each), Field(each.default, description=each.meaning))
        for each in FIELDS
        if each.named is named
    }
    return create_model("Fields", __base__=base, __module__=__name__, **fields)


def _annotation(of: LimitField) -> Any:
    type_ = Rate if of.key == "rate" else of.type
    return type_ if of.default is not None else type_ | None


if TYPE_CHECKING:

    class _LimitFields(_Table):
        def __getattr__(self, key: str) -> Any: ...

else:
    _LimitFields = _of_fields(_Table, named=False)


class BaseLimit(_LimitFields):
    """The fields of every limit, also of a default."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _zero_has_no_sign(cls, value: object) -> object:
        return _unsigned_zero(value) if isinstance(value, float) else value

    @property
    def _is_exempt(self) -> bool:
        return isinstance(self, WrittenLimit) and self.exempt

    @model_validator(mode="after")
    def _limits_something(self) -> "BaseLimit":
        limited = self.rate is not None or self.bytes_per_s is not None
        # confirm = "broker" counts, too: it is what is left of a limit whose after_consume is taken back.
        if not limited and self.action != OFF and not self._is_exempt and "confirm" not in self.model_fields_set:
            raise ValueError('must have a rate or bytes_per_s, or action = "off", or confirm = "after_consume"')
        return self


if TYPE_CHECKING:
    _WrittenFields = BaseLimit
else:
    _WrittenFields = _of_fields(BaseLimit, named=True)


class WrittenLimit(_WrittenFields):
    """The limit of a name or a pattern, in the file or in a live edit."""


class LimitSettings(WrittenLimit):
    """The limit of a name, or of all names that match a pattern: for each, or for all together."""

    kind: Name = Field(description="a kind of resource or scope of the protocol, or client, listener")
    name: Name = Field(description="exact name, or pattern with * ? []; for clients an address, a network or *")
    shared: bool = Field(
        False, description="true: one limit for all matching names together, in addition to the limit of each"
    )


EDIT_KEY_HINTS: Final = {
    "enabled": 'unknown; action "off" disables a limit',
    "kind": "not a key of an edit; it is in the limit's address",
    "name": "not a key of an edit; it is in the limit's address",
    "shared": "not a key of an edit; a shared limit has kind total and name KIND:PATTERN",
    "ttl": 'unknown; did you mean "ttl_s"?',
}
"""What to write instead of some unknown keys of a live edit."""

VALUE_HINTS: Final = {
    ("exempt", "*"): "exempt networks are a key of [[listeners]]",
    ("count", "bytes"): "bytes are limited by bytes_per_s",
} | {(each.key, word): f'did you mean "{meant}"?' for each in FIELDS for word, meant in each.meant.items()}
"""What may have been meant by a wrong value, by key and value; ``*`` is any value."""


class HandlerSettings(_Table):
    """One handler of the pipeline that every request passes, in the order of the file."""

    name: Name = Field(description="name of an installed handler")
    lane: Literal["task", "thread", "inline"] | None = Field(
        None, description="where the handler runs; default: its own choice"
    )
    lanes: int = Field(1, ge=1, le=256, description="number of lanes; each connection uses one")
    capacity: int = Field(10_000, ge=1, description="batches that may wait on a lane; further ones bypass the handler")
    deadline_ms: Positive = Field(
        20.0,
        description="milliseconds that a batch waits for its verdict; after that it bypasses the handler",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the handler's own options")


class AdminSettings(_Table):
    """The HTTP address of page, API, metrics and health checks, and who may use it."""

    listen: AdminAddress = Field(
        parse_endpoint(DEFAULT_ADMIN),
        description='address of page, API, /metrics, /healthz and /readyz; "off" disables all of them',
        json_schema_extra={"env": "SLUICE_ADMIN"},  # besides SLUICE_ADMIN_LISTEN, as the flag is --admin
    )
    token_file: Name | None = Field(
        None, description="file of tokens, one per line: NAME ROLE TOKEN; the role is read or write"
    )
    token: Name | None = Field(None, repr=False, description="one token that may read and write; prefer the variable")
    read_token: Name | None = Field(None, repr=False, description="one token that may only read; prefer the variable")
    allow_anyone: bool = Field(
        False,
        description="true: allow an address that other machines reach without any token; they can then change limits",
    )
    allowed_hosts: list[Name] = Field(
        default_factory=list, description="host names of the address, in addition to localhost and IP addresses"
    )
    public_metrics: bool = Field(False, description="true: /metrics needs no token")
    tls_certificate_file: Name | None = Field(None, description="PEM file; certificate and key together enable HTTPS")
    tls_key_file: Name | None = Field(None, description="PEM file of the certificate's key")


class LogSettings(_Table):
    """The service log, written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe level that is logged")
    format: Literal["auto", "human", "json"] = Field("auto", description="auto: human on a terminal, otherwise json")


class RejectionLogSettings(_Table):
    """The log of refusals and of traffic, for `sluice report`."""

    dir: Name | None = Field(
        None, description='folder of the files; "off" disables the log; default: `rejections` in the state directory'
    )
    instance: Annotated[Name, Field(max_length=200)] | None = Field(
        None, description="name of this sidecar in the log; default: host name and port of the first listener"
    )
    max_file_bytes: int = Field(64 * 1024 * 1024, ge=64 * 1024, description="size at which a file is finished")
    max_file_age_s: float = Field(
        60.0, ge=1, le=86_400, description="seconds after which a file with refusals or traffic is finished"
    )
    max_total_bytes: int = Field(
        1024 * 1024 * 1024, ge=1024 * 1024, description="size of all files together; above it the oldest are deleted"
    )
    max_keys_per_s: int = Field(
        DEFAULT_TOLD_APART,
        ge=1,
        le=1_000_000,
        description="refusals told apart per second; the others are counted as _other",
    )
    max_resources: int = Field(
        DEFAULT_TOLD_APART,
        ge=1,
        le=1_000_000,
        description="resources told apart per minute; the others are counted as _other",
    )


class ReportSettings(_Table):
    """The report whose advice the page shows."""

    recommendations: Name | None = Field(
        None,
        description='its `recommendations.json`, or "off"; default: `report/recommendations.json` in the state'
        " directory, which `sluice report --out STATE_DIR/report` writes",
    )

    @field_validator("recommendations")
    @classmethod
    def _is_a_file_of_a_report(cls, value: str | None) -> str | None:
        if value not in (None, OFF) and not value.endswith(".json"):
            raise ValueError('must be the path of a recommendations.json, which `sluice report` writes, or "off"')
        return value


class SpoolSettings(_Table):
    """Where requests wait that are over a limit with ``spool``: in memory and on disk."""

    dir: Name | None = Field(
        None,
        description='folder of its files; "off": requests wait in memory only; default: `spool` in the state directory',
    )
    memory_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1024 * 1024,
        description="memory that it may use; from half of it on, messages beyond target_s go to disk",
    )
    max_disk_bytes: int = Field(
        16 * 1024 * 1024 * 1024,
        ge=64 * 1024 * 1024,
        description="size of all its files; when full, messages wait in memory, and then clients are no longer read",
    )
    max_age_s: float = Field(
        86_400.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds after which a message is refused, or sent if it cannot be refused; 0: never",
    )
    target_s: float = Field(
        2.0,
        gt=0,
        le=3600,
        description="seconds of its traffic that a queue keeps in memory while memory is short",
    )
    recover: bool = Field(
        True,
        description="true: after a restart or a crash, messages on disk whose senders expect no answer are sent, marked"
        " as possible duplicates; false: they are counted and dropped",
    )


class FlowSettings(_Table):
    """Credit between the stages of Sluice, as in RabbitMQ's credit flow."""

    initial_credit: Credit = Field(400, description="messages that a stage may send to the next one")
    more_credit_after: Credit = Field(
        200, description="after this many processed messages it may send as many more; at most initial_credit"
    )
    store_initial_credit: StoreCredit = Field(
        4000, description="messages that a queue may give the spool's disk to write"
    )
    store_more_credit_after: StoreCredit = Field(
        800, description="after this many written messages it may give as many more; at most store_initial_credit"
    )

    @model_validator(mode="after")
    def _credit_comes_back(self) -> "FlowSettings":
        for more, initial in (
            ("more_credit_after", "initial_credit"),
            ("store_more_credit_after", "store_initial_credit"),
        ):
            most = getattr(self, initial)
            if getattr(self, more) > most:
                raise ValueError(f"must have {more} of at most {initial}, {most}; otherwise messages stop for good")
        return self


class AlarmSettings(_Table):
    """When Sluice stops publishers until there is enough memory and disk again."""

    memory_high_watermark: float = Field(
        0.6,
        gt=0,
        le=1,
        description="share of the memory of the container or machine, above which publishers are stopped",
    )
    disk_free_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=0,
        description="free bytes on the spool's disk, below which publishers are stopped; 0: never",
    )


class BoundsSettings(_Table):
    """Upper bounds of what Sluice uses."""

    max_connections: int = Field(10_000, ge=1, description="open client connections; further ones are closed at once")
    max_live_limiters: int = Field(
        100_000, ge=1, description="limiters in memory; further names share one limiter per rule"
    )
    max_resource_labels: int = Field(
        1_000, ge=1, description="resources with their own metrics; the others are counted as _other"
    )
    buffer_budget_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="bytes of all read buffers; above it reads get smaller"
    )


class Settings(_Table):
    """The root of the configuration."""

    limiting: bool = Field(True, description="false: everything passes, and is still counted")
    state_dir: Name | None = Field(
        None,
        description='directory of live edits; "off": they last until the restart; default: see `sluice run --help`',
    )
    grace_s: Seconds = Field(10.0, description="seconds that requests in flight have to finish on SIGTERM")
    take_over: bool = Field(
        False,
        description="true: take over listeners, edits and limits from a process with the same state directory, which"
        " then ends; false: do not start beside it",
    )
    reload_on_change: bool = Field(
        False, description="true: reload when the configuration or its files change, as on SIGHUP"
    )
    listeners: list[ListenerSettings] = Field(default_factory=list)
    limits: list[LimitSettings] = Field(default_factory=list)
    defaults: dict[str, BaseLimit] = Field(
        default_factory=dict, description="by kind: the limit of each name that no other limit matches"
    )
    handlers: list[HandlerSettings] = Field(default_factory=lambda: [HandlerSettings(name="rate_limit")])
    admin: AdminSettings = Field(default_factory=AdminSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    rejection_log: RejectionLogSettings = Field(default_factory=RejectionLogSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    spool: SpoolSettings = Field(default_factory=SpoolSettings)
    flow: FlowSettings = Field(default_factory=FlowSettings)
    alarms: AlarmSettings = Field(default_factory=AlarmSettings)
    bounds: BoundsSettings = Field(default_factory=BoundsSettings)
