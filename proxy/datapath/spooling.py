"""Opens, ticks and closes the spool, and logs disk events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from proxy.common.log_rate import LogRate
from proxy.flow.credit import STORE_CREDIT, Credit
from proxy.flow.periods import Periods
from proxy.spool.queue import Lost
from proxy.spool.spool import Hooks, QueueName, Recovered, Spool, SpoolSettings

_log = structlog.get_logger(__name__)

_TICK_S: Final = 0.1
#: A hanging disk must not prevent the process from exiting.
_CLOSE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SpoolConfig:
    folder: Path  # created if missing. No other data path may use it
    settings: SpoolSettings = field(default_factory=SpoolSettings)
    recover: bool = True
    required: bool = True  # if False and the folder is unusable, log a warning and continue without a spool


class SpoolError(Exception):
    def __init__(self, folder: Path, error: OSError) -> None:
        if isinstance(error, BlockingIOError):
            text = f"the spool folder {folder} is in use by another process; each process needs its own"
        else:
            text = f"cannot use the spool folder {folder}: {error.strerror or error}"
        super().__init__(text)
        self.folder = folder


class Spooling:
    """Manages the spool, if there is one. ``now_ns`` must be thread-safe."""

    def __init__(
        self,
        config: SpoolConfig | None,
        now_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        credit: Credit = STORE_CREDIT,
    ) -> None:
        self.config = config
        self._credit, self._now_ns, self._wall_ns = credit, now_ns, wall_ns
        self.spool: Spool | None = None
        self.failure = ""  # why the disk fails. Empty while it works
        self.failing = Periods()
        self._wanted = trio.Event()
        self._log_rate = LogRate()

    async def open(self) -> Spool | None:
        """Open the spool on a thread, because recovery may take a while.

        Raises:
            SpoolError: The folder is required but cannot be used.
        """
        config = self.config
        if config is None:
            return None
        now_ns, token = self._now_ns(), trio.lowlevel.current_trio_token()
        opening = partial(
            Spool.open,
            config.folder,
            config.settings,
            Hooks(lambda _: None, self._failed, self._lost, self._wanted_again, self._unclaimed),
            lambda call: token.run_sync_soon(_guarded, call),
            now_ns=now_ns,
            clock_ns=self._wall_ns() - now_ns,
            recover=config.recover,
            credit=self._credit,
            time_ns=self._now_ns,
        )
        try:
            spool, recovered = await trio.to_thread.run_sync(opening)
        except OSError as error:
            failed = SpoolError(config.folder, error)
            if config.required:
                raise failed from None
            _log.warning("spool unavailable", reason=str(failed))
            return None
        self.spool = spool
        self._wanted.set()
        _log_recovered(config, recovered)
        return spool

    def is_used(self) -> bool:
        return self.spool is not None and not self.spool.is_idle

    async def run(self) -> None:
        """Tick the spool while it has work, even after it was closed and reopened."""
        while True:
            if self.spool is None or self.spool.is_idle:
                self._wanted = trio.Event()
                await self._wanted.wait()
            if self.spool is not None:
                self.spool.tick(self._now_ns())
            await trio.sleep(_TICK_S)

    def keep(self) -> None:
        if self.spool is not None:
            self.spool.keep()

    async def close(self) -> None:
        """Write all data and close the spool, even if cancelled."""
        spool = self.spool
        if spool is not None:
            with trio.CancelScope(shield=True), trio.move_on_after(_CLOSE_S) as scope:
                await trio.to_thread.run_sync(spool.close, abandon_on_cancel=True)
            if scope.cancelled_caught:
                _log.error("spool disk not responding; unwritten messages lost", folder=str(self._folder()))
            self.spool = None

    def _folder(self) -> Path | None:
        return self.config.folder if self.config is not None else None

    def _wanted_again(self) -> None:
        # While the spool is being opened, another thread calls this.
        if self.spool is not None:
            self._wanted.set()

    def _failed(self, reason: str | None) -> None:
        assert self.spool is not None  # noqa: S101 - nothing is written before the spool is open
        self.failure = reason or ""
        now_ns = self._now_ns()
        self.spool.store.block(now_ns, on=reason is not None)
        since_ns = self.failing.since_ns
        if reason is not None:
            self.failing.begin(now_ns)
            _log.error("spool disk failed", folder=str(self._folder()), reason=reason)
        elif since_ns is not None:
            self.failing.end(now_ns)
            _log.info("spool disk recovered", folder=str(self._folder()), failed_s=round((now_ns - since_ns) / 1e9, 1))

    def _unclaimed(self, queues: int, entries: int) -> None:
        _log.warning(
            "dropped spooled messages from an earlier process: no matching client connected",
            folder=str(self._folder()),
            messages=entries,
            queues=queues,
        )

    def _lost(self, lost: Lost) -> None:
        name = QueueName.read(lost.queue.name)
        not_logged = self._log_rate.take(lost.reason, trio.current_time())
        if not_logged is not None:
            _log.error(
                "spooled messages lost",
                resource=f"{name.kind}:{name.name}",
                messages=lost.entries,
                reason=lost.reason,
                not_logged=not_logged,
            )


def _guarded(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - any error
        _log.exception("unexpected error in the spool")


def _log_recovered(config: SpoolConfig, recovered: Recovered) -> None:
    if recovered.entries or recovered.dropped or recovered.lost or recovered.damaged or recovered.is_full:
        _log.warning(
            "found spooled messages from an earlier process",
            folder=str(config.folder),
            to_send=recovered.entries,
            queues=len(recovered.queues),
            dropped=recovered.dropped,
            lost=recovered.lost,
            damaged_files=recovered.damaged,
            disk_full=recovered.is_full,
        )
