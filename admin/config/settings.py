"""Declares all configuration keys except those of a limit, which ``admin.config.limit_fields`` declares."""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin.config.addresses import DEFAULT_ADMIN, Endpoint, parse_endpoint, parse_redis_url
from admin.config.limit_fields import DefaultLimit, limit_struct
from limiter.counting.rejections import DEFAULT_TOLD_APART
from limiter.fleet.member import WhenAway
from limiter.rules.errors import RuleError
from limiter.rules.patterns import read_network
from proxy.protocols import DEFAULT

DEFAULT_SCOPE = "default"

OFF: Literal["off"] = "off"

Written = dict[str, Any]
"""The fields that the file sets for a limit. In ``[[limits]]``, they include kind, name and shared."""


class Secret(str):
    """A string that ``repr`` does not reveal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


def _read_broker(value: object) -> Endpoint:
    endpoint = parse_endpoint(value)
    if endpoint.port == 0:
        raise ValueError("must include the broker's port, from 1 to 65535")
    return endpoint


def _read_admin(value: object) -> Endpoint | Literal["off"]:
    if value == OFF:
        return OFF
    try:
        return parse_endpoint(value)
    except ValueError as error:
        hint = (
            ". Sluice listens on this address. To query a running Sluice, pass a URL to another command: `sluice state"
            " --admin URL`"
            if "://" in str(value)
            else ""
        )
        raise ValueError(f'{error}; use "off" to turn the admin address off{hint}') from None


def _read_network(value: object) -> IPv4Network | IPv6Network:
    network, allowed = None, '"10.1.2.3", "10.0.0.0/8" or "2001:db8::/32"'
    if isinstance(value, str):
        try:
            network = read_network(value).network
        except RuleError as error:
            allowed = allowed if "," in error.allowed else f'"{error.allowed}"'
    if network is None:
        raise ValueError(f"must be an address or a network, such as {allowed}")
    return network


def _read_report(value: object) -> object:
    if value != OFF and not (isinstance(value, str) and value.endswith(".json")):
        raise ValueError('must be the path of a recommendations.json written by `sluice report`, or "off"')
    return value


def _check_redis_url(value: str) -> str:
    parse_redis_url(value)
    return value


def _check_fleet(value: str) -> str:
    if not value.isprintable() or any(each in "{} " for each in value):
        raise ValueError("must not contain spaces or braces, because it becomes part of Redis keys")
    return value


ListenAddress = Annotated[Endpoint, Meta(extra={"read": parse_endpoint})]
BrokerAddress = Annotated[Endpoint, Meta(extra={"read": _read_broker})]
AdminAddress = Annotated[Endpoint | Literal["off"], Meta(extra={"read": _read_admin})]
Network = Annotated[IPv4Network | IPv6Network, Meta(extra={"read": _read_network})]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Token = Annotated[str, Meta(min_length=1, max_length=255, extra={"check": Secret})]
Password = Annotated[str, Meta(min_length=1, max_length=4096, extra={"check": Secret})]
Positive = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]

LimitSettings: Final = limit_struct(
    "LimitSettings",
    "A limit for one name, for each name that matches a pattern, or for all matching names together.",
    more=[
        ("kind", Annotated[Name, Meta(description="kind of resource or scope, as listed below")]),
        (
            "name",
            Annotated[
                Name,
                Meta(description="exact name, or pattern with * ? []. For kind client: an address, a network or *"),
            ],
        ),
        (
            "shared",
            Annotated[
                bool,
                Meta(description="true: one limit for all matching names together, in addition to each name's limit"),
            ],
            False,
        ),
    ],
)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table in the configuration file."""


