"""Runs the sidecar with an embedded broker, one runaway topic and four quiet topics."""

import socket
import tempfile
from collections.abc import Sequence
from typing import Final

import trio
from rich.console import RenderableType
from rich.text import Text

from admin.common.errors import StartError
from admin.common.numbers import number
from admin.config import logs
from admin.config.addresses import DEFAULT_ADMIN, Endpoint, parse_endpoint
from admin.config.sources import Flags, load
from admin.demo import view
from admin.demo.broker import Loopback, serve_broker
from admin.demo.ledger import WINDOW_S, Check, Ledger, TopicLoad, check
from admin.demo.producer import Producer
from admin.demo.stage import obey, send
from admin.run import sidecar
from admin.run.check import show
from admin.run.composition import compose

LIMIT_PER_S: Final = 200.0
LOADS: Final = (
    TopicLoad("runaway", 2000, runaway=True),
    TopicLoad("orders", 150),
    TopicLoad("payments", 100),
    TopicLoad("shipments", 60),
    TopicLoad("audit", 20),
)
_LISTEN: Final = Endpoint("127.0.0.1", 10911)
_NAME_SERVER: Final = Endpoint("127.0.0.1", 9876)


async def perform(*, seconds: float | None) -> int:
    """Run the demo until Ctrl-C, or for the given number of seconds.

    Returns:
        The exit code: 0 if all checks pass, 1 if not, or 128 + N if signal N cancelled the demo.

    Raises:
        StartError: The broker or the sidecar cannot start.
    """
    exit_code = [1]
    with (
        tempfile.TemporaryDirectory(prefix="sluice-demo-", ignore_cleanup_errors=True) as state_dir,
        trio.open_signal_receiver(*sidecar.stop_signals()) as signals,
    ):
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
            started_with = (await running.data_path.snapshot(whole=False)).rule_set_version
            producers = [Producer(each, ledger.counts[each.topic]) for each in LOADS]
            elapsed_s, lost = await send(producers, ledger, listen, seconds, stopping)
            stored = {load.topic: loopback.broker.stored(load.topic) for load in LOADS}
            snapshot = await running.data_path.snapshot(whole=False)
            ledger.edited = snapshot.rule_set_version != started_with
            bypassed = sum(snapshot.bypassed.values())
            checks = check(ledger, stored, LIMIT_PER_S, elapsed_s)
            checks.append(Check(not bypassed, f"the limiter decided every request: {bypassed:,} bypassed it"))
            checks += [Check(holds=False, text=line) for line in lost]
            show(view.summary(ledger, stored, LIMIT_PER_S, elapsed_s, checks))
            nursery.cancel_scope.cancel()
            exit_code[0] = 0 if all(each.holds for each in checks) else 1
    return exit_code[0]


def heading(listen: Endpoint, loopback: Loopback, admin_url: str, notes: Sequence[str]) -> RenderableType:
    limit = number(LIMIT_PER_S)
    sluice = (f"sluice {listen}", "bold")
    rows = (
        ("path", Text.assemble("clients → ", sluice, f" → embedded broker {loopback.broker_address}")),
        ("limit", f"{limit} messages per second for each topic, plus one initial burst of {limit}"),
        ("", "messages above the limit are refused as busy"),
        ("rates", f"mean of the last {WINDOW_S:g} s"),
        ("join in", f"send to your own topic with any RocketMQ producer; name server {loopback.name_server_address}"),
        ("see also", f"{admin_url}metrics, {admin_url}readyz"),
    )
    return view.heading("sluice demo", admin_url, rows, notes)


async def _start_broker(nursery: trio.Nursery) -> Loopback:
    try:
        loopback: Loopback = await nursery.start(serve_broker, 0, _free(_NAME_SERVER).port)
    except OSError as error:
        raise StartError(f"demo: the embedded broker cannot start: {error.strerror or error}") from None
    return loopback


async def _start_sidecar(nursery: trio.Nursery, loopback: Loopback, state_dir: str) -> tuple[sidecar.Sidecar, Endpoint]:
    flags = Flags(
        listen=[str(_free(_LISTEN))],
        broker=[loopback.broker_address],
        limits=[f"topic:*={LIMIT_PER_S:g}/s"],
        values={
            ("admin", "listen"): ("--admin", str(_free(parse_endpoint(DEFAULT_ADMIN)))),
            # The directory is temporary, so the next demo starts without edits.
            ("state_dir",): ("--state-dir", state_dir),
            ("rejection_log", "instance"): ("--instance", "demo"),
            # Info lines would disrupt the table.
            ("log", "level"): ("--log-level", "error"),
        },
    )
    plan = compose(load(None, {}, flags))
    logs.configure(plan.settings.log)
    running: sidecar.Sidecar = await nursery.start(sidecar.run, plan)
    (address,) = running.listen.values()
    # Routes must lead real clients to the sidecar.
    loopback.broker.advertised = address
    return running, parse_endpoint(address)


def _free(wanted: Endpoint) -> Endpoint:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(wanted)
        except OSError:
            return Endpoint(wanted.host, 0)
    return wanted


def _note(what: str, wanted: Endpoint, got: Endpoint | None) -> str:
    if got is None or wanted.port in {0, got.port}:
        return ""
    return f"port {wanted.port} is taken, so {what} uses {got.port}"
