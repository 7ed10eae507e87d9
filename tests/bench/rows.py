"""The bench's rows, with the peers they are measured at."""

from dataclasses import dataclass

DIRECT = "direct"
HAPROXY = "haproxy"
NGINX = "nginx"
TRIO_RELAY = "trio-relay"
UNLIMITED = "sluice-unlimited"
LIMITED = "sluice-limited"
REFUSED = "sluice-refused"
ALL_FEATURES = "sluice-all-features"
FLEET = "sluice-fleet"

PLAIN = (DIRECT, HAPROXY, NGINX, TRIO_RELAY)
EVERYBODY = (*PLAIN, UNLIMITED, LIMITED, FLEET, REFUSED, ALL_FEATURES)
RELAYED = (HAPROXY, TRIO_RELAY, LIMITED)
FEW = (DIRECT, *RELAYED)
TRANSFERRED = (*FEW, UNLIMITED)

FLOOD = "flood"
ANSWERED = "answered"
RTT = "rtt"
LOADED = "loaded"
ACCEPT = "accept"
QUIET = "quiet"
MEMORY = "memory"
PUBLISHES = "publishes"
CONFIRMS = "confirms"
TRANSFERS = "transfers"
DECISIONS = "decisions"

ROCKETMQ = "rocketmq"
AMQP = "amqp091"
AMQP10 = "amqp10"

PLENTY_OF_CREDIT = 100_000
"""A link's credit, and a session's window of transfers, so large that requests for more hardly ever happen."""

SATURATION = "answered-64"
"""The row whose answers/s are a peer's saturation."""


@dataclass(frozen=True)
class Row:
    """One measurement at several peers."""

    name: str
    kind: str
    peers: tuple[str, ...]
    connections: int = 64
    frame_bytes: int = 536
    header: str = "json"
    topics: int = 1
    window: int | None = None
    rate_per_s: float | None = None
    share: float | None = None
    stretch: float = 1.0
    settled: bool = False
    credit: int | None = None
    last: bool = False

    @property
    def swallow(self) -> bool:
        """Whether its sink answers no flood."""
        return self.kind in (FLOOD, QUIET)

    @property
    def protocol(self) -> str:
        """The protocol of load and sink, in Sluice's name."""
        if self.kind == TRANSFERS:
            return AMQP10
        return AMQP if self.kind in (PUBLISHES, CONFIRMS) else ROCKETMQ

    @property
    def title(self) -> str:
        frames = f"{self.frame_bytes}-byte frames, {self.header} header, topics: {self.topics:,}"
        connections = f"{self.connections:,} connection{'s' if self.connections > 1 else ''}"
        publishes = f"{connections}, a channel each, {self.frame_bytes}-byte bodies, queues: {self.topics:,}"
        if self.kind == PUBLISHES:
            return f"AMQP 0.9.1 publishes without confirms, {publishes}"
        if self.kind == CONFIRMS:
            return f"AMQP 0.9.1 publishes with confirms, {self.window} outstanding on each of {publishes}"
        if self.kind == TRANSFERS:
            settled, credit = "settled" if self.settled else "unsettled", "plenty of" if self.credit else "RabbitMQ's"
            links = f"{connections}, links of each: {self.topics}, {self.frame_bytes}-byte bodies"
            return f"AMQP 1.0 transfers, {settled}, {credit} credit, {links}"
        if self.kind == FLOOD:
            return f"throughput, {connections}, {frames}"
        if self.kind == ANSWERED:
            return f"throughput with answers, {self.window} requests outstanding on each of {connections}, {frames}"
        if self.kind == RTT:
            pace = f"open loop at {self.rate_per_s:g}/s" if self.rate_per_s else "one request at a time"
            return f"round trip, {pace}, {connections}, {frames}"
        if self.kind == LOADED:
            return f"round trip, open loop at {self.share:.0%} of own saturation, {connections}, {frames}"
        if self.kind == ACCEPT:
            return f"new connections, {self.connections} at a time: connect, one request, its answer, part"
        if self.kind == QUIET:
            return f"round trip of one quiet client, alone and beside a flood, {connections}, {frames}"
        if self.kind == MEMORY:
            return f"memory, {connections}, {self.window} requests outstanding on each when busy, {frames}"
        return "limiter decisions, one bucket, one thread"