class ListenerSettings(Table, frozen=True, kw_only=True):
    """An address that clients connect to, and the broker behind it.

    Attributes:
        name: name in logs and metrics. Default: the address in ``listen``.
        listen: address that clients connect to. [::] also accepts IPv4, unless another listener uses the same port for
            IPv4.
        broker: address of the broker.
        backup_brokers: fallback addresses of the broker. While ``broker`` is unreachable, Sluice uses the first one
            that is reachable.
        reuse_port: true: share the address with other processes of the same user that also set this key (SO_REUSEPORT).
        protocol: protocol that the clients speak.
        scope: name by which limits of kind listener refer to this listener. Listeners with the same scope share these
            limits.
        exempt: addresses and networks of clients that are never limited.
        max_connections_per_client: maximum number of open connections from one client address to all listeners in the
            scope. Default: unlimited.
        new_connections_per_s: maximum number of connections accepted per second. Default: unlimited.
        proxy_protocol_from: addresses and networks of load balancers. Their connections must begin with a PROXY header
            (v1 or v2) that contains the client's address.
        send_proxy_protocol: version of the PROXY header to send to the broker, which must expect it. Default: no
            header.
        handshake_timeout_s: timeout in seconds for a client's PROXY header and TLS handshake, and then for its first
            bytes.
        frame_timeout_s: timeout in seconds for receiving a frame from a client that sends less than 1 KiB/s. The client
            may be disconnected only after twice this time.
        idle_timeout_s: seconds after which a connection is closed if neither the client nor the broker sends data.
            Default: never.
        write_timeout_s: seconds after which a client that does not read its data is disconnected. Default: never.
        tls: how to handle TLS from clients. refuse (the default) closes the connection. pass forwards the encrypted
            traffic without limits. accept terminates TLS. require does too, and refuses clients without TLS.
        tls_certificate_file: PEM file with the certificate that Sluice presents to clients, and its chain.
        tls_key_file: PEM file with the private key of that certificate.
        tls_client_ca_file: PEM file with the CAs to trust for client certificates. If set, Sluice asks clients for a
            certificate.
        tls_client_certificate: whether clients need a certificate if tls_client_ca_file is set. require (the default)
            refuses clients without one. accept serves them too.
        tls_minimum_version: minimum TLS version for clients.
        tls_ciphers: ciphers for TLS 1.2 (not 1.3), in the format of ``openssl ciphers``. Default: OpenSSL's default.
        broker_tls: true: use TLS to connect to the broker.
        broker_tls_ca_file: PEM file with the CAs to trust for the broker's certificate. Default: the system's CAs.
        broker_tls_certificate_file: PEM file with the certificate that Sluice presents to the broker, and its
            chain.
        broker_tls_key_file: PEM file with the private key of that certificate.
        broker_tls_server_name: name expected in the broker's certificate. Default: the host in ``broker``.
        broker_tls_verify: false: do not verify the broker's certificate. Anyone on the network path can then read and
            change the traffic. Default: true.
        options: options of the protocol.
    """

    name: Name | None = None
    listen: ListenAddress
    broker: BrokerAddress
    backup_brokers: list[BrokerAddress] = []
    reuse_port: bool = False
    protocol: Name = DEFAULT
    scope: Name = DEFAULT_SCOPE
    exempt: list[Network] = []
    max_connections_per_client: AtLeastOne | None = None
    new_connections_per_s: Positive | None = None
    proxy_protocol_from: list[Network] = []
    send_proxy_protocol: Literal["v1", "v2"] | None = None
    handshake_timeout_s: Positive = 10.0
    frame_timeout_s: Positive = 60.0
    idle_timeout_s: Positive | None = None
    write_timeout_s: Annotated[float, Meta(gt=0, le=2_000_000)] | None = None
    tls: Literal["refuse", "pass", "accept", "require"] | None = None
    tls_certificate_file: Name | None = None
    tls_key_file: Name | None = None
    tls_client_ca_file: Name | None = None
    tls_client_certificate: Literal["require", "accept"] | None = None
    tls_minimum_version: Literal["1.2", "1.3"] = "1.2"
    tls_ciphers: Name | None = None
    broker_tls: bool = False
    broker_tls_ca_file: Name | None = None
    broker_tls_certificate_file: Name | None = None
    broker_tls_key_file: Name | None = None
    broker_tls_server_name: Name | None = None
    broker_tls_verify: bool | None = None
    options: dict[str, Any] = {}

    @property
    def label(self) -> str:
        return self.name or str(self.listen)


class HandlerSettings(Table, frozen=True, kw_only=True):
    """A handler in the pipeline. Requests pass through handlers in the order in which they appear.

    Attributes:
        name: name of an installed handler.
        lane: where the handler runs. Default: the handler decides.
        lanes: number of lanes. Each connection uses one of them.
        capacity: maximum number of batches that wait for a lane. Further batches bypass the handler.
        deadline_ms: how long, in milliseconds, a batch waits for the verdict before it bypasses the handler.
        options: options of the handler.
    """

    name: Name
    lane: Literal["task", "thread", "inline"] | None = None
    lanes: Annotated[int, Meta(ge=1, le=256)] = 1
    capacity: AtLeastOne = 10_000
    deadline_ms: Positive = 20.0
    options: dict[str, Any] = {}


