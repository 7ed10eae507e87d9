"""The limits in force, the one way to change them, and everything that can be asked about changes.

One change is made at a time, in the order in which they were asked for: it is checked, written down, put in force, and
only then answered. What fails until it is written down has changed nothing. Should the data path then not take the
rules, whoever asked gets an error; but the edits are written down, are in force after a restart, and the log names
them.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import msgspec
import structlog
import trio

from admin.common.clock import utc_now
from admin.common.numbers import number
from admin.config.rule_fields import RuleReader, Target
from admin.config.rulebook import Rulebook
from admin.edits.model import (
    LIMITS,
    MAX_REASON,
    SWITCHES,
    ActiveEdit,
    Author,
    Change,
    ConflictError,
    Edit,
    EditError,
    LimitEntry,
    NotFoundError,
    Persistence,
    Problem,
    ReloadReport,
    StaleError,
    StoreError,
    SwitchEntry,
)
from admin.edits.state import State
from admin.edits.store import Store
from admin.edits.transaction import Transaction
from admin.edits.wording import fields, sides, target
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.cooperative import Pace
from proxy.control import Cleared
from proxy.stats.flow import Purged

_log = structlog.get_logger(__name__)

#: Changes that a follower can be behind.
_BEHIND: Final = 1_024
#: The wall clock can be set: it is looked at again after so long.
_LONGEST_SLEEP_S: Final = 30.0
#: After a failure, what is over is tried again after so long.
_AFTER_FAILURE_S: Final = 1.0
#: Of changes that are made together, so many have a line of the log each.
_LOGGED: Final = 20


class Follower(AsyncIterator[Change]):
    """Hands out changes as they come."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque(maxlen=_BEHIND)
        self._came = trio.Event()

    def put(self, changes: Sequence[Change]) -> None:
        """Take changes over."""
        self._changes.extend(changes)
        self._came.set()

    def __aiter__(self) -> "Follower":
        return self

    async def __anext__(self) -> Change:
        await trio.lowlevel.checkpoint()
        while not self._changes:
            self._came = trio.Event()
            await self._came.wait()
        return self._changes.popleft()