ROWS = (
    Row("throughput-64", FLOOD, EVERYBODY),
    Row("throughput-1", FLOOD, (*PLAIN, UNLIMITED, LIMITED), connections=1),
    Row("throughput-1000", FLOOD, (*PLAIN, LIMITED), connections=1000),
    *(
        Row(f"frames-{size}-{header}", FLOOD, FEW, frame_bytes=size, header=header)
        for size in (128, 536, 1432, 65_536)
        for header in ("json", "binary")
        if (size, header) != (536, "json")  # that is throughput-64
    ),
    Row("topics-1000", FLOOD, (*FEW, FLEET), topics=1000),
    Row(SATURATION, ANSWERED, EVERYBODY, window=32),
    Row("rtt-low", RTT, (*PLAIN, UNLIMITED, LIMITED, ALL_FEATURES), connections=1),
    *(
        Row(f"rtt-{percent}", LOADED, (HAPROXY, NGINX, TRIO_RELAY, LIMITED), share=percent / 100)
        for percent in (10, 50, 90)
    ),
    Row("accept", ACCEPT, (*PLAIN, LIMITED)),
    Row("quiet", QUIET, (*FEW, REFUSED), connections=32, stretch=3.0),
    *(
        Row(f"connections-{count}", ANSWERED, RELAYED, count, window=8, stretch=3.0 if count > 1000 else 1.0)
        for count in (1, 64, 1000, 10_000)
    ),
    Row("memory", MEMORY, (HAPROXY, NGINX, TRIO_RELAY, UNLIMITED, LIMITED), 1000, window=32),
    Row("decisions", DECISIONS, ()),
    *(Row(f"publishes-{size}", PUBLISHES, (DIRECT, *RELAYED), frame_bytes=size) for size in (128, 1024)),
    *(Row(f"confirms-{size}", CONFIRMS, (DIRECT, *RELAYED), frame_bytes=size, window=256) for size in (128, 1024)),
    *(Row(f"transfers-{size}", TRANSFERS, TRANSFERRED, frame_bytes=size) for size in (128, 1024)),
    Row("transfers-settled", TRANSFERS, TRANSFERRED, frame_bytes=128, settled=True),
    Row("transfers-links-16", TRANSFERS, TRANSFERRED, frame_bytes=128, topics=16),
    Row("transfers-1", TRANSFERS, TRANSFERRED, connections=1, frame_bytes=128),
    *(
        Row(f"transfers-plenty-{size}", TRANSFERS, TRANSFERRED, frame_bytes=size, credit=PLENTY_OF_CREDIT)
        for size in (128, 1024)
    ),
    *(Row(f"topics-{count}", FLOOD, RELAYED, topics=count, stretch=3.0, last=True) for count in (100_000, 1_000_000)),
)
ON_REQUEST = (Row("rtt-open", RTT, (*PLAIN, UNLIMITED, LIMITED), 1, rate_per_s=2000),)
"""Rows that are measured only on request."""

GROWTH = {
    "topics": ("throughput-64", "topics-1000", "topics-100000", "topics-1000000"),
    "connections": ("connections-1", "connections-64", "connections-1000", "connections-10000"),
}
"""Rows that differ in one property."""


def named(names: list[str] | None) -> list[Row]:
    """Return the rows with these names, and the rows they need. Without names, all but those on request."""
    if names is None:
        return list(ROWS)
    chosen = [row for row in (*ROWS, *ON_REQUEST) if row.name in names]
    if any(row.kind == LOADED for row in chosen) and SATURATION not in names:
        chosen.insert(0, next(row for row in ROWS if row.name == SATURATION))
    return chosen
