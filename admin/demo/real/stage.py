"""Runs a demo: starts broker, Sluice and clients, shows what becomes of it, draws up the account, cleans up."""

import json
import os
import shutil
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

import httpx2
import trio
from prometheus_client.parser import text_string_to_metric_families
from rich.text import Text

from admin.common.errors import StartError
from admin.config.addresses import Endpoint
from admin.demo import view
from admin.demo.ledger import Check, Counts, Ledger, TopicLoad
from admin.demo.real import account, machine
from admin.demo.real.broker import BROKER_HOST, RealBroker
from admin.demo.real.child import Child
from admin.demo.stage import LAST_ANSWERS_S, obey, send
from admin.run import sidecar
from admin.run.check import show

LIMIT_PER_S: Final = 200.0
#: With the usual second, all of the limit would reach this small broker at once and be a flood again.
BURST_S: Final = 0.2
FLOODED: Final = "runaway"
QUIET: Final = (
    TopicLoad("orders", 40),
    TopicLoad("payments", 25),
    TopicLoad("invoices", 15),
    TopicLoad("shipments", 10),
    TopicLoad("audit", 5),
)
_REFRESH_S: Final = 0.5
#: What a virtual machine and a broker do for the first time takes long; that is no part of the account.
_WARM_UP_S: Final = 4.0
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.1
_HTTP_TIMEOUT_S: Final = 5.0

_CONFIG: Final = """\
state_dir = {state}

{listeners}
[defaults.{kind}]
rate = {limit:g}
burst_s = {burst_s:g}
break_s = {burst_s:g}

[admin]
listen = "{admin}"

[rejection_log]
dir = {log}
instance = "demo"
"""


@dataclass(slots=True)
class Options:
    """What is asked for.

    Attributes:
        jars: folder of what is fetched for the broker.
        log: folder of the rejection log, which stays; it is emptied first.
        seconds: how long messages are sent; None is until Ctrl-C.
        calm_s: of these, seconds before the flood.
        calm_after_s: of these, seconds after it.
        sluice: put Sluice in front of the broker.
        record: a file for the figures of each second.
        browser: open the page.
    """

    jars: Path = Path()
    log: Path = Path()
    seconds: float | None = None
    calm_s: float = 3.0
    calm_after_s: float = 0.0
    sluice: bool = True
    record: Path | None = None
    browser: bool = True


@dataclass(slots=True)
class Cast:
    """Everything that runs.

    Attributes:
        folder: where all of it lies.
        admin: where Sluice's page is.
        children: processes, in the order of their start.
        broker: the broker.
        address: where clients are sent.
        admin_url: Sluice's page; empty without Sluice.
    """

    folder: Path
    admin: Endpoint
    children: list[Child] = field(default_factory=list)
    broker: RealBroker = field(init=False)
    address: Endpoint = field(init=False)
    admin_url: str = ""

    async def end(self) -> None:
        """End all processes, those in front first: Sluice writes the last of its log."""
        for child in reversed(self.children):
            await child.stop(_END_TIMEOUT_S if child.name == "sluice" else 0.0)


async def perform(options: Options, broker: type[RealBroker]) -> int:
    """Run the demo until Ctrl-C, or for so many seconds; the second signal cuts it short.

    Returns:
        0 if the account is in order, 1 if it is not, 128 + N if signal N cut it short.

    Raises:
        StartError: something is missing, or a part has ended too early; possibly in an exception group.
    """
    if problems := broker.missing(options.jars):
        raise StartError(problems)
    (*ports, admin), notes = machine.choose_ports(broker.ports)
    exit_code = [1]
    with trio.open_signal_receiver(*sidecar.stop_signals()) as signals, machine.scratch(broker.program) as folder:
        cast = Cast(folder, Endpoint(BROKER_HOST, admin))
        try:
            async with trio.open_nursery() as nursery:
                stopping, started = trio.Event(), trio.Event()
                nursery.start_soon(obey, signals, started, stopping, nursery.cancel_scope, exit_code)
                await _start(options, cast, broker, ports, nursery)
                started.set()
                show(
                    account.heading(
                        cast.address,
                        cast.broker,
                        cast.admin_url,
                        account.Limit(LIMIT_PER_S, BURST_S),
                        FLOODED,
                        notes=notes,
                    )
                )
                if cast.admin_url and options.browser:
                    await _open_page(cast.admin_url)
                exit_code[0] = await _play(options, cast, nursery, stopping)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await cast.end()
    if options.sluice and exit_code[0] <= 1:
        show(account.farewell(options.log))
    return exit_code[0]


