"""Builds the limiter, the proxy and the admin side from a plan, and runs them until a signal arrives.

The first SIGTERM or SIGINT, or a take-over, starts a drain: no new connections are accepted, in-flight requests may
finish within the grace period, and the admin address still responds. A second signal stops everything immediately.
"""

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
import trio

from admin.common.errors import SettingsError, StartError, listen_error
from admin.common.version import sluice_version
from admin.config import folders
from admin.config.addresses import Endpoint
from admin.config.folders import Folder
from admin.config.settings import OFF
from admin.edits.model import Author
from admin.edits.service import EditService
from admin.edits.store import Store, open_store
from admin.http import api, server
from admin.http.auth import Keyring
from admin.http.problems import Refusals
from admin.rejection_log.advice import AdviceReader
from admin.rejection_log.advice import usual as usual_report
from admin.rejection_log.files import Bounds
from admin.rejection_log.history import HistoryReader
from admin.rejection_log.recorder import Recorder, instance_of
from admin.rejection_log.recorder import families as log_families
from admin.run import hand_over, limit_commands, reload, service_manager
from admin.run.composition import BUILT_IN, Plan, unspooled
from admin.run.hand_over import HandOver, Predecessor
from admin.run.process import share_descriptors
from admin.run.reload import Reloader, reload_unattended
from admin.run.service_manager import Manager
from admin.run.supervisor import Supervisor
from admin.stats import LiveStats
from admin.stats.health import Health
from admin.stats.metrics import Family
from admin.wire import FolderState
from limiter.compiled import VERSION
from limiter.deciding.limits import SavedLimits
from proxy.datapath.datapath import LocalDataPath
from proxy.datapath.spooling import SpoolError
from proxy.deciding.pipeline import PipelineError
from proxy.net.server import ListenError
from proxy.net.sockets import Inherited, format_address

_log = structlog.get_logger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_FLEET_SIZE: Final = "fleet-size"
_OTHERS_PORT: Final = "the other process does not have reuse_port = true, or runs as another user"
#: A disk that hangs must not keep the process from exiting.
_SAVE_LIMITS_S: Final = 5.0


