"""The limits in force, and the one way to change them.

Changes are made one at a time, in the order in which they were asked for: each is checked, saved, put in force, and
then answered. If the data path does not take the rules after that, the caller gets an error; the edits are saved, apply
after a restart, and the log names them.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Final
from weakref import WeakSet

import msgspec
import structlog
import trio

from admin.common.clock import utc_now
from admin.config.rule_fields import RuleReader, Target
from admin.config.rulebook import Rulebook
from admin.edits.effective import EffectiveLimits
from admin.edits.model import (
    LIMITS,
    SWITCHES,
    Author,
    Change,
    ConflictError,
    Edit,
    EditError,
    EditProblem,
    LimitEntry,
    NotFoundError,
    Persistence,
    ReloadReport,
    StaleError,
    StoreError,
    SwitchEntry,
    spool_path,
)
from admin.edits.store import Store
from admin.edits.transaction import Transaction, check_reason
from admin.edits.wording import cleared_lines, log_changes, purged_lines
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.control import Cleared
from proxy.stats.flow import Purged

_log = structlog.get_logger(__name__)

_FOLLOWER_BEHIND: Final = 1_024
#: The wall clock can be set, so it is looked at again after this time.
_LONGEST_SLEEP_S: Final = 30.0
_AFTER_FAILURE_S: Final = 1.0


class Follower(AsyncIterator[Change]):
    """Yields changes as they come; one that does not keep up loses the oldest."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque(maxlen=_FOLLOWER_BEHIND)
        self._came = trio.Event()

    def put(self, changes: Sequence[Change]) -> None:
        """Add changes."""
        self._changes.extend(changes)
        self._came.set()

    async def __anext__(self) -> Change:
        await trio.lowlevel.checkpoint()
        while not self._changes:
            self._came = trio.Event()
            await self._came.wait()
        return self._changes.popleft()