async def _watch(child: Child) -> None:
    """Raise if a process ends that should not."""
    status = await child.ended()
    if not child.ending:
        raise StartError(child.problem(f"has ended with {status}"))


async def _start(
    options: Options, cast: Cast, broker: type[RealBroker], ports: Sequence[int], nursery: trio.Nursery
) -> None:
    """Start the broker and Sluice, and send the first messages, which do not count."""
    show(Text(f"starting {broker.name}", style="dim"))
    cast.broker = broker(options.jars, cast.folder, ports, behind_sluice=options.sluice)
    cast.children += cast.broker.processes
    for child in cast.children:
        nursery.start_soon(_watch, child)
    cast.address = await cast.broker.wait([load.topic for load in QUIET] + [FLOODED])
    if options.sluice:
        show(Text(f"starting sluice before it, at {cast.address}, which is where clients connect", "dim"))
        shutil.rmtree(options.log, ignore_errors=True)
        options.log.mkdir(parents=True)
        await _start_sluice(cast, options.log.resolve(), nursery)
    show(Text(f"warming up for {_WARM_UP_S:g} s", style="dim"))
    warming = [broker.client(load, Counts()) for load in QUIET]
    async with trio.open_nursery() as sending:
        for producer in warming:
            sending.start_soon(producer.run, cast.address)
        await trio.sleep(_WARM_UP_S)
        for producer in warming:
            producer.stop()
        sending.cancel_scope.deadline = trio.current_time() + LAST_ANSWERS_S


async def _start_sluice(cast: Cast, log: Path, nursery: trio.Nursery) -> None:
    config = _CONFIG.format(
        listeners=cast.broker.listeners(),
        kind=cast.broker.kind,
        limit=LIMIT_PER_S,
        burst_s=BURST_S,
        admin=cast.admin,
        # What is changed in a demo is not there in the next one, nor in a real Sluice of this machine.
        state=json.dumps(str(cast.folder / "state")),
        log=json.dumps(str(log)),
    )
    file = cast.folder / "sluice.toml"
    file.write_text(config, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("sluice")), "run", "--config", str(file)]
    child = Child("sluice", command, cast.folder)
    cast.children.append(child)
    nursery.start_soon(_watch, child)
    cast.admin_url = f"http://{cast.admin}/"
    with trio.move_on_after(_START_TIMEOUT_S):
        while await _get(f"{cast.admin_url}readyz") is None:  # noqa: ASYNC110 - nor does another process
            await trio.sleep(_POLL_S)
        return
    raise StartError(child.problem(f"was not ready within {_START_TIMEOUT_S:g} s"))


async def _get(url: str) -> str | None:
    """Return a page, or None if there is no answer or a bad one."""
    try:
        answer = await trio.to_thread.run_sync(partial(httpx2.get, url, timeout=_HTTP_TIMEOUT_S))
    except httpx2.HTTPError:
        return None
    return answer.text if answer.is_success else None


async def _open_page(url: str) -> None:
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)


async def _play(options: Options, cast: Cast, nursery: trio.Nursery, stopping: trio.Event) -> int:
    """Send until it is over, and show the account; returns the exit status."""
    topics = [load.topic for load in QUIET] + [FLOODED]
    before = {topic: await cast.broker.stored(topic) for topic in topics[:-1]}
    sending = Sending(options, cast, nursery)
    lost = await sending.run(stopping)
    stored = {topic: await cast.broker.stored(topic) - before.get(topic, 0) for topic in topics}
    await sending.look()
    limit = account.Limit(LIMIT_PER_S, BURST_S) if options.sluice else None
    checks = account.checks(sending.ledger, stored, limit, sending.flooded_s, bypassed=sending.bypassed)
    checks += [Check(holds=False, text=line) for line in lost]
    rate_per_s = limit.rate_per_s if limit else inf
    show(view.summary(sending.ledger, stored, rate_per_s, sending.elapsed_s, checks, burst_s=BURST_S))
    show(account.waits(sending.waits, cast.broker.kind))
    if options.record is not None:
        record = {"limit_per_s": LIMIT_PER_S, "flooded": FLOODED, "sluice": options.sluice, "seconds": sending.record}
        options.record.write_text(json.dumps(record), encoding="utf-8")
    return 0 if all(each.holds for each in checks) else 1