async def run(
    plan: Plan,
    *,
    load: Callable[[], Plan] | None = None,
    environ: Mapping[str, str] | None = None,
    sockets: Sequence[socket.socket] = (),
    handed_over: trio.Event | None = None,
    task_status: trio.TaskStatus["Sidecar"] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. Reports to ``task_status`` when every address is bound.

    ``load`` reads the configuration for a reload. ``environ`` determines the default state directory. ``sockets`` come
    from the service manager. ``handed_over`` is set when another process has taken over. If it is None,
    take-overs are not possible.

    Raises:
        SettingsError: The handlers do not form a pipeline.
        StartError: An address or the state directory is unavailable, too few files can be opened, or the previous
            process does not hand over.
    """
    state = folders.state_dir(plan.settings, os.environ if environ is None else environ)
    predecessor = await _predecessor(plan, state)
    with ExitStack() as ending:
        if predecessor is not None:
            ending.callback(predecessor.close)
        store = open_store(state, lock=None if predecessor is None else predecessor.lock)
        ending.callback(store.close)
        inherited = Inherited((*sockets, *(predecessor.sockets if predecessor else ())))
        sidecar = Sidecar(plan, store, predecessor, inherited, load)
        await sidecar.run(handed_over, task_status)


async def _predecessor(plan: Plan, state: Folder) -> Predecessor | None:
    if not plan.settings.take_over:
        return None
    if state.path is None:
        why = state.why or "state_dir is off"
        raise StartError(f"take_over requires a state directory: {why}")
    return await hand_over.reach(state.path)


class Sidecar:
    """A process that serves clients. ``admin`` is its bound admin address, if any."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        predecessor: Predecessor | None,
        sockets: Inherited,
        load: Callable[[], Plan] | None,
    ) -> None:
        self.listen: dict[str, str] = {}
        self.admin: Endpoint | None = None
        self.recorder: Recorder | None = None
        self._plan, self._store, self._predecessor, self._sockets = plan, store, predecessor, sockets
        settings = plan.settings
        self._spool = folders.make_spool(folders.spool(settings.spool, store.directory))
        self._log_folder = folders.make_rejections(folders.rejections(settings.rejection_log, store.directory))
        self.edits = EditService(plan.rulebook, store)
        self._keyring, self._refusals, self._supervisor = Keyring(plan.access), Refusals(), Supervisor()
        self._reloader = None if load is None else Reloader(load, plan, self.edits, self._keyring)
        self.edits.reloader = self._reloader
        self._leaving: HandOver | None = None
        self._descriptors = share_descriptors(settings.bounds.max_connections, len(plan.listeners))
        config = plan.data_path_config(self._spool.path, spool_required=self._spool.given)
        if config.fleet is not None and store.directory is not None:
            config = replace(config, fleet=replace(config.fleet, size_file=store.directory / _FLEET_SIZE))
        config = replace(
            config,
            rule_set=self.edits.rule_set,
            room_for_connections=self._descriptors.clients,
        )
        try:
            self.data_path = LocalDataPath(config)
        except PipelineError as error:
            raise SettingsError(f"handlers: {error}") from None
        self.health = Health(self.data_path)
        self._hint = (
            f"take_over found no process in {store.directory}; set the --state-dir of the running process"
            if settings.take_over and predecessor is None
            else ""
        )

    @property
    def admin_url(self) -> str | None:
        return None if self.admin is None else f"http{'s' if self._plan.certificate else ''}://{self.admin}/"

    @property
    def status(self) -> str:
        return f"serves {', '.join(self.listen.values())}; admin {self.admin_url or OFF}"

    def warnings(self) -> list[str]:
        of_log = [] if self.recorder is None else self.recorder.warnings()
        of_spool = unspooled(self.edits.rule_set, self._spool)
        of_tasks = self._supervisor.warnings()
        return [*self._current_plan().warnings(), *self.edits.warnings(), *of_spool, *of_log, *of_tasks]

    async def run(self, handed_over: trio.Event | None, task_status: trio.TaskStatus["Sidecar"]) -> None:
        admin = self._bind_admin()
        try:
            async with trio.open_nursery() as nursery:
                await self._serve_clients(nursery)
                operators = await nursery.start(_open_nursery)
                await self._serve_operators(nursery, operators, admin)
                if handed_over is not None and self._store.directory is not None:
                    nursery.start_soon(_cancel_after, handed_over, operators.cancel_scope)
                    grace_s = self._plan.settings.grace_s
                    self._leaving = HandOver(self._store, admin, self.data_path, self.edits, grace_s, handed_over)
                    await nursery.start(self._supervisor.keep, "hand-over", self._leaving.run)
                task_status.started(self)
        finally:
            if admin is not None:
                admin.close()
            if self.recorder is not None:
                # The other tasks have ended, so the log includes all their records.
                await self.recorder.finish()

    async def drain(self, grace_s: float) -> None:
        await self.data_path.drain(grace_s)
        if self._leaving is not None and self._leaving.handed_over.is_set():
            await self._leaving.finish()
        elif self._store.directory is not None:
            save = partial(self._store.save_limits, await self.data_path.save_limits())
            with trio.move_on_after(_SAVE_LIMITS_S):
                await trio.to_thread.run_sync(save, abandon_on_cancel=True)
        left = await self.data_path.connections()
        if left:
            in_flight = sum(connection.in_flight for connection in left)
            _log.warning(
                "grace period expired", grace_s=grace_s, connections_cut=len(left), requests_unanswered=in_flight
            )
        else:
            _log.info("drained")

    async def announce(self) -> None:
        plan, states = self._plan, {}
        for state in (await self.data_path.snapshot(whole=False)).listeners:
            states[state.name] = state
        for listener in plan.listeners:
            state = states[listener.settings.label]
            _log.info(
                "listening" if state.listening else "waiting for the broker",
                listener=state.name,
                listen=state.listen,
                broker=state.broker,
                protocol=listener.protocol.name,
            )
        for line in plan.replaced:
            _log.info("setting overridden by the environment", setting=line)
        _log.info(
            "sluice is up",
            version=sluice_version(),
            compiled_extension=VERSION,
            admin=self.admin_url or OFF,
            state_dir=str(self._store.directory or OFF),
            rejection_log=str(self._log_folder),
            spool=str(self._spool),
            limits=sum(rule.source != BUILT_IN for rule in plan.rule_set.rules),
            live_edits=len(self.edits.edited_rules()),
        )
        if self._descriptors.clients < plan.settings.bounds.max_connections:
            _log.warning(
                "limit on open files allows fewer connections than max_connections",
                open_files=self._descriptors.open_files,
                room_for_connections=self._descriptors.clients,
                max_connections=plan.settings.bounds.max_connections,
            )
        for warning in self.warnings():
            _log.warning(warning)
        if os.geteuid() == 0:
            _log.warning("running as root, which is unnecessary; use a dedicated user")

    def _current_plan(self) -> Plan:
        return self._plan if self._reloader is None else self._reloader.plan

    def _bind_admin(self) -> socket.socket | None:
        settings = self._plan.settings.admin
        if settings.listen == OFF:
            return None
        return server.bind(
            settings.listen,
            anyone=bool(self._plan.access.tokens) or settings.allow_anyone,
            inherited=self._sockets,
            hint=self._hint,
            v6only=self._plan.leaves_ipv4(settings.listen),
        )

    async def _serve_clients(self, nursery: trio.Nursery) -> None:
        try:
            await nursery.start(partial(self.data_path.run, inherited=self._sockets, take_over=self._take_over))
        except ListenError as error:
            address, name = format_address(error.config.listen), error.config.name
            what = "listener" if name == address else f'listener "{name}"'
            hint = _OTHERS_PORT if error.config.reuse_port else self._hint
            raise listen_error(what, address, error.error, hint=hint) from None
        except SpoolError as error:
            raise StartError(f"spool.dir: {error}; {folders.SPOOL_HINT}") from None
        for address in self._sockets.close():
            _log.warning("closed an inherited socket that matches no listener", address=address)
        if self._predecessor is not None:
            await self._predecessor.serve()
            nursery.start_soon(self._predecessor.settle, self.data_path)
        if self._spool.path is not None and await self.data_path.spool(0) is None:
            why = f"{self._spool.path}: cannot be used; see the log"
            self._spool = self._spool._replace(path=None, why=why)
        snapshot = await self.data_path.snapshot(whole=False)
        self.listen = {listener.name: listener.listen for listener in snapshot.listeners}

    async def _take_over(self) -> SavedLimits | None:
        if self._predecessor is not None:
            return await self._predecessor.take()
        return await trio.to_thread.run_sync(self._store.saved_limits)

    async def _serve_operators(
        self, nursery: trio.Nursery, operators: trio.Nursery, admin: socket.socket | None
    ) -> None:
        plan, data_path, edits, keep = self._plan, self.data_path, self.edits, self._supervisor.keep
        await operators.start(keep, "live edits", partial(edits.run, data_path))
        if plan.fleet is not None:
            await operators.start(keep, "edits of the fleet", partial(edits.follow_fleet, data_path))
        await operators.start(keep, "remote commands", partial(limit_commands.answer, data_path, edits))
        board = LiveStats(data_path, edits, self.health)
        await operators.start(keep, "board", board.run)
        if plan.settings.reload_on_change and self._reloader is not None:
            await operators.start(keep, "file watch", partial(reload.reload_on_change, plan.files, edits))
        # The system may have chosen the port.
        first = next(iter(self.listen.values()), "")
        instance = instance_of(plan.settings.rejection_log.instance, socket.gethostname(), first)
        if self._log_folder.path is not None:
            settings = plan.settings.rejection_log
            self.recorder = Recorder(
                data_path,
                edits,
                self._log_folder.path,
                instance=instance,
                bounds=Bounds(settings.max_file_bytes, settings.max_file_age_s, settings.max_total_bytes),
                max_resources=settings.max_resources,
                fleet="" if plan.fleet is None else plan.fleet.name,
                takes_over=self._predecessor is not None,
                problem=self._log_folder.why or None,
            )
            await nursery.start(keep, "rejection log", self.recorder.run)
        if admin is None:
            return
        self.admin = server.bound_endpoint(admin)
        report, no_report = usual_report(plan.settings.report, self._store.directory)
        spool = FolderState(None if self._spool.path is None else str(self._spool.path), self._spool.why or None)
        services = api.Services(
            data_path,
            edits,
            board,
            self.warnings,
            instance,
            self._rejection_log,
            lambda: None if self._reloader is None else self._reloader.failed,
            spool=lambda: spool,
            history=HistoryReader(self._log_folder.path, self._log_folder.why),
            advice=AdviceReader(report, instance, why=no_report, fleet="" if plan.fleet is None else plan.fleet.name),
        )
        app = server.application(
            data_path,
            self.health,
            keyring=self._keyring,
            settings=plan.settings.admin,
            api=api.application(services),
            refusals=self._refusals,
            extra=self._metrics,
        )

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            # Use a duplicate, so that the address stays bound if the server restarts.
            await server.run(
                app,
                admin.dup(),
                certificate=plan.certificate,
                refusals=self._refusals,
                max_connections=self._descriptors.admin,
                task_status=task_status,
            )

        await operators.start(keep, "admin address", serve)

    def _rejection_log(self) -> FolderState:
        folder, recorder = self._log_folder, self.recorder
        if recorder is None:
            return FolderState(None, folder.why or None)
        return FolderState(str(folder.path), recorder.error)

    def _metrics(self) -> Iterator[Family]:
        yield from log_families(self.recorder)
        yield from reload.families(self._reloader)
        yield from reload.certificate_families(self._current_plan())