class AdminSettings(Table, frozen=True, kw_only=True):
    """The HTTP server for the admin page, the API, metrics and health checks.

    Attributes:
        listen: address of the admin page, the API, /metrics, /healthz and /readyz. "off" disables all of them.
        token_file: file with one token per line, in the form NAME ROLE TOKEN. ROLE is read or write.
        token: token with the role write. Prefer the environment variable.
        read_token: token with the role read. Prefer the environment variable.
        allow_anyone: true: allow access from other machines without a token. Anyone who can connect can then change
            limits.
        allowed_hosts: host names accepted in the Host header, in addition to localhost and IP addresses.
        public_metrics: true: serve /metrics without a token.
        tls_certificate_file: PEM file with the certificate and its chain. Set it and tls_key_file to enable HTTPS.
        tls_key_file: PEM file with the private key of that certificate.
    """

    listen: Annotated[AdminAddress, Meta(extra={"env": "SLUICE_ADMIN"})] = parse_endpoint(DEFAULT_ADMIN)
    token_file: Name | None = None
    token: Token | None = None
    read_token: Token | None = None
    allow_anyone: bool = False
    allowed_hosts: list[Name] = []
    public_metrics: bool = False
    tls_certificate_file: Name | None = None
    tls_key_file: Name | None = None