class EditService:
    """The limits in force, and the one way to change them.

    What it tells of limits has been committed: it is stored, in force, and recorded.

    Args:
        rulebook: the configuration's rules.
        store: where edits are kept; those in it are in force from the start.
        clock: the wall clock.

    Attributes:
        reloader: reads the configuration again, as ``reload`` is to; None where there is nothing to read.
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
        self._state = State(rulebook, store.active, clock())
        # What ended while nobody was looking never comes back into force; ``run`` writes it down.
        ended = self._expired()
        self._state = ended.after()
        self._next_id += len(ended.changes)
        self._ended_before = ended
        _log_changes(ended.changes)

    # --- reading

    def _now(self) -> State:
        """Return the state as it is at this moment."""
        self._state.refresh(self._clock())
        return self._state

    @property
    def reader(self) -> RuleReader:
        """What rules are read with; it knows the kinds that there are."""
        return self._state.rulebook.reader

    @property
    def rule_set(self) -> RuleSet:
        """The configuration's rules with the active edits over them; its version counts up."""
        return self._state.rule_set

    @property
    def etag(self) -> str:
        """Of all limits and switches together."""
        return self._now().etag

    @property
    def persistence(self) -> Persistence:
        """Where edits are kept, and what is wrong with that."""
        directory = self._store.directory
        return Persistence(
            directory=None if directory is None else str(directory),
            error=self._store.error,
            set_aside=self._store.set_aside,
        )

    @property
    def exposed(self) -> str | None:
        """Who else could write in the state directory at the start, for people; None if nobody could."""
        if self._store.exposed is None:
            return None
        return (
            f"state directory {self._store.directory}: {self._store.exposed}; who writes there can change limits and"
            " have the listeners"
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
        return self._state.switches

    def edited_rules(self) -> list[Rule]:
        """Return the rules of the active edits."""
        return list(self._state.rules.values())

    def drift(self) -> list[str]:
        """Say of each active edit how it departs from the configuration, a line each."""
        return self._state.drift()

    def idle(self) -> list[str]:
        """Name the active edits that do nothing, as they do not fit the configuration."""
        return [
            f"the edit of {path.partition('/')[2].replace('/', ' ', 1)} stands and does nothing: {why}"
            for path, why in self._state.idle.items()
        ]

    def warnings(self) -> list[str]:
        """Say what an operator ought to look at: edits that do nothing, a disk that takes none or is others', too."""
        found = self.idle()
        if self.exposed is not None:
            found.append(self.exposed)
        if self._store.error is not None:
            found.append(f"live edits cannot be written down: {self._store.error}")
        found += [f"{path}: set aside, what it held is not in force" for path in self._store.set_aside]
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
        """Do all the edits or none of them; returns when they are stored and hold for the very next request.

        Args:
            edits: in order; each sees those before it.
            author: who asks.
            dry_run: say what would change, and change nothing.
            volatile: change it only until the restart, without storing it.
            if_match: the ``etag`` of all limits must be this one; empty is any.

        Raises:
            EditError, StaleError, NotFoundError, StoreError: nothing was changed.
        """
        durable = not volatile and self._store.directory is not None

        async def fill(transaction: Transaction) -> None:
            if if_match and if_match != self.etag:
                raise StaleError(0, self.etag, "something has been changed since")
            problems: list[Problem] = []
            pace = Pace()
            for index, edit in enumerate(edits):
                try:
                    transaction.edit(index, edit, author, durable=durable)
                except EditError as error:
                    problems += error.problems
                await pace.keep()
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
            EditError: what was in force before does not fit the configuration any more.
            StoreError: nothing was changed.
        """

        async def fill(transaction: Transaction) -> None:
            change, later = await trio.to_thread.run_sync(self._store.find, change_id)
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
        if len(reason) > MAX_REASON:
            raise EditError((Problem("reason", f"must be at most {MAX_REASON} characters"),))
        entry = self.limit(kind, name)
        target = Target(entry.kind, entry.name)
        if not entry.exact and entry.edit is None and entry.configured is None:
            what = f"there is no limit {target.kind}:{target.name}"
            raise NotFoundError(f"{what}; a pattern is reset as a whole, where it has a rule of its own")
        if self._reset is None:
            raise NotFoundError("there is no data path yet whose limiters could be reset")
        details = cleared_lines(await self._reset(*target))

        async def fill(transaction: Transaction) -> None:
            await trio.lowlevel.checkpoint()
            durable = self._store.directory is not None
            transaction.note_reset(target, author, details, reason=reason, durable=durable)

        # What was cleared is recorded even if the disk does not take it now.
        (change,) = await self._do(fill, needs_disk=False)
        return change

    async def purge(self, kind: str, name: str, author: Author, *, reason: str = "") -> tuple[Purged, Change]:
        """Refuse what is put aside of one resource, or drop it where its senders have no answer to expect.

        Raises:
            NotFoundError: there is no such kind, or the name is not valid.
            ConflictError: nothing is ever put aside here.
            EditError: the reason is too long.
        """
        if len(reason) > MAX_REASON:
            raise EditError((Problem("reason", f"must be at most {MAX_REASON} characters"),))
        entry = self.limit(kind, name)
        target = Target(entry.kind, entry.name)
        if not entry.exact:
            raise NotFoundError(f"{target.kind}:{target.name} is a pattern; name one resource, as GET spool does")
        if self._purge is None:
            raise ConflictError("there is no data path yet whose spool could be purged")
        try:
            purged = await self._purge(*target)
        except ValueError as error:
            raise ConflictError(str(error)) from None
        details = purged_lines(purged)

        async def fill(transaction: Transaction) -> None:
            await trio.lowlevel.checkpoint()
            durable = self._store.directory is not None
            transaction.note_purge(target, author, details, reason=reason, durable=durable)

        # What is gone is recorded even if the disk does not take it now.
        (change,) = await self._do(fill, needs_disk=False)
        return purged, change

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
        """Make no changes meanwhile: who asks for one waits."""
        async with self._one_at_a_time:
            yield

    async def put_rulebook(
        self, rulebook: Rulebook, author: Author, details: Sequence[str], committed: Callable[[], None] = lambda: None
    ) -> Change:
        """Put another configuration under the active edits.

        It needs no disk: the configuration is on one. What the audit trail cannot take now it gets later.

        Args:
            rulebook: the configuration's rules.
            author: who asks.
            details: what changed, for the audit trail.
            committed: called once it is in force, even if the caller is cancelled meanwhile.
        """

        async def fill(transaction: Transaction) -> None:
            await trio.lowlevel.checkpoint()
            transaction.note_reload(author, details, durable=self._store.directory is not None)

        (change,) = await self._do(fill, needs_disk=False, rulebook=rulebook, committed=committed)
        return change

    async def audit(
        self, *, before: int | None = None, target: str = "", by: str = "", limit: int = 100
    ) -> tuple[Change, ...]:
        """Return changes, the latest first.

        Args:
            before: only those with a smaller id.
            target: only those whose target begins with it.
            by: only those of this author.
            limit: so many at most.

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
            ended, self._ended_before = self._ended_before, self._transaction()
            await self._save(ended.changes, ended.stored)
        task_status.started()
        while True:
            try:
                async with self._one_at_a_time:
                    self._changed = trio.Event()
                    with trio.CancelScope(shield=True):
                        await self._expire()
                        if self._store.error is not None:
                            await self._save()
                end = min(self._state.ends.values(), default=None)
                sleep_s = _LONGEST_SLEEP_S if end is None else (end - self._clock()).total_seconds()
            except Exception as error:  # noqa: BLE001 - whatever it was, traffic and later edits go on
                _log.exception("a group of edits failed", error=repr(error))
                sleep_s = _AFTER_FAILURE_S
            with trio.move_on_after(min(max(sleep_s, 0), _LONGEST_SLEEP_S)):
                await self._changed.wait()

    # --- how

    async def _save(self, changes: Sequence[Change] = (), edits: Mapping[str, ActiveEdit | None] = {}) -> None:
        """Save what is in force already, now or with a later commit."""
        await trio.to_thread.run_sync(partial(self._store.commit, changes, edits, required=False))

    async def _do(
        self,
        fill: Callable[[Transaction], Awaitable[None]],
        *,
        dry_run: bool = False,
        needs_disk: bool = True,
        rulebook: Rulebook | None = None,
        committed: Callable[[], None] = lambda: None,
    ) -> tuple[Change, ...]:
        """Make changes in their turn; once that has come they are done as a whole, even if the caller is cancelled.

        Args:
            fill: does them on a transaction.
            dry_run: only return what would be done, with 0 for ids.
            needs_disk: refuse what is to survive a restart if the disk does not take it.
            rulebook: the configuration that takes the place of the present one.
            committed: called once all is in force.

        Raises:
            StoreError: the disk does not take them; nothing was changed.
            Exception: what ``fill`` raises; nothing was changed.
        """
        async with self._one_at_a_time:
            with trio.CancelScope(shield=True):
                await self._expire()
                transaction = self._transaction()
                await fill(transaction)
                state = await trio.to_thread.run_sync(transaction.after, rulebook)
                if not dry_run:
                    await self._commit(transaction, state, needs_disk=needs_disk)
                    committed()
        changes = tuple(transaction.changes)
        return tuple(msgspec.structs.replace(change, id=0) for change in changes) if dry_run else changes

    def _transaction(self) -> Transaction:
        now = self._clock()
        self._state.refresh(now)
        return Transaction(self._state, self._store.active, self._next_id, now)

    def _expired(self) -> Transaction:
        """Return a transaction that ends what is over."""
        now, transaction = self._clock(), self._transaction()
        for path in [path for path, end in self._state.ends.items() if end <= now]:
            transaction.expire(path)
        return transaction

    async def _expire(self) -> None:
        transaction = self._expired()
        if transaction.changes:
            state = await trio.to_thread.run_sync(transaction.after)
            await self._commit(transaction, state, needs_disk=False)

    async def _commit(self, transaction: Transaction, state: State, *, needs_disk: bool) -> None:
        """Write changes down, put them in force, and let followers and the log know.

        Raises:
            StoreError: the disk does not take what needs it; nothing was changed.
        """
        changes = transaction.changes
        if not changes:
            return
        durable = tuple(change for change in changes if change.durable)
        commit = partial(self._store.commit, changes, transaction.stored, required=needs_disk and bool(durable))
        try:
            await trio.to_thread.run_sync(commit)
        except OSError as error:
            raise StoreError(
                f"the state directory does not take the edit: {error}; nothing was changed. With volatile=1"
                " it holds until the restart"
            ) from None
        # Written down, their ids are taken, whatever goes wrong from here on.
        self._next_id += len(changes)
        try:
            if self._apply is not None and state is not self._state:
                await self._apply(state.rule_set)
        except Exception:
            if durable:
                what = "edits are written down and not in force: the data path did not take them; a restart will"
                _log.error(what, changes=[change.id for change in durable])
            raise
        self._state = state
        self._changed.set()
        _log_changes(changes)
        for follower in list(self._followers):
            follower.put(changes)


def _log_changes(changes: Sequence[Change]) -> None:
    """Write a line for each of the first changes, and one for all the others."""
    edits = [change for change in changes if change.action != "reload"]
    more: dict[str, Any]
    for change in edits[:_LOGGED]:
        if change.action == "purge":
            said = {"reason": change.reason, "address": change.address}
            what, purged = target(change.target), "; ".join(change.details)
            more = {key: value for key, value in said.items() if value}
            _log.info("spool purged", what=what, purged=purged, by=change.by, change=change.id, **more)
            continue
        before, after = sides(change)
        event = "switch changed" if change.target.startswith(SWITCHES) else "limit changed"
        more = {
            "cleared": "; ".join(change.details) if change.action == "reset" else "",
            "fields": ", ".join(fields(change)).replace("→", "->"),
            "reason": change.reason,
            "until": change.expires_at or ("" if change.durable or change.new is None else "the restart"),
            "address": change.address,
        }
        _log.info(
            "edit expired" if change.action == "expire" else event,
            action=change.action if change.reverts is None else f"revert of {change.reverts}",
            what=target(change.target),
            before=before,
            after=after,
            by=change.by,
            change=change.id,
            **{key: value for key, value in more.items() if value},
        )
    if rest := edits[_LOGGED:]:
        _log.info(
            "more changes were made together; the audit trail has all of them",
            more=len(rest),
            by=", ".join(dict.fromkeys(change.by for change in rest)),
            first_change=rest[0].id,
            last_change=rest[-1].id,
        )


def cleared_lines(cleared: Cleared) -> list[str]:
    """Say what a reset cleared, a line each."""
    if not cleared.limiters:
        return ["nothing, since nobody has asked for it yet or it is not limited now"]
    what = (
        (cleared.limiters, "{} limiter{} full again"),
        (cleared.debt_messages, "a debt of {} messages or requests"),
        (cleared.debt_bytes, "a debt of {} bytes"),
        (cleared.open_breakers, "{} open breaker{}"),
        (cleared.shares, "{} fair share{}"),
    )
    return [text.format(number(amount), "s" * (amount != 1)) for amount, text in what if amount]


def purged_lines(purged: Purged) -> list[str]:
    """Say what a purge refused and dropped, a line each."""
    what = ((purged.refused, "{} message{} refused"), (purged.dropped, "{} message{} dropped"))
    said = [text.format(amount, "s" * (amount != 1)) for amount, text in what if amount]
    return said or ["nothing, since nothing of it was put aside"]
