"""Builds limiter, proxy and admin from a plan and runs them in one nursery, until a signal ends it.

The first SIGTERM, SIGINT or SIGHUP drains: no new connections, what is in flight finishes within the grace period, and
meanwhile the admin address goes on answering. The second ends everything at once.
"""

import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from admin import http
from admin.composition import BUILT_IN, Plan
from admin.errors import SettingsError, listen_error
from admin.health import Health
from admin.process import raise_descriptor_limit
from admin.settings import OFF, Endpoint
from admin.version import sluice_version
from limiter.rule import Rule
from proxy.control import DataPath
from proxy.datapath import LocalDataPath
from proxy.pipeline import PipelineError
from proxy.server import ListenError
from proxy.sockets import format_address

_log = structlog.get_logger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: So many limits are written out at the start; a longer list is read with ``sluice check``.
_LIMITS_SHOWN: Final = 20
#: Room for fewer connections than this is worth a warning.
_ROOMY_CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Running:
    """A sidecar that serves.

    Attributes:
        data_path: the one interface to it.
        health: its readiness.
        listen: the addresses that are listened on, by listener.
        admin: the admin address, or None when there is none.
    """

    data_path: DataPath
    health: Health
    listen: dict[str, str]
    admin: Endpoint | None

    @property
    def admin_url(self) -> str | None:
        """Where the admin address answers."""
        return None if self.admin is None else f"http://{self.admin}/"


async def run(plan: Plan, *, task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED) -> None:
    """Serve until cancelled; started once every address is bound.

    Raises:
        SettingsError: the handlers do not make a pipeline.
        StartError: an address can't be had.
    """
    try:
        data_path = LocalDataPath(plan.data_path_config())
    except PipelineError as error:
        raise SettingsError(f"handlers: {error}") from None
    health = Health(data_path)
    endpoint = plan.settings.admin.listen
    sock = None if endpoint == OFF else http.bind(endpoint)
    try:
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(data_path.run)
            except ListenError as error:
                address = format_address(error.config.listen)
                name = error.config.name
                raise listen_error(
                    "listener" if name == address else f'listener "{name}"', address, error.error
                ) from None
            admin = None
            if sock is not None:
                admin = http.bound_endpoint(sock)
                await nursery.start(http.run, http.application(data_path, health), sock)
            snapshot = await data_path.snapshot()
            listen = {listener.name: listener.listen for listener in snapshot.listeners}
            task_status.started(Running(data_path, health, listen, admin))
    finally:
        if sock is not None:
            sock.close()


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end the sidecar: without SIGHUP where that is ignored, as ``nohup`` wants it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return [number for number in STOP_SIGNALS if number != signal.SIGHUP]
    return list(STOP_SIGNALS)


async def run_until_signal(plan: Plan) -> int:
    """Serve until SIGTERM, SIGINT or, unless it is ignored (as below ``nohup``), SIGHUP.

    Returns:
        The process's exit code: 0 after a drain, 128 + the signal's number if a second one cut it short.

    Raises:
        SettingsError: the handlers do not make a pipeline.
        StartError: an address can't be had.
    """
    with trio.open_signal_receiver(*stop_signals()) as signals:
        async with trio.open_nursery() as nursery:
            stopped = _Stopped()
            nursery.start_soon(_stop_on_signal, signals, stopped, nursery.cancel_scope, plan.settings.grace_s)
            stopped.running = running = await nursery.start(run, plan)
            _announce(plan, running)
            nursery.start_soon(_warn_unreachable, running.health)
        return stopped.exit_code


@dataclass(slots=True)
class _Stopped:
    running: Running | None = None
    exit_code: int = 0


async def _stop_on_signal(
    signals: AsyncIterator[int], stopped: _Stopped, everything: trio.CancelScope, grace_s: float
) -> None:
    number = await anext(signals)
    if stopped.running is not None:
        _log.info("draining", signal=signal.Signals(number).name, grace_s=grace_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, stopped.running.data_path, grace_s, nursery.cancel_scope)
            number = await anext(signals)
            _log.warning("stopped at once", signal=signal.Signals(number).name)
            stopped.exit_code = 128 + number
            nursery.cancel_scope.cancel()
    everything.cancel()


async def _drain(data_path: DataPath, grace_s: float, waiting: trio.CancelScope) -> None:
    await data_path.drain(grace_s)
    left = await data_path.connections()
    if left:
        in_flight = sum(connection.in_flight for connection in left)
        _log.warning("grace is over", grace_s=grace_s, connections_cut=len(left), requests_without_answer=in_flight)
    else:
        _log.info("drained")
    waiting.cancel()


def _announce(plan: Plan, running: Running) -> None:
    for listener in plan.listeners:
        _log.info(
            "listening",
            listener=listener.settings.label,
            listen=running.listen[listener.settings.label],
            broker=str(listener.settings.broker),
            protocol=listener.protocol.name,
        )
    defaults = ", ".join(str(rule) for rule in plan.defaults())
    _log.info("limits in force", limits=_given_limits(plan), defaults=defaults)
    _log.info("sluice is up", version=sluice_version(), admin=running.admin_url or OFF)
    for warning in plan.warnings():
        _log.warning(warning)
    _raise_descriptor_limit(plan.settings.bounds.max_connections)


def _given_limits(plan: Plan) -> list[str]:
    """Return the operator's own limits, in the order in which they are tried."""
    given = [rule for rule in plan.rule_set.in_match_order if rule.source != BUILT_IN]
    shown = [_shown(rule) for rule in given[:_LIMITS_SHOWN]]
    if more := len(given) - len(shown):
        shown.append(f"and {more} more")
    return shown


def _shown(rule: Rule) -> str:
    """Return a rule in one line, with what makes it other than a plain limit at all times."""
    besides: list[str] = [] if rule.action == "reject" else [rule.action]
    if rule.hours is not None:
        besides.append(str(rule.hours))
    return f"{rule} ({', '.join(besides)})" if besides else str(rule)


def _raise_descriptor_limit(max_connections: int) -> None:
    limited = raise_descriptor_limit(max_connections)
    if limited is None:
        return
    report = _log.warning if limited.room_for_connections < _ROOMY_CONNECTIONS else _log.info
    report(
        "open files limited",
        open_files=limited.open_files,
        room_for_connections=limited.room_for_connections,
        max_connections=max_connections,
    )


async def _warn_unreachable(health: Health) -> None:
    """Say once at the start which brokers do not answer; from then on /readyz says it."""
    for reach in await health.brokers():
        if reach.error is not None:
            _log.warning(
                "broker unreachable; its clients are closed until it answers",
                listener=reach.listener,
                broker=reach.broker,
                error=reach.error,
            )
