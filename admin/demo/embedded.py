"""``sluice demo``: an embedded broker and the sidecar in one process, a runaway and quiet topics, and the account."""

import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio
from rich.console import RenderableType
from rich.text import Text

from admin.common.clock import utc_now, write_time
from admin.common.errors import StartError
from admin.common.numbers import number
from admin.common.recommendations import Period, Recommendation, RecommendationsFile, WhatIf
from admin.config import logs
from admin.config.addresses import DEFAULT_ADMIN, Endpoint, parse_endpoint
from admin.config.sources import Flags, load
from admin.demo import view
from admin.demo.broker import Loopback, serve_broker
from admin.demo.ledger import WINDOW_S, Check, Ledger, TopicLoad, check
from admin.demo.load import Producer
from admin.demo.stage import obey, send
from admin.rejection_log import advice
from admin.run import sidecar
from admin.run.check import show
from admin.run.composition import compose
from proxy.control import DataPath

LIMIT_PER_S: Final = 200.0
#: One topic goes ten times over the limit, the others stay under it.
LOADS: Final = (
    TopicLoad("runaway", 2000, runaway=True),
    TopicLoad("orders", 150),
    TopicLoad("payments", 100),
    TopicLoad("shipments", 60),
    TopicLoad("audit", 20),
)
_LISTEN: Final = Endpoint("127.0.0.1", 10911)
_NAME_SERVER: Final = Endpoint("127.0.0.1", 9876)
_REFRESH_S: Final = 0.25
_INSTANCE: Final = "demo"


async def perform(*, seconds: float | None) -> int:
    """Run the demo until Ctrl-C, or for so many seconds.

    Returns:
        0 if the account is in order, 1 if it is not, 128 + N if a second signal N cut it short.

    Raises:
        StartError: broker or sidecar cannot be started.
    """
    exit_code = [1]
    with (
        tempfile.TemporaryDirectory(prefix="sluice-demo-", ignore_cleanup_errors=True) as state_dir,
        trio.open_signal_receiver(*sidecar.stop_signals()) as signals,
    ):
        _write_advice(Path(state_dir))
        async with trio.open_nursery() as nursery:
            stopping, started = trio.Event(), trio.Event()
            nursery.start_soon(obey, signals, started, stopping, nursery.cancel_scope, exit_code)
            loopback = await _start_broker(nursery)
            running, listen = await _start_sidecar(nursery, loopback, state_dir)
            got = [
                ("the name server", _NAME_SERVER, parse_endpoint(loopback.name_server_address)),
                ("sluice", _LISTEN, listen),
                ("the admin address", parse_endpoint(DEFAULT_ADMIN), running.admin),
            ]
            show(heading(listen, loopback, running.admin_url or "", [note for each in got if (note := _note(*each))]))
            started.set()
            ledger = Ledger(LOADS)
            await nursery.start(_follow_edits, running.data_path, ledger)
            producers = [Producer(each, ledger.counts[each.topic]) for each in LOADS]
            elapsed_s, lost = await send(producers, ledger, listen, seconds, stopping, refresh_s=_REFRESH_S)
            stored = loopback.broker.stored_by_topic()
            snapshot = await running.data_path.snapshot(whole=False)
            checks = check(ledger, stored, LIMIT_PER_S, elapsed_s)
            bypassed = sum(snapshot.bypassed.values())
            checks.append(Check(not bypassed, f"the limiter decided every request: {bypassed:,} bypassed it"))
            checks += [Check(holds=False, text=line) for line in lost]
            show(view.summary(ledger, stored, LIMIT_PER_S, elapsed_s, checks))
            nursery.cancel_scope.cancel()
            exit_code[0] = 0 if all(each.holds for each in checks) else 1
    return exit_code[0]


def heading(listen: Endpoint, loopback: Loopback, admin_url: str, notes: Sequence[str]) -> RenderableType:
    """Say what runs where."""
    limit = number(LIMIT_PER_S)
    rows = (
        (
            "way",
            Text.assemble("clients → ", (f"sluice {listen}", "bold"), f" → embedded broker {loopback.broker_address}"),
        ),
        ("limit", f"{limit} messages per second for each topic, and one burst of {limit} at first"),
        ("", "what is over it gets a busy answer"),
        ("rates", f"shown as the mean of the last {WINDOW_S:g} s, so a burst shows for as long"),
        ("join in", f"any RocketMQ client, on a topic of its own; name server {loopback.name_server_address}"),
        ("besides", f"{admin_url}metrics, {admin_url}readyz"),
    )
    return view.heading("sluice demo", admin_url, rows, notes)


