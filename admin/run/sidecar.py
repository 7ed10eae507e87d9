"""Builds limiter, proxy and admin from a plan and runs them in one nursery, until a signal ends it.

The first SIGTERM or SIGINT drains: no new connections, requests in flight finish within the grace period, and the admin
address still answers. The second ends everything at once. SIGHUP reads the configuration again. A process that takes
over (``hand_over``) makes this one drain, too.
"""

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from admin.common.errors import SettingsError, StartError, listen_error
from admin.common.version import sluice_version
from admin.config.addresses import Endpoint
from admin.config.settings import OFF
from admin.edits import state_dir
from admin.edits.model import Author, FailedReload
from admin.edits.service import EditService
from admin.edits.state_dir import StateDir
from admin.edits.store import Store, open_store
from admin.http import api, server
from admin.http.auth import Keyring
from admin.http.refusals import Refusals
from admin.rejection_log import location as log_location
from admin.rejection_log.advice import AdviceReader
from admin.rejection_log.advice import usual as usual_report
from admin.rejection_log.files import Bounds
from admin.rejection_log.history import HistoryReader
from admin.rejection_log.recorder import Recorder, instance_of
from admin.rejection_log.recorder import families as log_families
from admin.run import hand_over, limit_commands, limiter_state, reload, service_manager, spool_dir
from admin.run.composition import BUILT_IN, Plan
from admin.run.hand_over import HandOver, Predecessor
from admin.run.process import Descriptors, share_descriptors
from admin.run.reload import Reloader, reload_unattended
from admin.run.service_manager import Manager
from admin.run.spool_dir import SpoolDir, unspooled
from admin.stats import LiveStats
from admin.stats.health import Health
from admin.wire import RejectionLog, SpoolFolder
from limiter.deciding.limits import SavedLimits
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.control import DataPath
from proxy.datapath.datapath import LocalDataPath
from proxy.datapath.spooling import SpoolError
from proxy.deciding.pipeline import PipelineError
from proxy.net.server import ListenError
from proxy.net.sockets import Inherited, format_address

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class Supervisor:
    """Restarts tasks of the admin side that fail. Traffic and the other tasks go on."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    async def keep(
        self,
        name: str,
        run: Callable[..., Awaitable[None]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a task until cancelled; raises its exception if it fails before its first start.

        Args:
            name: of the task, for people.
            run: the task; it takes ``task_status``, and can be run again.
            task_status: reports its first start.
        """
        status = _Status(task_status)
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = trio.current_time()
            try:
                await run(task_status=status)
            except Exception as error:
                if not status.started_once:
                    raise
                self._failures[name] = self._failures.get(name, 0) + 1
                if trio.current_time() - began_s > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
                _log.exception("a task of the admin side failed; traffic goes on", task=name, error=repr(error))
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return

    def warnings(self) -> list[str]:
        """Name the tasks that failed since the start."""
        return [
            f"{name}: failed and was begun again{f', {count} times' if count > 1 else ''}; the log has the reason"
            for name, count in self._failures.items()
        ]


class _Status(trio.TaskStatus[Any]):
    """Forwards the first start only."""

    def __init__(self, status: trio.TaskStatus[Any]) -> None:
        self.started_once = False
        self._status = status

    def started(self, value: Any = None) -> None:
        if not self.started_once:
            self.started_once = True
            self._status.started(value)


STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

#: Limits and edits logged at the start.
_LIMITS_SHOWN: Final = 20
_EDITS_SHOWN: Final = 5
#: A disk that hangs must not keep the process from ending.
_SAVE_LIMITS_S: Final = 5.0
#: Room for fewer connections than this is worth a warning.
_ROOMY_CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Running:
    """A sidecar that serves.

    Attributes:
        listen: the addresses of the listeners, by name.
        admin: the admin address, or None without one.
        secure: it speaks HTTPS.
        drained: called after a drain: saves the limiter state for the next process.
    """

    data_path: DataPath
    health: Health
    edits: EditService
    listen: dict[str, str]
    admin: Endpoint | None
    secure: bool = False
    rejection_log: Recorder | None = None
    drained: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    @property
    def admin_url(self) -> str | None:
        """URL of the admin address."""
        return None if self.admin is None else f"http{'s' if self.secure else ''}://{self.admin}/"


