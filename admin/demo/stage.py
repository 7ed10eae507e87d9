"""Runs the demo: starts the embedded broker, the sidecar and the clients, shows them, and draws up the account."""

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Final

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from admin import logs, sidecar
from admin.composition import compose
from admin.demo import view
from admin.demo.ledger import Check, Ledger, TopicLoad, check
from admin.demo.load import Producer
from admin.endpoint import DEFAULT_ADMIN, Endpoint, parse_endpoint
from admin.errors import StartError
from admin.report import show
from admin.settings import OFF
from admin.sources import Flags, load
from proxy.loopback import Loopback, LoopbackConfig, serve_broker

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
#: How long answers may take after the last message.
_LAST_ANSWERS_S: Final = 5.0


async def perform(*, seconds: float | None) -> int:
    """Run the demo until Ctrl-C, or for so many seconds.

    Returns:
        0 if the account is in order, 1 if it is not, 130 if a second Ctrl-C cut it short.

    Raises:
        StartError: broker or sidecar cannot be started.
    """
    console = Console(highlight=False)
    exit_code = 128 + signal.SIGINT
    with trio.open_signal_receiver(*sidecar.stop_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_abort_on_second, signals, stopping := trio.Event(), nursery.cancel_scope)
            loopback = await _start_broker(nursery)
            running, listen = await _start_sidecar(nursery, loopback)
            got = [
                ("the name server", _NAME_SERVER, parse_endpoint(loopback.name_server_address)),
                ("sluice", _LISTEN, listen),
                ("the admin address", parse_endpoint(DEFAULT_ADMIN), running.admin),
            ]
            show(
                view.heading(
                    str(listen),
                    loopback.broker_address,
                    loopback.name_server_address,
                    running.admin_url or "",
                    LIMIT_PER_S,
                    notes=[note for each in got if (note := _note(*each))],
                )
            )
            ledger = Ledger(LOADS)
            version = (await running.data_path.snapshot(whole=False)).rule_set_version
            elapsed_s, lost = await _send(console, ledger, listen, seconds, stopping)
            stored = loopback.stored_by_topic()
            snapshot = await running.data_path.snapshot(whole=False)
            edited = snapshot.rule_set_version != version
            checks = check(ledger, stored, LIMIT_PER_S, elapsed_s, edited=edited)
            bypassed = sum(snapshot.bypassed.values())
            checks.append(Check(not bypassed, f"the limiter decided every request: {bypassed:,} bypassed it"))
            checks += [Check(holds=False, text=line) for line in lost]
            show(view.summary(ledger, stored, LIMIT_PER_S, elapsed_s, checks))
            nursery.cancel_scope.cancel()
            exit_code = 0 if all(each.holds for each in checks) else 1
    return exit_code


async def _abort_on_second(signals: AsyncIterator[int], stopping: trio.Event, everything: trio.CancelScope) -> None:
    await anext(signals)
    stopping.set()
    await anext(signals)
    everything.cancel()


async def _start_broker(nursery: trio.Nursery) -> Loopback:
    config = LoopbackConfig(broker_port=0, name_server_port=_to_be_had(_NAME_SERVER).port)
    try:
        loopback: Loopback = await nursery.start(serve_broker, config)
    except OSError as error:
        raise StartError(f"demo: the embedded broker cannot start: {error.strerror or error}") from None
    return loopback


async def _start_sidecar(nursery: trio.Nursery, loopback: Loopback) -> tuple[sidecar.Running, Endpoint]:
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
                    # What is changed in a demo is not there in the next one, nor in a real sidecar of this machine.
                    ("state_dir",): ("--state-dir", OFF),
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
    loopback.advertise(address)
    return running, listen


async def _send(
    console: Console, ledger: Ledger, listen: Endpoint, seconds: float | None, stopping: trio.Event
) -> tuple[float, list[str]]:
    """Run the clients and show them; returns how long they sent, and which lost their connection."""
    producers = {each.topic: Producer(each, ledger.counts[each.topic]) for each in ledger.loads}
    started_s = trio.current_time()
    elapsed_s = 0.0
    ledger.mark(started_s)
    async with trio.open_nursery() as nursery:
        for producer in producers.values():
            nursery.start_soon(producer.run, listen)
        live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        with live or nullcontext():
            every_s = _REFRESH_S if live else 1.0
            refreshes = 0
            while not stopping.is_set() and (seconds is None or elapsed_s < seconds):
                refreshes += 1
                until_s = started_s + refreshes * every_s
                if seconds is not None:
                    until_s = min(until_s, started_s + seconds)
                with trio.move_on_at(until_s):
                    await stopping.wait()
                elapsed_s = trio.current_time() - started_s
                ledger.mark(trio.current_time())
                if live:
                    live.update(view.live(ledger, elapsed_s, seconds), refresh=True)
                else:
                    show(Text(view.line(ledger, elapsed_s)))
        for producer in producers.values():
            producer.stop()
        elapsed_s = trio.current_time() - started_s
        nursery.cancel_scope.deadline = trio.current_time() + _LAST_ANSWERS_S
    lost = [f"{topic}: {producer.lost}" for topic, producer in producers.items() if producer.lost]
    return elapsed_s, lost


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