async def _follow_edits(
    data_path: DataPath, ledger: Ledger, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Take note when somebody edits or switches limits."""
    async with data_path.events() as events:
        task_status.started()
        async for event in events:
            ledger.edited = ledger.edited or event.kind == "rules"


async def _start_broker(nursery: trio.Nursery) -> Loopback:
    try:
        loopback: Loopback = await nursery.start(serve_broker, 0, _to_be_had(_NAME_SERVER).port)
    except OSError as error:
        raise StartError(f"demo: the embedded broker cannot start: {error.strerror or error}") from None
    return loopback


def _write_advice(state_dir: Path) -> None:
    """Write examples of advice where the page looks for it: a real report needs Spark, and more than minutes."""
    lines = []
    for each in LOADS:
        is_near = 0.7 * LIMIT_PER_S < each.rate_per_s <= LIMIT_PER_S
        asked = f"Asked for {each.rate_per_s:g}/s, {each.rate_per_s / LIMIT_PER_S:.2g} times its limit."
        if each.runaway:
            asked += " One client sends all of it, and the limit protects the broker from it."
        shares = [(rate, max(0.0, 1 - rate / each.rate_per_s)) for rate in (100.0, 200.0, 500.0, 1000.0, 2000.0)]
        advised = Recommendation(
            instance=_INSTANCE,
            kind="topic",
            name=each.topic,
            action="raise" if is_near else "keep",
            rule="topic:*",
            rate_per_s=LIMIT_PER_S,
            recommended_rate_per_s=2.0 * each.rate_per_s if is_near else None,
            evidence=f"{asked} The demo wrote this as an example. `sluice report` makes advice from the rejection log.",
            what_if=tuple(
                WhatIf(rate_per_s=rate, refused_share=share, refused_share_uncorrected=share) for rate, share in shares
            ),
        )
        lines.append(msgspec.json.encode(advised))
    head = RecommendationsFile(made_at=write_time(utc_now()), period=Period(), instances=(_INSTANCE,))
    file = state_dir / advice.USUAL
    file.parent.mkdir()
    file.write_bytes(msgspec.json.encode(head).removesuffix(b"]}") + b"\n" + b",\n".join(lines) + b"\n]}\n")


async def _start_sidecar(nursery: trio.Nursery, loopback: Loopback, state_dir: str) -> tuple[sidecar.Running, Endpoint]:
    """Start a sidecar as ``sluice run`` would, on free ports if the usual ones are taken."""
    plan = compose(
        load(
            None,
            {},
            Flags(
                listen=[str(_to_be_had(_LISTEN))],
                broker=[loopback.broker_address],
                limits=[f"topic:*={LIMIT_PER_S:g}/s"],
                values={
                    ("admin", "listen"): ("--admin", str(_to_be_had(parse_endpoint(DEFAULT_ADMIN)))),
                    # Its own and gone at the end: no change of a demo is in the next one, nor in a real sidecar.
                    ("state_dir",): ("--state-dir", state_dir),
                    ("rejection_log", "instance"): ("--instance", _INSTANCE),
                    # Routine lines would tear the table apart.
                    ("log", "level"): ("--log-level", "error"),
                },
            ),
        )
    )
    logs.configure(plan.settings.log)
    running: sidecar.Running = await nursery.start(sidecar.run, plan)
    (address,) = running.listen.values()
    listen = parse_endpoint(address)
    # Real clients that ask the name server are sent through the sidecar.
    loopback.broker.advertise(address)
    return running, listen


def _to_be_had(wanted: Endpoint) -> Endpoint:
    """Return the address, with port 0 if something listens there: whoever listens on that gets a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(wanted)
        except OSError:
            return Endpoint(wanted.host, 0)
    return wanted


def _note(what: str, wanted: Endpoint, got: Endpoint | None) -> str:
    """Return what the heading says of a port that was not to be had; nothing if it was."""
    if got is None or wanted.port in {0, got.port}:
        return ""
    return f"port {wanted.port} is taken, so {what} has {got.port}"
