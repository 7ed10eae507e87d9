"""Manages the active limits and makes all changes to them.

Changes are made one at a time. Each change is checked, saved and activated before the call returns.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from admin.config.rule_fields import RuleReader, Target
from admin.config.rulebook import Rulebook
from admin.edits.effective import EffectiveLimits
from admin.edits.fleet_log import FleetLog
from admin.edits.model import (
    FLEET,
    LIMITS,
    SPOOL,
    SWITCHES,
    Action,
    Author,
    Change,
    ConflictError,
    Edit,
    EditError,
    FieldProblem,
    FleetEditError,
    InvalidError,
    LimitEntry,
    MissingError,
    Persistence,
    PreconditionError,
    ReloadReport,
    StoreError,
    SwitchEntry,
    limit_path,
)
from admin.edits.store import Store
from admin.edits.transaction import Transaction
from admin.edits.wording import cleared_lines, log_changes, purged_lines
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.clock import utc_now
from proxy.control import DataPath, FleetError
from proxy.stats.flow import Purged

_log = structlog.get_logger(__name__)

#: Maximum time between checks for expired edits. The wall clock may be changed.
_MAX_SLEEP_S: Final = 30.0
_AFTER_FAILURE_S: Final = 5.0
_WITHOUT_REDIS_S: Final = 1.0
#: Maximum number of attempts to append a fleet edit. Each fails if another member appends first.
_TRIES: Final = 20


class EditService:
    """Edits limits and switches. Readers see only committed limits. The edits in ``store`` are active from the start.

    Attributes:
        reloader: Reloads the configuration. None if there is nothing to reload.
    """

    def __init__(self, rulebook: Rulebook, store: Store, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.lock = trio.StrictFIFOLock()
        self.reloader: Callable[[Author, bool], Awaitable[ReloadReport]] | None = None
        self._store = store
        self._clock = clock
        self._data_path: DataPath | None = None
        self._followers: list[trio.MemorySendChannel[Change]] = []
        self._changed = trio.Event()
        self._fleet_log: FleetLog | None = None
        self._next_id = store.last_id + 1
        self._limits = EffectiveLimits(rulebook, store.active, clock())
        # Edits that expired while no process was running never become active. Only ``run`` saves their expiry, because
        # the take-over may fail before then.
        self._expired_before = self._expired()
        self._limits = self._expired_before.after()
        self._next_id += len(self._expired_before.changes)
        log_changes(self._expired_before.changes)

    def _now(self) -> EffectiveLimits:
        self._limits = self._limits.at(self._clock())
        return self._limits

    @property
    def reader(self) -> RuleReader:
        return self._limits.rulebook.reader

    @property
    def rule_set(self) -> RuleSet:
        return self._limits.rule_set

    @property
    def last_id(self) -> int:
        return self._next_id - 1

    @property
    def etag(self) -> str:
        return self._now().etag

    @property
    def persistence(self) -> Persistence:
        directory = self._store.directory
        return Persistence(None if directory is None else str(directory), self._store.error, self._store.set_aside)

    def limit(self, kind: str, name: str) -> LimitEntry:
        return self._now().limit(kind, name)

    def limits(self) -> Sequence[LimitEntry]:
        """Return all limits that have a rule of their own. Until a limit changes, each call returns the same object."""
        return self._now().limits

    def switches(self) -> Sequence[SwitchEntry]:
        return self._limits.switches

    def switch(self, kind: str) -> SwitchEntry:
        return self._limits.switch(kind, self._limits.active.get(SWITCHES + kind))

    def edited_rules(self) -> list[Rule]:
        return list(self._limits.rules.values())

    def warnings(self) -> list[str]:
        found = [
            f"the edit of {path.partition('/')[2].replace('/', ' ', 1)} has no effect: {why}"
            for path, why in self._limits.idle.items()
        ]
        if self._store.exposed is not None:
            found.append(
                f"state directory {self._store.directory}: {self._store.exposed}; anyone who can write there can change"
                " limits and take over the listening sockets"
            )
        if self._store.error is not None:
            found.append(f"could not save live edits: {self._store.error}")
        damaged = "quarantined because it is damaged; its edits are not active"
        return found + [f"{path}: {damaged}" for path in self._store.set_aside]

    async def change(
        self,
        edits: Sequence[Edit],
        author: Author,
        *,
        dry_run: bool = False,
        volatile: bool = False,
        fleet: bool = False,
        if_match: str = "",
    ) -> tuple[Change, ...]:
        """Make all edits atomically and in order. When this returns, they are saved and apply to the next request.

        With ``dry_run``, nothing is changed, and the returned changes have the id 0. With ``volatile``, the edits are
        not saved and are lost on restart. With ``fleet``, they are made on all members of the fleet. If ``if_match`` is
        given, it must equal ``etag``.

        Raises:
            EditError: Nothing was changed. If it is a FleetEditError, the outcome may be unknown.
        """
        if fleet and volatile:
            raise InvalidError(
                FieldProblem("volatile", "cannot be combined with fleet, because fleet edits are always saved")
            )
        durable = not volatile and self._store.directory is not None

        def fill(transaction: Transaction) -> None:
            if if_match and if_match != self._limits.etag:
                raise PreconditionError("a limit or switch has changed in the meantime", self._limits.etag)
            problems: list[FieldProblem] = []
            for index, edit in enumerate(edits):
                try:
                    transaction.edit(edit, author, durable=durable)
                except EditError as error:
                    error.problems = tuple(msgspec.structs.replace(each, edit=index) for each in error.problems)
                    if len(edits) == 1 or not any(each.field for each in error.problems):
                        raise
                    problems += error.problems
            if problems:
                raise InvalidError(*problems)

        return await (self._do_for_fleet if fleet else self._do)(fill, dry_run=dry_run)

    async def revert(
        self, change_id: int, author: Author, *, reason: str = "", force: bool = False, dry_run: bool = False
    ) -> Change:
        """Undo one change. A fleet edit is undone on all members. Raises EditError.

        With ``force``, the change is undone even if a later change has the same target.
        """

        def find() -> tuple[Change | None, int]:
            try:
                return self._store.find(change_id)
            except OSError as error:
                raise _unreadable(error) from None

        def fill(transaction: Transaction) -> None:
            change, later = find()
            if change is None:
                raise MissingError(
                    f"change {change_id} does not exist, or is so old that the audit trail no longer contains it"
                )
            if not change.target.startswith((LIMITS, SWITCHES)) or change.action in {"expire", "reset"}:
                raise MissingError(f"change {change_id} cannot be undone; only set, unset and revert changes can")
            if later and not force:
                raise ConflictError(
                    f"change {later} has since changed {change.target}; use force=1 (--force) to revert anyway"
                )
            undoes = f"undoes a change by {change.by} on {change.member}" if change.member else ""
            transaction.revert(change, author, reason or undoes)

        change, _ = await trio.to_thread.run_sync(find)
        is_for_fleet = change is not None and change.member and change.action != "expire"
        (done,) = await (self._do_for_fleet if is_for_fleet else self._do)(fill, dry_run=dry_run)
        return done

    async def reset(self, kind: str, name: str, author: Author, *, reason: str = "") -> Change:
        """Reset the limiters of a name, a shared limit, or all names to which a pattern's rule applies.

        This fills their buckets, closes their breakers and removes fair shares. Raises MissingError, or ConflictError
        for a fleet limit.
        """
        entry = self.limit(kind, name)
        target = Target(entry.kind, entry.name)
        if entry.edit is None and entry.configured is None:
            if not entry.exact:
                what = f"there is no limit for {target.kind}:{target.name}"
                raise MissingError(f"{what}; a pattern can be reset only if it has its own rule")
            if self._now().inherited_rule(target) is None:
                raise MissingError(f"{target.kind} {target.name} has no limit to reset")
        if entry.limit.get("fleet"):
            what = f"{target.kind}:{target.name} is a fleet limit, whose bucket in Redis cannot be reset"
            raise ConflictError(
                f"{what}; instead, raise the limit temporarily with fleet=1 (--fleet) and ttl_s (--ttl)"
            )
        cleared = await self._running.reset(*target)
        return await self._note("reset", limit_path(target), author, cleared_lines(cleared), reason=reason)

    async def purge(self, kind: str, name: str, author: Author, *, reason: str = "") -> tuple[Purged, Change]:
        """Refuse a resource's spooled messages, and drop those whose senders expect no response.

        Raises MissingError if the name is a pattern, or ConflictError if there is no spool.
        """
        entry = self.limit(kind, name)
        if not entry.exact:
            raise MissingError(
                f"{entry.kind}:{entry.name} is a pattern; pass a single resource, as listed by GET spool"
            )
        try:
            purged = await self._running.purge(entry.kind, entry.name)
        except ValueError as error:
            raise ConflictError(str(error)) from None
        path, details = f"{SPOOL}{entry.kind}/{entry.name}", purged_lines(purged)
        return purged, await self._note("purge", path, author, details, reason=reason)

    async def reload(self, author: Author, *, dry_run: bool = False) -> ReloadReport:
        """Reload the configuration, except settings that need a restart. Raises ReloadError if it is invalid."""
        if self.reloader is None:
            raise MissingError("there is no configuration to reload")
        return await self.reloader(author, dry_run)

    async def put_rulebook(
        self, rulebook: Rulebook, author: Author, details: Sequence[str], committed: Callable[[], None] = lambda: None
    ) -> Change:
        """Replace the configured rules and apply the active edits to the new ones. This works even if the disk is full.

        ``committed`` is called when the rules are active, even if the caller has been cancelled.
        """
        return await self._note("reload", "configuration", author, details, rulebook=rulebook, committed=committed)

    async def audit(
        self, *, before: int | None = None, target: str = "", by: str = "", limit: int = 100
    ) -> tuple[Change, ...]:
        """Return the changes whose id is below ``before`` and whose target begins with ``target``, latest first.

        Raises StoreError if the audit trail cannot be read.
        """
        search = partial(self._store.audit, before=before, target=target, by=by, limit=limit)
        try:
            return await trio.to_thread.run_sync(search)
        except OSError as error:
            raise _unreadable(error) from None

    def changes(self) -> trio.MemoryReceiveChannel[Change]:
        """Return a channel that receives every committed change. The caller must close it."""
        send, receive = trio.open_memory_channel[Change](math.inf)
        self._followers.append(send)
        return receive

    async def run(self, data_path: DataPath, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Apply changes to the data path and expire temporary edits, until cancelled."""
        self._data_path = data_path
        async with self.lock:
            expired, self._expired_before = self._expired_before, self._transaction()
            await self._save(expired, required=False)
        task_status.started()
        while True:
            try:
                async with self.lock:
                    self._changed = trio.Event()
                    with trio.CancelScope(shield=True):
                        await self._expire()
                        if self._store.error is not None:
                            await self._save(self._transaction(), required=False)
                end = min(self._limits.ends.values(), default=None)
                longest_s = _MAX_SLEEP_S if self._store.error is None else _AFTER_FAILURE_S
                sleep_s = longest_s if end is None else min((end - self._clock()).total_seconds(), longest_s)
            except Exception as error:  # noqa: BLE001 - traffic and later edits must continue
                _log.exception("edit expiry failed", error=repr(error))
                sleep_s = _AFTER_FAILURE_S
            with trio.move_on_after(max(sleep_s, 0)):
                await self._changed.wait()

    async def follow_fleet(
        self, data_path: DataPath, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Apply the fleet edits that any member makes, until cancelled. ``run`` must be running."""
        fleet = (await data_path.snapshot(whole=False)).fleet
        task_status.started()
        if fleet is None:
            return
        self._fleet_log = log = FleetLog(fleet.name, fleet.member)
        while True:
            await data_path.fleet_edits_changed(log.version)
            try:
                async with self.lock:
                    with trio.CancelScope(shield=True):
                        await self._read_fleet(log)
            except FleetError:
                # The data path has already logged the reason.
                await trio.sleep(_WITHOUT_REDIS_S)

    async def _do_for_fleet(self, fill: Callable[[Transaction], None], *, dry_run: bool) -> tuple[Change, ...]:
        log = self._fleet_log
        if log is None:
            why = "this sidecar is not in a fleet, because its configuration has no [fleet]; omit fleet=1 (--fleet)"
            raise InvalidError(FieldProblem("", why))
        if dry_run:
            return await self._do(fill, dry_run=True)
        try:
            async with self.lock:
                with trio.CancelScope(shield=True):
                    changes = await self._add_to_fleet(fill, log)
        except FleetError as error:
            what = (
                "it is unknown whether the edit was made; check when Redis is reachable again"
                if error.sent
                else "nothing was changed. To edit only this member, omit fleet=1 (--fleet)"
            )
            raise FleetEditError(f"the fleet's Redis is unavailable: {error}; {what}") from None
        return changes

    async def _add_to_fleet(self, fill: Callable[[Transaction], None], log: FleetLog) -> tuple[Change, ...]:
        if log.version is None:
            await self._read_fleet(log)
        after = {path.removeprefix(FLEET): log.mark(edit).number for path, edit in self._store.fleet.items()}
        for _ in range(_TRIES):
            await self._expire()
            transaction = self._transaction()
            await trio.to_thread.run_sync(fill, transaction)
            added, fields, removed = log.add(transaction.made, self._store.fleet, self._clock(), after)
            if await self._running.write_fleet_edits(log.version or b"", fields, removed):
                done = await self._read_fleet(log)
                changes = tuple(done[number] for entry in added if (number := log.mark(entry.edit).number) in done)
                if added and not changes:
                    raise FleetError("it lost its data", sent=True)
                return changes
            # Another member appended first.
            await self._read_fleet(log)
        raise FleetEditError("other members are making edits at the same time; nothing was changed; try again")

    async def _read_fleet(self, log: FleetLog) -> dict[int, Change]:
        fields = await self._running.read_fleet_edits()
        found = log.merge(fields, self._store.fleet, self._clock())
        await self._expire()
        transaction = self._transaction()

        def work() -> tuple[list[int], EffectiveLimits]:
            for path in found.gone:
                transaction.forget(path)
            done = [log.mark(edit).number for path, edit in found.new if transaction.follow(path, edit)]
            return done, transaction.after()

        done, limits = await trio.to_thread.run_sync(work)
        await self._commit(transaction, limits, required=False)
        if found.lost:
            _, added, _ = log.add(found.lost, self._store.fleet, self._clock(), None)
            # Clear the version first, so that the log is read again if writing fails.
            version, log.version = log.version or b"", None
            await self._running.write_fleet_edits(version, added, [])
        return dict(zip(done, transaction.changes, strict=True))

    @property
    def _running(self) -> DataPath:
        assert self._data_path is not None  # noqa: S101 - the API is served once this runs
        return self._data_path

    async def _note(
        self,
        action: Action,
        target: str,
        author: Author,
        details: Sequence[str],
        *,
        reason: str = "",
        rulebook: Rulebook | None = None,
        committed: Callable[[], None] = lambda: None,
    ) -> Change:
        more = {"details": tuple(details), "reason": reason, "durable": self._store.directory is not None}

        def fill(transaction: Transaction) -> None:
            transaction.note(action, target, author, **more)

        (change,) = await self._do(fill, required=False, rulebook=rulebook, committed=committed)
        return change

    async def _do(
        self,
        fill: Callable[[Transaction], None],
        *,
        dry_run: bool = False,
        required: bool = True,
        rulebook: Rulebook | None = None,
        committed: Callable[[], None] = lambda: None,
    ) -> tuple[Change, ...]:
        """Fill a transaction on a thread and commit it. This completes even if the caller is cancelled.

        If ``required`` is true, durable changes fail if they cannot be saved.
        """
        async with self.lock:
            with trio.CancelScope(shield=True):
                await self._expire()
                transaction = self._transaction()

                def work() -> EffectiveLimits:
                    fill(transaction)
                    return transaction.after(rulebook)

                limits = await trio.to_thread.run_sync(work)
                if not dry_run:
                    await self._commit(transaction, limits, required=required)
                    committed()
        changes = tuple(transaction.changes)
        return tuple(msgspec.structs.replace(change, id=0) for change in changes) if dry_run else changes

    def _transaction(self) -> Transaction:
        stored = {**self._store.active, **self._store.fleet}
        return Transaction(self._now(), stored, self._next_id, self._clock())

    def _expired(self) -> Transaction:
        transaction, now = self._transaction(), self._clock()
        for path in [path for path, end in self._limits.ends.items() if end <= now]:
            transaction.expire(path)
        return transaction

    async def _expire(self) -> None:
        transaction = self._expired()
        if transaction.changes:
            limits = await trio.to_thread.run_sync(transaction.after)
            await self._commit(transaction, limits, required=False)

    async def _save(self, transaction: Transaction, *, required: bool) -> None:
        commit = partial(self._store.commit, transaction.changes, transaction.stored, required=required)
        await trio.to_thread.run_sync(commit)

    async def _commit(self, transaction: Transaction, limits: EffectiveLimits, *, required: bool) -> None:
        changes = transaction.changes
        if not changes and not transaction.stored:
            return
        durable = [change.id for change in changes if change.durable]
        try:
            await self._save(transaction, required=required and bool(durable))
        except OSError as error:
            raise StoreError(
                f"the edit could not be saved: {error}; nothing was changed. To make it without saving, use volatile=1"
            ) from None
        # A saved change uses up its id even if a later step fails.
        self._next_id += len(changes)
        try:
            if self._data_path is not None and limits is not self._limits:
                await self._data_path.apply(limits.rule_set)
        except Exception:
            if durable:
                what = "saved edits not activated because the data path failed; restart to activate them"
                _log.error(what, changes=durable)
            raise
        self._limits = limits
        self._changed.set()
        log_changes(changes)
        for follower in list(self._followers):
            try:
                for change in changes:
                    follower.send_nowait(change)
            except trio.BrokenResourceError:
                self._followers.remove(follower)


def _unreadable(error: OSError) -> StoreError:
    return StoreError(f"the audit trail cannot be read: {error}; nothing was changed")