class EditService:
    """The limits in force, and the one way to change them. Readers see only committed limits.

    Args:
        rulebook: the configuration's rules.
        store: where edits are kept; those in it are in force from the start.
        clock: the wall clock.

    Attributes:
        reloader: reads the configuration again, as ``reload`` does; None if there is nothing to read.
    """

    def __init__(self, rulebook: Rulebook, store: Store, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.reloader: Callable[[Author, bool], Awaitable[ReloadReport]] | None = None
        self._store = store
        self._clock = clock
        self._apply: Callable[[RuleSet], Awaitable[None]] | None = None
        self._reset: Callable[[str, str], Awaitable[Cleared]] | None = None
        self._purge: Callable[[str, str], Awaitable[Purged]] | None = None
        self._followers: WeakSet[Follower] = WeakSet()
        self._one_at_a_time = trio.StrictFIFOLock()
        self._changed = trio.Event()
        self._next_id = store.last_id + 1
        self._limits = EffectiveLimits(rulebook, store.active, clock())
        # Edits that expired while no process ran are never in force. ``run`` saves that: until then, in a take-over,
        # the old process may have to continue with the file as it is.
        self._expired_before = self._expired()
        self._limits = self._expired_before.after()
        self._next_id += len(self._expired_before.changes)
        log_changes(self._expired_before.changes)

    # --- reading

    def _now(self) -> EffectiveLimits:
        self._limits = self._limits.at(self._clock())
        return self._limits

    @property
    def reader(self) -> RuleReader:
        """Reads rules; it knows the kinds that there are."""
        return self._limits.rulebook.reader

    @property
    def rule_set(self) -> RuleSet:
        """The configuration's rules with the active edits over them; its version counts up."""
        return self._limits.rule_set

    @property
    def last_id(self) -> int:
        """The id of the latest change that is in force; 0 if there was none."""
        return self._next_id - 1

    @property
    def etag(self) -> str:
        """The ETag of all limits and switches together."""
        return self._now().etag

    @property
    def persistence(self) -> Persistence:
        """Where edits are kept, and what is wrong with that."""
        directory = self._store.directory
        return Persistence(None if directory is None else str(directory), self._store.error, self._store.set_aside)

    @property
    def exposed(self) -> str | None:
        """Who else could write in the state directory at the start, for people; None if nobody could."""
        if self._store.exposed is None:
            return None
        return (
            f"state directory {self._store.directory}: {self._store.exposed}; anyone who can write there can change"
            " limits and take over the listening sockets"
        )

    def limit(self, kind: str, name: str) -> LimitEntry:
        """Return the limit of one name or pattern, with a rule of its own or not.

        Raises:
            NotFoundError: there is no such kind, or the name is not valid.
        """
        return self._now().limit(kind, name)

    def limits(self) -> Sequence[LimitEntry]:
        """Return all that have a rule of their own, configured or edited; the same object until something changes."""
        return self._now().limits

    def switches(self) -> Sequence[SwitchEntry]:
        """Return the switch for all, then that of each kind."""
        return self._limits.switches

    def edited_rules(self) -> list[Rule]:
        """Return the rules of the active edits."""
        return list(self._limits.rules.values())

    def drift(self) -> list[str]:
        """Say of each active edit how it differs from the configuration, a line each."""
        return self._limits.drift()

    def idle(self) -> list[str]:
        """Name the active edits that have no effect, as they do not fit the configuration."""
        return [
            f"the edit of {path.partition('/')[2].replace('/', ' ', 1)} has no effect: {why}"
            for path, why in self._limits.idle.items()
        ]

    def warnings(self) -> list[str]:
        """Return warnings: edits without effect, an unwritable state directory, unsafe permissions."""
        found = self.idle()
        if self.exposed is not None:
            found.append(self.exposed)
        if self._store.error is not None:
            found.append(f"live edits cannot be saved: {self._store.error}")
        found += [
            f"{path}: was damaged and is quarantined, its edits are not in force" for path in self._store.set_aside
        ]
        return found

    # --- writing

    async def change(
        self,
        edits: Sequence[Edit],
        author: Author,
        *,
        dry_run: bool = False,
        volatile: bool = False,
        if_match: str = "",
    ) -> tuple[Change, ...]:
        """Do all the edits or none of them; returns when they are stored and apply to the very next request.

        Args:
            edits: in order; each sees those before it.
            author: who asks.
            dry_run: say what would change, and change nothing; ids are 0.
            volatile: change it until the restart only, without storing it.
            if_match: the ``etag`` of all limits must be this one; empty is any.

        Raises:
            EditError, StaleError, NotFoundError, StoreError: nothing was changed.
        """
        durable = not volatile and self._store.directory is not None

        def fill(transaction: Transaction) -> None:
            if if_match and if_match != self._limits.etag:
                raise StaleError(0, self._limits.etag, "something has been changed since")
            problems: list[EditProblem] = []
            for index, edit in enumerate(edits):
                try:
                    transaction.edit(index, edit, author, durable=durable)
                except EditError as error:
                    problems += error.problems
            if problems:
                raise EditError(tuple(problems))

        return await self._do(fill, dry_run=dry_run)

    async def revert(
        self, change_id: int, author: Author, *, reason: str = "", force: bool = False, dry_run: bool = False
    ) -> Change:
        """Undo one change.

        Raises:
            NotFoundError: there is no such change, or nothing of it can be undone.
            ConflictError: a later change has the same target, and it is not ``force``.
            EditError: the limit before it does not fit the configuration any more.
            StoreError: nothing was changed.
        """

        def fill(transaction: Transaction) -> None:
            try:
                change, later = self._store.find(change_id)
            except OSError as error:
                raise StoreError(f"the audit trail cannot be read: {error}") from None
            if change is None:
                raise NotFoundError(f"there is no change {change_id}; it may be too old to be known")
            if not change.target.startswith((LIMITS, SWITCHES)) or change.action in {"expire", "reset"}:
                raise NotFoundError(f"nothing of change {change_id} can be undone")
            if later and not force:
                raise ConflictError(
                    f"change {later} changed {change.target} since; with force (--force) it is reverted all the same"
                )
            transaction.revert(change, author, reason)

        (done,) = await self._do(fill, dry_run=dry_run)
        return done

    async def reset(self, kind: str, name: str, author: Author, *, reason: str = "") -> Change:
        """Let the limiters of a limit begin anew: full, closed, without shares. The limit stays as it is.

        These are the limiters of one name, of a total, or of all names for which a pattern's rule is in force.

        Raises:
            NotFoundError: there is no such kind, the name is not valid, or there is no rule of that pattern.
            EditError: the reason is too long.
        """
        target, entry = self._target(kind, name, reason)
        if not entry.exact and entry.edit is None and entry.configured is None:
            what = f"there is no limit {target.kind}:{target.name}"
            raise NotFoundError(f"{what}; a pattern is reset as a whole, where it has a rule of its own")
        if self._reset is None:
            raise NotFoundError("there is no data path yet whose limiters could be reset")
        details = cleared_lines(await self._reset(*target))
        return await self._note(lambda each: each.note_reset(target, author, reason=reason, **self._noted(details)))

    async def purge(self, kind: str, name: str, author: Author, *, reason: str = "") -> tuple[Purged, Change]:
        """Refuse the spooled messages of one resource, or drop them if their senders expect no answer.

        Raises:
            NotFoundError: there is no such kind, or the name is not valid.
            ConflictError: there is no spool.
            EditError: the reason is too long.
        """
        target, entry = self._target(kind, name, reason)
        if not entry.exact:
            raise NotFoundError(f"{target.kind}:{target.name} is a pattern; name one resource, as GET spool does")
        if self._purge is None:
            raise ConflictError("there is no data path yet whose spool could be purged")
        try:
            purged = await self._purge(*target)
        except ValueError as error:
            raise ConflictError(str(error)) from None
        details, path = purged_lines(purged), spool_path(target)
        return purged, await self._note(
            lambda each: each.note("purge", path, author, reason=reason, **self._noted(details))
        )

    async def reload(self, author: Author, *, dry_run: bool = False) -> ReloadReport:
        """Read the configuration again, and put in force what does not need a restart.

        Raises:
            ReloadError: it is invalid; nothing was changed.
        """
        if self.reloader is None:
            raise NotFoundError("there is no configuration to read again")
        return await self.reloader(author, dry_run)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Make callers that change something wait."""
        async with self._one_at_a_time:
            yield

    async def put_rulebook(
        self, rulebook: Rulebook, author: Author, details: Sequence[str], committed: Callable[[], None] = lambda: None
    ) -> Change:
        """Put another configuration under the active edits, even if the disk is full.

        Args:
            rulebook: the configuration's rules.
            author: who asks.
            details: what changed, for the audit trail.
            committed: called once it is in force, even if the caller is cancelled meanwhile.
        """

        def fill(transaction: Transaction) -> None:
            transaction.note("reload", "configuration", author, **self._noted(details))

        return await self._note(fill, rulebook=rulebook, committed=committed)

    async def audit(
        self, *, before: int | None = None, target: str = "", by: str = "", limit: int = 100
    ) -> tuple[Change, ...]:
        """Return changes, the latest first.

        Args:
            before: only those with a smaller id.
            target: only those whose target begins with it.
            by: only those of this author.
            limit: how many at most.

        Raises:
            StoreError: the audit trail cannot be read.
        """
        search = partial(self._store.audit, before=before, target=target, by=by, limit=limit)
        try:
            return await trio.to_thread.run_sync(search)
        except OSError as error:
            raise StoreError(f"the audit trail cannot be read: {error}") from None

    def changes(self) -> AsyncIterator[Change]:
        """Follow changes as they are committed; a follower that does not keep up loses the oldest."""
        follower = Follower()
        self._followers.add(follower)
        return follower

    async def run(
        self,
        apply: Callable[[RuleSet], Awaitable[None]],
        reset: Callable[[str, str], Awaitable[Cleared]] | None = None,
        purge: Callable[[str, str], Awaitable[Purged]] | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """End temporary edits in time, until cancelled.

        Args:
            apply: puts a rule set in force.
            reset: lets the limiters of a kind and name begin anew.
            purge: refuses and drops what the spool holds of a kind and name; a ValueError says why it cannot.
            task_status: reports that changes are taken.
        """
        self._apply, self._reset, self._purge = apply, reset, purge
        async with self._one_at_a_time:
            expired, self._expired_before = self._expired_before, self._transaction()
            await self._save(expired, required=False)
        task_status.started()
        while True:
            try:
                async with self._one_at_a_time:
                    self._changed = trio.Event()
                    with trio.CancelScope(shield=True):
                        await self._expire()
                        if self._store.error is not None:
                            await self._save(self._transaction(), required=False)
                end = min(self._limits.ends.values(), default=None)
                sleep_s = _LONGEST_SLEEP_S if end is None else (end - self._clock()).total_seconds()
            except Exception as error:  # noqa: BLE001 - whatever it was, traffic and later edits go on
                _log.exception("a group of edits failed", error=repr(error))
                sleep_s = _AFTER_FAILURE_S
            with trio.move_on_after(min(max(sleep_s, 0), _LONGEST_SLEEP_S)):
                await self._changed.wait()

    # --- how

    def _target(self, kind: str, name: str, reason: str) -> tuple[Target, LimitEntry]:
        if problems := check_reason(reason):
            raise EditError(tuple(problems))
        entry = self.limit(kind, name)
        return Target(entry.kind, entry.name), entry

    def _noted(self, details: Sequence[str]) -> dict[str, object]:
        return {"details": tuple(details), "durable": self._store.directory is not None}

    async def _note(
        self,
        fill: Callable[[Transaction], None],
        *,
        rulebook: Rulebook | None = None,
        committed: Callable[[], None] = lambda: None,
    ) -> Change:
        """Record something that has happened, now or once the disk takes it."""
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
        """Make changes in their turn. Then they are done as a whole, even if the caller is cancelled.

        Args:
            fill: does them on a transaction, on a thread.
            dry_run: only return what would be done.
            required: refuse durable changes that the disk does not take.
            rulebook: replaces the configuration.
            committed: called once all is in force.

        Raises:
            StoreError: the disk does not take them; nothing was changed.
            Exception: raised by ``fill``; nothing was changed.
        """
        async with self._one_at_a_time:
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
        return Transaction(self._now(), self._store.active, self._next_id, self._clock())

    def _expired(self) -> Transaction:
        """Return a transaction that ends what is over."""
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
        """Save changes, put them in force, and notify followers and the log.

        Raises:
            StoreError: they are required and the disk does not take them; nothing was changed.
        """
        changes = transaction.changes
        if not changes:
            return
        durable = [change.id for change in changes if change.durable]
        try:
            await self._save(transaction, required=required and bool(durable))
        except OSError as error:
            raise StoreError(
                f"the state directory does not take the edit: {error}; nothing was changed. With volatile=1 it holds"
                " until the restart"
            ) from None
        # Once saved, their ids are taken, whatever fails from here on.
        self._next_id += len(changes)
        try:
            if self._apply is not None and limits is not self._limits:
                await self._apply(limits.rule_set)
        except Exception:
            if durable:
                what = "edits are saved and not in force: the data path did not take them; a restart will"
                _log.error(what, changes=durable)
            raise
        self._limits = limits
        self._changed.set()
        log_changes(changes)
        for follower in list(self._followers):
            follower.put(changes)
