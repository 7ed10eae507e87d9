"""``make demo-rocketmq`` and ``make demo-rabbitmq``: Sluice in front of a real broker while one topic is flooded.

The harness of the integration tests starts the brokers. Not for production.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import webbrowser
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

import trio
from rich.console import Group, RenderableType
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from brokers import BROKERS, FloodedBroker  # noqa: E402 - needs the path
from harness.paths import MissingPartError  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.process import ManagedProcess, ProcessFailedError  # noqa: E402
from harness.sidecar import Metrics, Sluice  # noqa: E402

from admin.common.tables import Rows  # noqa: E402
from admin.config.addresses import DEFAULT_ADMIN, parse_endpoint  # noqa: E402
from admin.demo import view  # noqa: E402
from admin.demo.ledger import EDITED, WINDOW_S, Check, Counts, Ledger, TopicLoad, held  # noqa: E402
from admin.demo.stage import obey, send  # noqa: E402
from admin.run.check import show  # noqa: E402

LIMIT_PER_S: Final = 200.0
#: With the default of 1 s, the burst would flood this small broker.
BURST_S: Final = 0.2
FLOODED: Final = "runaway"
QUIET: Final = (
    TopicLoad("orders", 40),
    TopicLoad("payments", 25),
    TopicLoad("invoices", 15),
    TopicLoad("shipments", 10),
    TopicLoad("audit", 5),
)
#: Java and the broker are slow at first.
_WARM_UP_S: Final = 4.0

_CONFIG: Final = """\
{listeners}
[defaults.{kind}]
rate = {limit:g}
burst_s = {burst_s:g}
break_s = {burst_s:g}

[rejection_log]
dir = {log}
instance = "demo"
"""
_LISTENER: Final = '[[listeners]]\nlisten = "{0.listen}"\nbroker = "{0.broker}"\nprotocol = "{1}"\n'


def main() -> int:
    """Return 0 if all checks pass, 1 if not, 128 + N if signal N interrupted the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker", choices=BROKERS)
    parser.add_argument(
        "--log", type=Path, required=True, metavar="DIRECTORY", help="folder for the rejection log, emptied first"
    )
    parser.add_argument("--seconds", type=float, default=inf, metavar="N", help="end after N seconds")
    parser.add_argument("--calm", type=float, default=3.0, metavar="N", help="seconds before the flood (3)")
    parser.add_argument("--calm-after", type=float, default=0.0, metavar="N", help="seconds after the flood (0)")
    parser.add_argument("--without", dest="sluice", action="store_false", help="run without Sluice")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the figures of each second to FILE as JSON")
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="do not open the admin page")
    options = parser.parse_args()
    # Exiting stops the started processes.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-demo-") as folder, ExitStack() as stack:
            show(Text(f"starting {options.broker}", style="dim"))
            broker = BROKERS[options.broker](Path(folder), stack, behind_sluice=options.sluice)
            broker.create([*(load.topic for load in QUIET), FLOODED])
            sluice = _start_sluice(options, Path(folder), stack, broker) if options.sluice else None
            return trio.run(Demo(options, broker, sluice).perform)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (MissingPartError, ProcessFailedError) as error:
        return _failed(error)
    except BaseExceptionGroup as group:
        failed, rest = group.split(ProcessFailedError)
        if rest is not None or failed is None:
            raise
        return _failed(failed.exceptions[0])


def _failed(error: BaseException) -> int:
    sys.stderr.write(f"demo: {error}\n")
    return 1


def _start_sluice(options: argparse.Namespace, folder: Path, stack: ExitStack, broker: FloodedBroker) -> Sluice:
    show(Text(f"starting sluice at {broker.clients}, the address for clients", style="dim"))
    shutil.rmtree(options.log, ignore_errors=True)
    options.log.mkdir(parents=True)
    config = _CONFIG.format(
        listeners="".join(_LISTENER.format(route, broker.protocol) for route in broker.routes),
        kind=broker.kind,
        limit=LIMIT_PER_S,
        burst_s=BURST_S,
        log=json.dumps(str(options.log.resolve())),
    )
    home = folder / "sluice"
    home.mkdir()
    return stack.enter_context(Sluice(home, broker.routes, config=config, admin=_admin(), covered=False))


def _admin() -> str:
    """Return the default admin address, or another one if it is in use."""
    usual = parse_endpoint(DEFAULT_ADMIN)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(usual)
        except OSError:
            return f"{usual.host}:{free_port()}"
    return DEFAULT_ADMIN