class Sending:
    """The clients, and what is seen of them.

    Attributes:
        ledger: what was sent and what became of it; of the flooded topic what Sluice counted, or without Sluice the
            broker and the load generator.
        waits: seconds that each answer took, by quiet topic.
        record: the totals of each second, and the waits that ended in it.
        elapsed_s: how long messages were sent.
        flooded_s: how long the flood lasted.
        bypassed: requests that Sluice let pass without a decision.
    """

    def __init__(self, options: Options, cast: Cast, nursery: trio.Nursery) -> None:
        self._options, self._cast, self._nursery = options, cast, nursery
        # A flood has no rate of its own: it sends as fast as it is answered.
        self.ledger = Ledger((*QUIET, TopicLoad(FLOODED, 0, runaway=True)), cast.broker.kind)
        self.waits: dict[str, list[float]] = {load.topic: [] for load in QUIET}
        self.record: list[dict[str, object]] = []
        self.elapsed_s = self.flooded_s = 0.0
        self.bypassed = 0
        self._version: float | None = None
        self._seen = {load.topic: Counts() for load in QUIET}
        self._told = dict.fromkeys(self.waits, 0)
        self._flood: Child | None = None
        self._flooding_since_s = 0.0

    async def run(self, stopping: trio.Event) -> list[str]:
        """Send until it is over; returns what was lost on the way."""
        client = self._cast.broker.client
        producers = [client(load, self._seen[load.topic], self.waits[load.topic].append) for load in QUIET]
        self.elapsed_s, lost = await send(
            producers,
            self.ledger,
            self._cast.address,
            self._options.seconds,
            stopping,
            refresh_s=_REFRESH_S,
            look=self._go_on,
            last_answers_s=self._cast.broker.last_answers_s,
        )
        return lost

    async def _go_on(self, elapsed_s: float, over: bool) -> None:  # noqa: FBT001 - of one caller
        self.elapsed_s = elapsed_s
        if over:
            self._end_flood()
        else:
            self._direct()
        await self.look()
        if int(elapsed_s) > len(self.record):
            self._keep()

    async def look(self) -> None:
        """Bring the ledger up to date."""
        if self._options.sluice:
            await self._look_at_sluice()
        elif self._flood is not None:
            passed = await self._cast.broker.stored(FLOODED)
            refused = self._cast.broker.failed_of(self._flood.output())
            self.ledger.counts[FLOODED] = Counts(passed + refused, passed, refused)
        for topic, seen in self._seen.items():
            # Without Sluice it is the broker that refuses.
            refused = seen.refused if self._options.sluice else seen.failed
            failed = seen.failed if self._options.sluice else 0
            self.ledger.counts[topic] = Counts(seen.sent, seen.passed, refused, failed)

    async def _look_at_sluice(self) -> None:
        text = await _get(f"{self._cast.admin_url}metrics")
        if text is None:
            return
        families = list(text_string_to_metric_families(text))
        passed, refused, self.bypassed = account.of_metrics(families, self._cast.broker.kind, FLOODED)
        self.ledger.counts[FLOODED] = Counts(passed + refused, passed, refused)
        version = account.version_of(families)
        self._version = self._version or version
        self.ledger.edited = version != self._version

    def _direct(self) -> None:
        """Begin the flood or end it when it is time."""
        options, now_s = self._options, self.elapsed_s
        if self._flood is None:
            if now_s >= options.calm_s:
                self._flood = self._cast.broker.flood(FLOODED)
                self._cast.children.append(self._flood)
                self._nursery.start_soon(_watch, self._flood)
                self._flooding_since_s = trio.current_time()
        elif options.seconds is not None and now_s >= options.seconds - options.calm_after_s:
            self._end_flood()

    def _end_flood(self) -> None:
        if self._flood is not None and not self._flood.ending:
            self._flood.kill()
            self.flooded_s = trio.current_time() - self._flooding_since_s

    def _keep(self) -> None:
        """Write down this second."""
        counts = {
            topic: [each.sent, each.passed, each.refused + each.failed] for topic, each in self.ledger.counts.items()
        }
        waits = {topic: found[self._told[topic] :] for topic, found in self.waits.items()}
        self._told = {topic: len(found) for topic, found in self.waits.items()}
        flooding = self._flood is not None and not self._flood.ending
        self.record.append({"at_s": self.elapsed_s, "flooding": flooding, "counts": counts, "waits_s": waits})
