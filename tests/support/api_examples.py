"""Hand-made answers of the API, for tests of their readers."""

from typing import Final

from admin import wire
from admin.edits.model import (
    FailedReload,
    Persistence,
)
from admin.wire import sentences
from proxy.flow.credit import StageState
from proxy.flow.diagnosis import FlowFinding
from proxy.spool.figures import SpooledResource, SpoolPlace, SpoolState
from proxy.stats.flow import ConnectionFlow, Flow, StageCount
from proxy.stats.snapshot import (
    AdaptiveName,
    AdaptivePoint,
    AdaptiveState,
    AlarmState,
    ClientDescription,
    ConfirmState,
    ConnectionState,
    FleetLimit,
    FleetMember,
    FleetState,
    Held,
    LaneState,
    Limiters,
    LinkState,
    ListenerState,
    Verdicts,
)

_AT: Final = "2026-01-02T03:04:05.678Z"
_ETAG: Final = "6c1f0e2b"

_VERDICTS: Final = Verdicts(passed=998.5, refused=210)
_HISTORY: Final = wire.History(
    step_s=5,
    passed=(900, 1000),
    refused=(0, 180.5),
    until=_AT,
    seconds=(5, 5.2),
    dropped=(0, 0),
    limit=(1000, 1000),
    totals=(912_440, 2_108, 0),
)
_GIB: Final = 1024**3
_PUBLISHER: Final = StageState("connection", "41", "flow", 3, 2.5, waits_for=("resource topic orders",))
_ALARMS: Final = (
    AlarmState(
        scarce="memory", stands=False, since=None, total=0, stood_s=0, text="", bytes_now=_GIB // 8, bytes_limit=_GIB
    ),
    AlarmState(
        scarce="disk",
        stands=True,
        since=_AT,
        total=1,
        stood_s=12.5,
        text="512 MiB is free on the spool's disk (minimum: 1.00 GiB); publishers are blocked until 1.10 GiB is free",
        bytes_now=_GIB // 2,
        bytes_limit=_GIB,
    ),
)
RESOURCE_HISTORY: Final = wire.ResourceHistory(
    kind="topic",
    name="orders",
    begin_at=_AT,
    step_s=4,
    seconds=(0, 4, 4),
    passed=(None, 500.0, 498.5),
    refused=(None, 0.0, 120.25),
    dropped=(None, 0.0, 0.0),
    held=(None, 0.0, 0.0),
    limit=(None, 500.0, 500.0),
    limit_count="messages",
    known_from=_AT,
    clients=(
        wire.RefusedClient(
            client="10.1.2.3",
            user="",
            product="JAVA 5.3.1",
            producer_group="checkout",
            rules=("topic:orders",),
            requests=481,
            messages_refused=481,
            messages_shadowed=0,
            messages_held=0,
            last_at=_AT,
        ),
    ),
    more_clients=0,
    messages_refused=481,
    others_together=False,
    bytes_read=184_320,
    cut=False,
    problem=None,
)
FLOW: Final = sentences.flow(
    Flow(
        findings=(
            FlowFinding(
                "disk",
                1,
                ("store spool",),
                "1 connection waits: the spool's disk is slower than the incoming traffic. Use a faster disk.",
            ),
        ),
        counts=(StageCount("connection", "flow", 1), StageCount("connection", "running", 11)),
        connections=(
            ConnectionFlow(
                41,
                "main",
                _PUBLISHER,
                (StageState("resource", "topic orders", "flow", 3, 2.5, waits_for=("store spool",)),),
            ),
        ),
        more_connections=0,
        store=StageState("store", "spool"),
        alarms=_ALARMS,
        busy_ratio=0.25,
        confirms=(
            ConfirmState("exchange", "events", "broker", "behind", 12, 1_480, 16, 902_114, 40_310, 7, 0),
            ConfirmState("queue", "orders", "after_consume", "", 310, 18, 2_048, 4_811_020, 65, 3, 0),
        ),
    )
)
FLEET: Final = FleetState(
    name="orders-prod",
    member="host-a-4211",
    url="redis://127.0.0.1:6379",
    when_away="last",
    size=4,
    members=(
        FleetMember("host-a-4211", 0.1, is_this=True),
        *(FleetMember(f"host-{each}-901", 0.2, is_this=False) for each in "bcd"),
    ),
    last_contact_s_ago=0.12,
    limits=(
        FleetLimit("topic", "orders", "messages", 500.0, 0.624, 93.0, 340.0),
        FleetLimit("total", "topic:log-*", "bytes", 1_048_576.0, 0.25, 0.0, 10_240.0),
    ),
)
_SHORT_FROM: Final = 400  # from this second on, the broker is slow
ADAPTIVE: Final = AdaptiveState(
    listener="main",
    limit_per_s=1840.0,
    floor_per_s=100.0,
    ceiling_per_s=50_000.0,
    action="reject",
    latency_s=0.085,
    usual_latency_s=0.012,
    reason="the broker takes 7 times as long as usual",
    names=(
        AdaptiveName("topic:orders", 4000.0, 612.0, 612.0, 1),
        AdaptiveName("topic:billing", 1240.0, 1180.0, 1224.0, 2),
        AdaptiveName("topic:audit", 48.0, 48.0, 612.0, 1),
    ),
    history=tuple(
        AdaptivePoint(
            unix_ms=1_767_323_045_000 + 1000 * second,
            limit_per_s=None if second < _SHORT_FROM else 1800.0 + second % 90,
            latency_s=0.011 + second % 7 / 2000 if second < _SHORT_FROM else 0.08 + second % 11 / 1000,
            passed_per_s=5000.0 + second % 13 * 20 if second < _SHORT_FROM else 1790.0 + second % 50,
            refused_per_s=0.0 if second < _SHORT_FROM else 3400.0 + second % 17 * 10,
        )
        for second in range(600)
    ),
)
_MESSAGES: Final[dict[SpoolPlace, int]] = {"alpha": 800, "beta": 200, "gamma": 0, "delta": 49_000}
_BYTES: Final[dict[SpoolPlace, int]] = {"alpha": 120_000, "beta": 30_000, "gamma": 0, "delta": 7_350_000}
SPOOL: Final = sentences.spool(
    wire.Spool(
        wire.FolderState("/var/lib/sluice/127.0.0.2-10911/spool"),
        SpoolState(
            queues=1,
            messages=_MESSAGES,
            content_bytes=_BYTES,
            memory_bytes=480_000,
            memory_limit_bytes=_GIB // 32,
            disk_bytes=8_388_608,
            disk_limit_bytes=16 * _GIB,
            in_total=60_000,
            out_total=10_000,
            written_total=49_200,
            resources=(
                SpooledResource(
                    kind="topic",
                    name="orders",
                    queues=1,
                    messages=_MESSAGES,
                    content_bytes=_BYTES,
                    memory_bytes=480_000,
                    target_bytes=600_000,
                    in_per_s=5000.0,
                    out_per_s=500.0,
                ),
            ),
        ),
    )
)
PURGED: Final = wire.PurgedSpool(kind="topic", name="orders", refused=49_950, dropped=50, change=18)
CONNECTIONS: Final = wire.ConnectionPage(
    rows=(
        ConnectionState(
            id=41,
            listener="main",
            peer="10.1.2.3:40122",
            client=ClientDescription("10.1.2.3@811", "JAVA", "V5_3_2"),
            exempt=False,
            opened_at=_AT,
            age_s=12.5,
            bytes_total={"client": 536_000, "broker": 99_000},
            bytes_per_s={"client": 51_200.0, "broker": 9_800.0},
            requests_total=1000,
            requests_per_s=98.5,
            refused_total=3,
            refused_per_s=0.0,
            in_flight=2,
            resources=("topic:orders",),
            more_resources=0,
            stage=_PUBLISHER,
            channels=(),
            spooled=50_000,
            links=(LinkState("orders-out", 0, True, "queue:orders", 20, 150, 48_210, 0, 1250, "/queues/orders"),),
            more_links=0,
            tls="TLSv1.3",
            certificate="orders-service",
        ),
    ),
    total=1,
    offset=0,
    limit=100,
    sampled_at=_AT,
)
STATE: Final = wire.State(
    version="0.1.0",
    instance="broker-a:10911",
    started_at=_AT,
    uptime_s=3600.5,
    limiting=True,
    off=(),
    draining=False,
    listeners=(
        ListenerState(
            name="main",
            listen="127.0.0.2:10911",
            broker="127.0.0.1:10911",
            connections=12,
            listening=True,
            reachable=True,
            error=None,
        ),
    ),
    totals=wire.Totals(
        messages=Verdicts(passed=16_000, refused=48),
        requests=Verdicts(passed=1000, refused=3),
        connections=20,
        connections_open=12,
        bytes={"client": 536_000, "broker": 99_000},
        frames={"client": 1000, "broker": 990},
        closed={"client_closed": 8},
        undecodable={},
    ),
    rates=wire.Rates(
        messages_per_s=_VERDICTS, requests_per_s=_VERDICTS, bytes_per_s={"client": 51_200.0, "broker": 9_800.0}
    ),
    history=_HISTORY,
    bypassed=wire.Bypassed(0, 0, ()),
    lanes=(LaneState("rate_limit", 0, 10_000, 0),),
    held=Held(0, 0, {}),
    limiters=Limiters(33, 0, 0),
    persistence=Persistence("/var/lib/sluice/127.0.0.2-10911"),
    edits=wire.Edits(1, wire.Expiring("limits/topic/orders", _AT)),
    rejection_log=wire.FolderState("/var/lib/sluice/127.0.0.2-10911/rejections"),
    alarms=_ALARMS,
    spool=wire.FolderState("/var/lib/sluice/127.0.0.2-10911/spool"),
    failed_reload=FailedReload(_AT, "SIGHUP", ('sluice.toml:12: limits[0].rate: must be a number; found "fast"',)),
    warnings=(),
    rule_set_version=18,
    etag=_ETAG,
)