class Demo:
    """The clients, the flood, and their statistics."""

    def __init__(self, options: argparse.Namespace, broker: FloodedBroker, sluice: Sluice | None) -> None:
        self.options, self.broker, self.sluice = options, broker, sluice
        # The flood has no rate: it sends as fast as the broker answers.
        self.ledger = Ledger((*QUIET, TopicLoad(FLOODED, 0, runaway=True)), broker.kind)
        self.waits: dict[str, list[float]] = {load.topic: [] for load in QUIET}
        self.seen = {load.topic: Counts() for load in QUIET}
        self.record: list[dict[str, object]] = []
        self.told = dict.fromkeys(self.waits, 0)
        self.flood: ManagedProcess | None = None
        self.flood_began_s = self.flooded_s = 0.0
        self.bypassed = 0
        self.version: float | None = None

    async def perform(self) -> int:
        """Send messages, show the results, and return the exit code."""
        exit_code = [1]
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                started, stopping = trio.Event(), trio.Event()
                nursery.start_soon(obey, signals, started, stopping, nursery.cancel_scope, exit_code)
                await self._warm_up()
                started.set()
                show(self._heading())
                exit_code[0] = await self._play(stopping)
                nursery.cancel_scope.cancel()
        if self.sluice is not None:
            log = self.options.log
            show(Text(f"\nThe rejection log stays in {log} until the next run: .venv/bin/sluice report {log}"))
        return exit_code[0]

    def _heading(self) -> RenderableType:
        broker, page = self.broker, ""
        rows = [("path", f"clients → {broker.name} {broker.address}; without Sluice")]
        if self.sluice is not None:
            page = f"http://{self.sluice.admin}/"
            at_once = f"in bursts of up to {LIMIT_PER_S * BURST_S:g}"
            rows = [
                ("path", f"clients → sluice {broker.clients} → {broker.name} {broker.address}"),
                ("limit", f"{LIMIT_PER_S:g} messages/s for each {broker.kind}, {at_once}"),
            ]
            if self.options.browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
                webbrowser.open(page)
        rows += [
            ("flood", f"{broker.kind} {FLOODED}, by {broker.generator}"),
            ("join in", broker.join_in),
            ("rates", f"mean of the last {WINDOW_S:g} s"),
        ]
        return view.heading(f"Sluice in front of a real {broker.name}" if page else f"{broker.name} alone", page, rows)

    async def _warm_up(self) -> None:
        clients = [self.broker.client(load, Counts()) for load in QUIET]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.run, self.broker.clients)
            await trio.sleep(_WARM_UP_S)
            for client in clients:
                client.stop()
            nursery.cancel_scope.deadline = trio.current_time() + self.broker.last_answers_s

    async def _play(self, stopping: trio.Event) -> int:
        before = await self._stored()
        clients = [self.broker.client(load, self.seen[load.topic], self.waits[load.topic].append) for load in QUIET]
        seconds = None if self.options.seconds == inf else self.options.seconds
        elapsed_s, lost = await send(
            clients,
            self.ledger,
            self.broker.clients,
            seconds,
            stopping,
            refresh_s=0.5,
            look=self._look,
            last_answers_s=self.broker.last_answers_s,
        )
        stored = {topic: count - before[topic] for topic, count in (await self._stored()).items()}
        await self._count()
        checks = [*self._checks(stored), *(Check(holds=False, text=line) for line in lost)]
        limit_per_s = LIMIT_PER_S if self.sluice else inf
        show(view.summary(self.ledger, stored, limit_per_s, elapsed_s, checks, burst_s=BURST_S))
        show(_waits(self.waits, self.broker.kind))
        if self.options.record is not None:
            record = {"limit_per_s": LIMIT_PER_S, "flooded": FLOODED, "sluice": bool(self.sluice)}
            self.options.record.write_text(json.dumps({**record, "seconds": self.record}), encoding="utf-8")
        return 0 if all(each.holds for each in checks) else 1

    async def _stored(self) -> dict[str, int]:
        topics = [*self.seen, FLOODED]
        return {topic: await trio.to_thread.run_sync(self.broker.stored, topic) for topic in topics}

    async def _look(self, elapsed_s: float, over: bool) -> None:  # noqa: FBT001 - called by the stage
        """Start and stop the flood, and update the ledger."""
        if self.flood is None and not over and elapsed_s >= self.options.calm:
            self.flood, self.flood_began_s = self.broker.flood(FLOODED), trio.current_time()
        flooding = self.flood is not None and not self.flooded_s
        if self.flood is not None and flooding and not self.flood.running:
            raise self.flood.failure("ended too early")
        if (
            self.flood is not None
            and flooding
            and (over or elapsed_s >= self.options.seconds - self.options.calm_after)
        ):
            self.flooded_s = trio.current_time() - self.flood_began_s
            await trio.to_thread.run_sync(self.flood.kill)
            flooding = False
        await self._count()
        if int(elapsed_s) > len(self.record):
            counts = self.ledger.counts.items()
            totals = {topic: [each.sent, each.passed, each.refused + each.failed] for topic, each in counts}
            waits = {topic: found[self.told[topic] :] for topic, found in self.waits.items()}
            self.told = {topic: len(found) for topic, found in self.waits.items()}
            self.record.append({"at_s": elapsed_s, "flooding": flooding, "counts": totals, "waits_s": waits})

    async def _count(self) -> None:
        counts = self.ledger.counts
        if self.sluice is not None:
            metrics: Metrics = await trio.to_thread.run_sync(self.sluice.metrics)
            requests = partial(metrics.total, "sluice_requests_total", kind=self.broker.kind, resource=FLOODED)
            refused = int(requests(verdict="refuse"))
            counts[FLOODED] = Counts(int(requests()), int(requests()) - refused, refused)
            self.bypassed = int(metrics.total("sluice_bypassed_total"))
            version = metrics.total("sluice_rule_set_version")
            self.version = self.version or version
            self.ledger.edited = version != self.version
        elif self.flood is not None:
            passed = await trio.to_thread.run_sync(self.broker.stored, FLOODED)
            refused = self.broker.failed(self.flood.lines)
            counts[FLOODED] = Counts(passed + refused, passed, refused)
        for topic, seen in self.seen.items():
            # Without Sluice, the broker refuses.
            refused, failed = (seen.refused, seen.failed) if self.sluice else (seen.failed, 0)
            counts[topic] = Counts(seen.sent, seen.passed, refused, failed)

    def _checks(self, stored: dict[str, int]) -> list[Check]:
        kind, quiet = self.broker.kind, [self.ledger.counts[load.topic] for load in QUIET]
        sent, refused, failed, unanswered = (
            sum(getattr(each, key) for each in quiet) for key in ("sent", "refused", "failed", "unanswered")
        )
        answered = Check(not unanswered, f"every request for a quiet {kind} was answered: {unanswered:,} were not")
        if self.sluice is None:
            lost = f"without Sluice, of {sent:,} messages for quiet {kind}s the broker refused {refused:,}"
            return [answered, Check(holds=True, text=lost)]
        if self.ledger.edited:
            return [EDITED, answered]
        kept = sum(stored[load.topic] for load in QUIET)
        told = f"quiet {kind}s: {sent:,} sent, {refused:,} refused by Sluice, {kept:,} stored"
        told += f"; {failed:,} refused by the broker, which was too slow" if failed else ""
        burst = LIMIT_PER_S * BURST_S
        allowed = int(LIMIT_PER_S * self.flooded_s + burst) + 1 + self.bypassed
        bound = f"{LIMIT_PER_S:g}/s for {self.flooded_s:.1f} s, one burst of {burst:g}, one more"
        bound += f", and {self.bypassed:,} that bypassed the limiter" if self.bypassed else ""
        return [
            Check(not refused and kept >= sent - failed - unanswered, told),
            held(FLOODED, self.ledger.counts[FLOODED], stored[FLOODED], allowed, bound),
            answered,
        ]


def _waits(found: dict[str, list[float]], kind: str) -> RenderableType:
    rows = []
    for topic, waits_s in found.items():
        if ordered := sorted(waits_s):
            at = (min(len(ordered) - 1, int(len(ordered) * share)) for share in (0.5, 0.99, 1))
            rows.append((topic, *(f"{ordered[index] * 1000:,.1f} ms" for index in at)))
    table = Rows((kind, "median", "99 %", "slowest"), rows, right=(1, 2, 3))
    return Group(Text("\nresponse times", style="bold"), table)


if __name__ == "__main__":
    sys.exit(main())