class LogSettings(Table, frozen=True, kw_only=True):
    """The service log, written to stderr.

    Attributes:
        level: minimum level of log messages.
        format: format of log messages. auto means human on a terminal and json otherwise.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "human", "json"] = "auto"


class RejectionLogSettings(Table, frozen=True, kw_only=True):
    """The log of refusals and traffic, which `sluice report` reads.

    Attributes:
        dir: directory for the log files. "off" disables the log. Default: ``rejections`` in the state directory.
        instance: name of this sidecar in the log. Default: the host name and the port of the first listener.
        max_file_bytes: size in bytes at which a new file is started.
        max_file_age_s: age in seconds at which a new file is started, unless the current file contains no refusals
            or traffic.
        max_total_bytes: maximum total size of the files. If it is exceeded, the oldest files are deleted.
        max_keys_per_s: maximum number of distinct refusals logged per second. All others are counted as _other.
        max_resources: maximum number of distinct resources logged per minute. All others are counted as _other.
    """

    dir: Name | None = None
    instance: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    max_file_bytes: Annotated[int, Meta(ge=64 * 1024)] = 64 * 1024 * 1024
    max_file_age_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    max_total_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 1024 * 1024 * 1024
    max_keys_per_s: Annotated[int, Meta(ge=1, le=1_000_000)] = DEFAULT_TOLD_APART
    max_resources: Annotated[int, Meta(ge=1, le=1_000_000)] = DEFAULT_TOLD_APART


class ReportSettings(Table, frozen=True, kw_only=True):
    """The report whose recommendations the admin page shows.

    Attributes:
        recommendations: path of the report's ``recommendations.json``, or "off". Default:
            ``report/recommendations.json`` in the state directory, where ``sluice report --out STATE_DIR/report``
            writes it.
    """

    recommendations: Annotated[str | None, Meta(extra={"read": _read_report})] = None


class SpoolSettings(Table, frozen=True, kw_only=True):
    """Memory and disk space for requests that a limit delays.

    Attributes:
        dir: directory for the spool files. "off": requests wait in memory only. Default: ``spool`` in the state
            directory.
        memory_bytes: maximum memory for waiting requests, in bytes. When half of it is used, each queue keeps only
            its first target_s seconds of traffic in memory. The rest goes to disk.
        max_disk_bytes: maximum total size of the files. When it is reached, messages wait in memory. When memory is
            also full, Sluice stops reading from clients.
        max_age_s: age in seconds at which a waiting message is refused, or sent if it cannot be refused. 0: never.
        target_s: how many seconds of traffic each queue keeps in memory when memory is short.
        recover: true: after a restart or a crash, send the messages on disk whose senders expect no response, and mark
            them as possible duplicates. false: drop and count these messages.
    """

    dir: Name | None = None
    memory_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 32 * 1024 * 1024
    max_disk_bytes: Annotated[int, Meta(ge=64 * 1024 * 1024)] = 16 * 1024 * 1024 * 1024
    max_age_s: Annotated[float, Meta(ge=0)] = 86_400.0
    target_s: Annotated[float, Meta(gt=0, le=3600)] = 2.0
    recover: bool = True


class AlarmSettings(Table, frozen=True, kw_only=True):
    """Alarms that stop publishers while memory or disk space is short.

    Attributes:
        memory_high_watermark: fraction of the container's or machine's memory above which publishers are stopped.
        disk_free_bytes: free space in bytes on the spool's disk below which publishers are stopped. 0: never.
    """

    memory_high_watermark: Annotated[float, Meta(gt=0, le=1)] = 0.6
    disk_free_bytes: Annotated[int, Meta(ge=0)] = 1024 * 1024 * 1024


class FleetSettings(Table, frozen=True, kw_only=True):
    """The fleet of this process. Its members share limits that have ``fleet = true``, through Redis 6+ or Valkey.

    Attributes:
        url: URL of Redis: redis://HOST:PORT/DATABASE, sentinel://HOST,HOST/SERVICE or cluster://HOST,HOST. With TLS:
            rediss://, sentinel+tls:// or cluster+tls://.
        name: name of the fleet. Processes with the same fleet name share limits.
        member: name of this process in the fleet. Default: host name and process ID.
        user: user name for Redis. Default: ``default``.
        password_file: file that contains the user's password. It is read for each new connection.
        password: the user's password. Prefer the environment variable.
        ca_file: PEM file with the CAs to trust for Redis's certificate. Default: the system's CAs.
        certificate_file: PEM file with the certificate that Sluice presents to Redis, and its chain.
        key_file: PEM file with the private key of that certificate.
        when_away: limit for this member while Redis is unreachable: its last share (last), an equal share (equal), none
            (unlimited), or a small part of the burst, after which requests are refused (refuse).
    """

    url: Annotated[str, Meta(min_length=1, max_length=4096, extra={"check": _check_redis_url})]
    name: Annotated[str, Meta(min_length=1, max_length=100, extra={"check": _check_fleet})]
    member: Annotated[str, Meta(min_length=1, max_length=48)] | None = None
    user: Name | None = None
    password_file: Name | None = None
    password: Password | None = None
    ca_file: Name | None = None
    certificate_file: Name | None = None
    key_file: Name | None = None
    when_away: WhenAway = "last"


class BoundsSettings(Table, frozen=True, kw_only=True):
    """Upper bounds on resource usage.

    Attributes:
        max_connections: maximum number of open client connections. Further connections are closed immediately.
        max_live_limiters: maximum number of limiters in memory. Beyond that, new names share one limiter per rule.
        max_resource_labels: maximum number of resources with separate metrics. All others are counted as _other.
        buffer_budget_bytes: target for the total size of all read buffers, in bytes. Above it, Sluice reads in smaller
            chunks.
    """

    max_connections: AtLeastOne = 10_000
    max_live_limiters: AtLeastOne = 100_000
    max_resource_labels: AtLeastOne = 1_000
    buffer_budget_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 64 * 1024 * 1024


class Settings(Table, frozen=True, kw_only=True):
    """The top level of the configuration.

    Attributes:
        limiting: false: let all requests pass, and only count them.
        state_dir: directory for live edits and limiter state. "off": both are lost on restart. Default: see ``sluice
            run --help``.
        grace_s: time in seconds for in-flight requests to finish after SIGTERM.
        take_over: true: take over listeners, edits and limiter state from a running process with the same state
            directory, which then exits. false: do not start while it is running.
        reload_on_change: true: reload, as on SIGHUP, when the configuration file or a file that it refers to changes.
        defaults: limits for names that no other limit matches, by kind.
    """

    limiting: bool = True
    state_dir: Name | None = None
    grace_s: Seconds = 10.0
    take_over: bool = False
    reload_on_change: bool = False
    listeners: list[ListenerSettings] = []
    limits: list[Annotated[Written, Meta(extra={"table": LimitSettings})]] = []
    defaults: dict[str, Annotated[Written, Meta(extra={"table": DefaultLimit})]] = {}
    handlers: list[HandlerSettings] = msgspec.field(default_factory=lambda: [HandlerSettings(name="rate_limit")])
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    rejection_log: RejectionLogSettings = RejectionLogSettings()
    report: ReportSettings = ReportSettings()
    spool: SpoolSettings = SpoolSettings()
    alarms: AlarmSettings = AlarmSettings()
    fleet: FleetSettings | None = None
    bounds: BoundsSettings = BoundsSettings()