async def run(
    plan: Plan,
    *,
    load: Callable[[], Plan] | None = None,
    environ: Mapping[str, str] | None = None,
    sockets: Sequence[socket.socket] = (),
    handed_over: trio.Event | None = None,
    task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; started once every address is bound.

    Args:
        plan: what to serve.
        load: reads and checks the configuration again; without it there are no reloads.
        environ: says where the default state directory is; the process's own if not given.
        sockets: bound already by the service manager.
        handed_over: set once another process has taken over; without it none can.
        task_status: reports that it serves.

    Raises:
        SettingsError: the handlers do not make a pipeline.
        StartError: an address, the state directory or a handful of open files can't be had, or the old process does not
            hand over.
    """
    where = state_dir.of(plan.settings, os.environ if environ is None else environ)
    predecessor = await _predecessor(plan, where)
    with ExitStack() as ending:
        if predecessor is not None:
            ending.callback(predecessor.close)
        store = open_store(where, lock=None if predecessor is None else predecessor.lock)
        ending.callback(store.close)
        spool = spool_dir.prepare(spool_dir.of(plan.settings.spool, store.directory))
        folder, problem = log_location.prepare(log_location.of(plan.settings.rejection_log, store.directory))
        await _run(
            plan,
            EditService(plan.rulebook, store),
            _Log(folder, problem, takes_over=predecessor is not None),
            spool,
            usual_report(plan.settings.report, store.directory),
            before=_Before(
                store,
                predecessor,
                Inherited((*sockets, *(predecessor.sockets if predecessor else ()))),
                f"take_over found no process in {where.directory}, so give the --state-dir of the one that runs"
                if plan.settings.take_over and predecessor is None
                else "",
            ),
            load=load,
            handed_over=handed_over,
            task_status=task_status,
        )


async def _predecessor(plan: Plan, where: StateDir) -> Predecessor | None:
    if not plan.settings.take_over:
        return None
    if where.directory is None:
        why = where.why or "state_dir is off"
        raise StartError(f"take_over: there is no state directory to find the running process by: {why}")
    return await hand_over.reach(where.directory)


class _Before(NamedTuple):
    """State and sockets from before this process. ``hint`` is for the error that an address is in use."""

    store: Store
    predecessor: Predecessor | None
    sockets: Inherited
    hint: str

    async def take_over(self) -> SavedLimits | None:
        """Have the old process stop accepting, and return the limiter state."""
        if self.predecessor is not None:
            return await self.predecessor.take()
        return await trio.to_thread.run_sync(limiter_state.load, self.store)


class _Log(NamedTuple):
    """Where the rejection log goes, what is wrong with that, and whether a predecessor still writes there."""

    directory: Path | None
    problem: str | None
    takes_over: bool


async def _run(
    plan: Plan,
    edits: EditService,
    log: _Log,
    spool: SpoolDir,
    report: tuple[Path | None, str],
    *,
    before: _Before,
    load: Callable[[], Plan] | None,
    handed_over: trio.Event | None,
    task_status: trio.TaskStatus[Running],
) -> None:
    max_connections = plan.settings.bounds.max_connections
    descriptors = share_descriptors(max_connections, len(plan.listeners))
    config = replace(
        plan.data_path_config(spool.directory, spool_required=spool.given),
        rule_set=edits.rule_set,
        room_for_connections=descriptors.clients,
    )
    try:
        data_path = LocalDataPath(config)
    except PipelineError as error:
        raise SettingsError(f"handlers: {error}") from None
    health = Health(data_path)
    endpoint = plan.settings.admin.listen
    keyring, refusals = Keyring(plan.access), Refusals()
    anyone = bool(plan.access.tokens) or plan.settings.admin.allow_anyone
    sock = None
    if endpoint != OFF:
        v6only = plan.leaves_ipv4(endpoint)
        sock = server.bind(endpoint, anyone=anyone, inherited=before.sockets, hint=before.hint, v6only=v6only)
    reloader = None
    if load is not None:
        edits.reloader = reloader = Reloader(load, plan, edits, keyring)
    recorder: Recorder | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(partial(data_path.run, inherited=before.sockets, take_over=before.take_over))
            except ListenError as error:
                address = format_address(error.config.listen)
                name = error.config.name
                raise listen_error(
                    "listener" if name == address else f'listener "{name}"', address, error.error, hint=before.hint
                ) from None
            except SpoolError as error:
                raise StartError(f"spool.dir: {error}; {spool_dir.HINT}") from None
            for address in before.sockets.close():
                _log.warning("a socket that was passed is of no listener, and is closed", address=address)
            if before.predecessor is not None:
                await before.predecessor.serve()
                nursery.start_soon(before.predecessor.settle, data_path)
            if spool.directory is not None and await data_path.spool(0) is None:
                spool = SpoolDir(None, spool.given, f"{spool.directory}: cannot be used; the log has the reason")
            if descriptors.clients < max_connections:
                _say_room(descriptors, max_connections)
            snapshot = await data_path.snapshot(whole=False)
            listen = {listener.name: listener.listen for listener in snapshot.listeners}
            instance = _instance(plan, listen)
            supervisor = Supervisor()
            operators = await nursery.start(_open_nursery)
            await operators.start(supervisor.keep, "live edits", partial(edits.run, data_path))
            await operators.start(supervisor.keep, "remote commands", partial(limit_commands.answer, data_path, edits))
            board = LiveStats(data_path, edits, health)
            await operators.start(supervisor.keep, "board", board.run)
            if plan.settings.reload_on_change and reloader is not None:
                await operators.start(
                    supervisor.keep, "file watch", partial(reload.reload_on_change, plan.files, edits)
                )
            recorder = _recorder(plan, data_path, edits, log, instance)
            if recorder is not None:
                await nursery.start(supervisor.keep, "rejection log", recorder.run)
            admin = None
            if sock is not None:
                admin = server.bound_endpoint(sock)

                def in_force() -> Plan:
                    return plan if reloader is None else reloader.plan

                def warnings() -> list[str]:
                    of_log = [] if recorder is None else recorder.warnings()
                    of_spool = unspooled(edits.rule_set, spool)
                    return [*in_force().warnings(), *edits.warnings(), *of_spool, *of_log, *supervisor.warnings()]

                def rejection_log() -> RejectionLog:
                    directory = None if log.directory is None else str(log.directory)
                    return RejectionLog(directory, log.problem if recorder is None else recorder.error)

                def failed_reload() -> FailedReload | None:
                    return None if reloader is None else reloader.failed

                folder = SpoolFolder(None if spool.directory is None else str(spool.directory), spool.why)
                services = api.Services(
                    data_path,
                    edits,
                    board,
                    warnings,
                    instance,
                    rejection_log,
                    failed_reload,
                    spool=lambda: folder,
                    history=HistoryReader(None if recorder is None else recorder.files.directory, log.problem or ""),
                    advice=AdviceReader(report[0], instance, why=report[1]),
                )
                app = server.application(
                    data_path,
                    health,
                    keyring=keyring,
                    settings=plan.settings.admin,
                    api=api.application(services),
                    refusals=refusals,
                    extra=lambda: chain(
                        log_families(recorder),
                        reload.families(reloader),
                        reload.certificate_families(in_force()),
                    ),
                )

                async def serve(bound: socket.socket, *, task_status: trio.TaskStatus[None]) -> None:
                    # A copy, so that the address is still held if serving has to be begun again.
                    await server.run(
                        app,
                        bound.dup(),
                        certificate=plan.certificate,
                        refusals=refusals,
                        max_connections=descriptors.admin,
                        task_status=task_status,
                    )

                await operators.start(supervisor.keep, "admin address", partial(serve, sock))
            secure = plan.certificate is not None
            leave = None
            if handed_over is not None and before.store.directory is not None:
                nursery.start_soon(_end_after, handed_over, operators.cancel_scope)
                leave = HandOver(before.store, sock, data_path, edits, plan.settings.grace_s, handed_over)
                await nursery.start(supervisor.keep, "hand-over", leave.run)

            async def drained() -> None:
                if handed_over is not None and handed_over.is_set() and leave is not None:
                    await leave.finish()
                elif before.store.directory is not None:
                    write = partial(limiter_state.save, before.store, await data_path.save_limits())
                    with trio.move_on_after(_SAVE_LIMITS_S):
                        await trio.to_thread.run_sync(write, abandon_on_cancel=True)

            running = Running(
                *(data_path, health, edits, listen, admin), secure=secure, rejection_log=recorder, drained=drained
            )
            _say_where(log, instance)
            _say_spool(edits.rule_set, spool)
            task_status.started(running)
    finally:
        if sock is not None:
            sock.close()
        if recorder is not None:
            # The other tasks have ended: their last records are in it.
            await recorder.finish()


async def _open_nursery(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Open a nursery that ends before the outer one."""
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


async def _end_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _instance(plan: Plan, listen: Mapping[str, str]) -> str:
    """Return the name of this sidecar among others; ``listen`` has the ports that the system chose."""
    first = next(iter(listen.values()), "")
    return instance_of(plan.settings.rejection_log.instance, socket.gethostname(), first)


def _recorder(plan: Plan, data_path: DataPath, edits: EditService, log: _Log, instance: str) -> Recorder | None:
    if log.directory is None:
        return None
    settings = plan.settings.rejection_log
    return Recorder(
        data_path,
        edits,
        log.directory,
        instance=instance,
        bounds=Bounds(settings.max_file_bytes, settings.max_file_age_s, settings.max_total_bytes),
        max_resources=settings.max_resources,
        takes_over=log.takes_over,
        problem=log.problem,
    )


def _say_where(log: _Log, instance: str) -> None:
    if log.directory is None:
        _log.info("rejection log is off", reason=log.problem or 'rejection_log.dir = "off"')
        return
    _log.info("rejection log", dir=str(log.directory), instance=instance)
    if log.problem is not None:
        _log.warning("rejection log is not written; traffic goes on", reason=log.problem)


def _say_spool(rule_set: RuleSet, spool: SpoolDir) -> None:
    if spool.directory is not None:
        _log.info("spool", dir=str(spool.directory))
    else:
        _log.info("spool is off: what waits is held in memory only", reason=spool.reason)
    for warning in unspooled(rule_set, spool):
        _log.warning(warning)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a command without a reload: SIGHUP too, unless it is ignored, as under ``nohup``."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [*STOP_SIGNALS] if ignored else [*STOP_SIGNALS, signal.SIGHUP]


async def run_until_signal(plan: Plan, load: Callable[[], Plan] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, or until another process has taken over; SIGHUP reloads, also under ``nohup``.

    Returns:
        The exit code: 0 after a drain, 128 + the signal's number if a second one cut it short.

    Raises:
        SettingsError, StartError: as ``run``.
    """
    sockets, manager = service_manager.listening_sockets(os.environ), Manager(os.environ)
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals, trio.open_signal_receiver(signal.SIGHUP) as reloads:
        stopped = _Stopped(manager)
        async with trio.open_nursery() as listening:
            async with trio.open_nursery() as nursery:
                listening.start_soon(_stop_on_signal, signals, stopped, nursery.cancel_scope, plan.settings.grace_s)
                serve = partial(run, plan, load=load, sockets=sockets, handed_over=stopped.handed_over)
                stopped.running = running = await nursery.start(serve)
                await _announce(plan, running)
                manager.ready(_status(running))
                nursery.start_soon(manager.watch, running.data_path)
                nursery.start_soon(_reload_on_signal, reloads, running, manager)
            # Only now: a second signal is heard while the rest ends, too.
            listening.cancel_scope.cancel()
        return stopped.exit_code


def _status(running: Running) -> str:
    return f"serves {', '.join(running.listen.values())}; admin {running.admin_url or OFF}"


async def _reload_on_signal(signals: AsyncIterator[int], running: Running, manager: Manager) -> None:
    async for _ in signals:
        manager.reloading()
        await reload_unattended(running.edits, Author("SIGHUP"))
        manager.ready(_status(running))


@dataclass(slots=True)
class _Stopped:
    manager: Manager
    running: Running | None = None
    exit_code: int = 0
    handed_over: trio.Event = field(default_factory=trio.Event)

    def at_once(self, number: int) -> None:
        """Note that a second signal cuts it short, and stop waiting for the disk."""
        _log.warning("stopped at once", signal=signal.Signals(number).name)
        self.exit_code = 128 + number
        if self.running is not None and self.running.rejection_log is not None:
            self.running.rejection_log.hurry()


async def _stop_on_signal(
    signals: AsyncIterator[int], stopped: _Stopped, everything: trio.CancelScope, grace_s: float
) -> None:
    why = "handed over to another process"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_after, stopped.handed_over, nursery.cancel_scope)
        why = signal.Signals(await anext(signals)).name
        nursery.cancel_scope.cancel()
    if stopped.running is not None:
        _log.info("draining", signal=why, grace_s=grace_s)
        stopped.manager.stopping(f"drains: {why}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, stopped.running, grace_s, nursery.cancel_scope)
            stopped.at_once(await anext(signals))
            nursery.cancel_scope.cancel()
    everything.cancel()
    stopped.at_once(await anext(signals))


async def _drain(running: Running, grace_s: float, waiting: trio.CancelScope) -> None:
    data_path = running.data_path
    await data_path.drain(grace_s)
    await running.drained()
    left = await data_path.connections()
    if left:
        in_flight = sum(connection.in_flight for connection in left)
        _log.warning("grace is over", grace_s=grace_s, connections_cut=len(left), requests_without_answer=in_flight)
    else:
        _log.info("drained")
    waiting.cancel()


async def _announce(plan: Plan, running: Running) -> None:
    states = {state.name: state for state in (await running.data_path.snapshot(whole=False)).listeners}
    for listener in plan.listeners:
        state = states[listener.settings.label]
        _log.info(
            "listening" if state.listening else "waiting for the broker",
            listener=state.name,
            listen=state.listen,
            broker=state.broker,
            protocol=listener.protocol.name,
        )
    defaults = ", ".join(str(rule) for rule in plan.defaults())
    _log.info("limits in force", limits=_given_limits(plan), defaults=defaults)
    _announce_edits(running.edits)
    for line in plan.replaced:
        _log.info("setting replaced by the environment", setting=line)
    _log.info("sluice is up", version=sluice_version(), admin=running.admin_url or OFF)
    for warning in plan.warnings():
        _log.warning(warning)
    if os.geteuid() == 0:
        _log.warning("runs as root, of whose rights it needs none: give it a user of its own")


def _announce_edits(edits: EditService) -> None:
    """Log where live edits are stored, and how they differ from the configuration."""
    directory = edits.persistence.directory or "none: edits are kept until the restart"
    differences = edits.differences()
    shown = differences[:_EDITS_SHOWN]
    if more := len(differences) - len(shown):
        shown.append(f"and {more} more")
    _log.info("live edits", state_dir=directory, edits=shown)
    for warning in edits.warnings():
        _log.warning(warning)


def _given_limits(plan: Plan) -> list[str]:
    """Return the operator's own limits, in matching order."""
    given = [rule for rule in plan.rule_set.in_match_order if rule.source != BUILT_IN]
    shown = [_shown(rule) for rule in given[:_LIMITS_SHOWN]]
    if more := len(given) - len(shown):
        shown.append(f"and {more} more")
    return shown


def _shown(rule: Rule) -> str:
    """Return a rule in one line, with its action and hours if they are special."""
    besides: list[str] = [] if rule.action == "reject" else [rule.action]
    if rule.hours is not None:
        besides.append(str(rule.hours))
    return f"{rule} ({', '.join(besides)})" if besides else str(rule)


def _say_room(descriptors: Descriptors, max_connections: int) -> None:
    report = _log.warning if descriptors.clients < _ROOMY_CONNECTIONS else _log.info
    report(
        "open files limited; clients beyond the room there is are closed",
        open_files=descriptors.open_files,
        room_for_connections=descriptors.clients,
        max_connections=max_connections,
    )