async def _open_nursery(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a command that cannot reload. SIGHUP is one of them, unless it is ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [*STOP_SIGNALS] if ignored else [*STOP_SIGNALS, signal.SIGHUP]


async def run_until_signal(plan: Plan, load: Callable[[], Plan] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or a take-over. Raises the same errors as ``run``.

    SIGHUP reloads the configuration, even under ``nohup``. Returns 0 after a drain, or 128 plus the number of the
    signal that cut the drain short.
    """
    sockets, manager = service_manager.listening_sockets(os.environ), Manager(os.environ)
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals, trio.open_signal_receiver(signal.SIGHUP) as reloads:
        ending = _Shutdown(manager, plan.settings.grace_s)
        async with trio.open_nursery() as listening:
            async with trio.open_nursery() as nursery:
                listening.start_soon(ending.wait, signals, nursery.cancel_scope)
                serve = partial(run, plan, load=load, sockets=sockets, handed_over=ending.handed_over)
                ending.sidecar = sidecar = await nursery.start(serve)
                await sidecar.announce()
                manager.ready(sidecar.status)
                nursery.start_soon(manager.watch, sidecar.data_path)
                nursery.start_soon(_reload_on_signal, reloads, sidecar, manager)
            # Stop listening for signals only now, so that a second signal also works during shutdown.
            listening.cancel_scope.cancel()
        return ending.exit_code


async def _reload_on_signal(signals: AsyncIterator[int], sidecar: Sidecar, manager: Manager) -> None:
    async for _ in signals:
        manager.reloading()
        await reload_unattended(sidecar.edits, Author("SIGHUP"))
        manager.ready(sidecar.status)


class _Shutdown:
    def __init__(self, manager: Manager, grace_s: float) -> None:
        self.sidecar: Sidecar | None = None
        self.exit_code = 0
        self.handed_over = trio.Event()
        self._manager, self._grace_s = manager, grace_s

    async def wait(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        why = "handed over to another process"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, self.handed_over, nursery.cancel_scope)
            why = signal.Signals(await anext(signals)).name
            nursery.cancel_scope.cancel()
        if self.sidecar is not None:
            _log.info("draining", signal=why, grace_s=self._grace_s)
            self._manager.stopping(f"draining: {why}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain, self.sidecar, nursery.cancel_scope)
                self._at_once(await anext(signals))
                nursery.cancel_scope.cancel()
        everything.cancel()
        self._at_once(await anext(signals))

    async def _drain(self, sidecar: Sidecar, waiting: trio.CancelScope) -> None:
        await sidecar.drain(self._grace_s)
        waiting.cancel()

    def _at_once(self, number: int) -> None:
        _log.warning("stopping immediately", signal=signal.Signals(number).name)
        self.exit_code = 128 + number
        if self.sidecar is not None and self.sidecar.recorder is not None:
            self.sidecar.recorder.shorten_wait()
