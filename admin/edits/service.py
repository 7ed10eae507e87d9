"""Where live edits are handed in: one task that puts them in force, and everything that is asked of them.

Edits that come while others are being written down wait and are then taken together: each is checked against what
those before it leave, all are written with one flush, the data path takes one rule set, and only then is anybody
answered. What fails up to the flush has changed nothing. Should the data path then not take the rule set, whoever
handed the edits in gets an error and they are not in force; but they are written down, stand after a restart, and the
log names them.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import msgspec
import structlog
import trio

from admin.common.clock import utc_now
from admin.common.disk import words_for
from admin.common.numbers import number
from admin.config.rule_fields import RuleReader, Target
from admin.config.rulebook import Rulebook
from admin.edits.interface import LiveLimits
from admin.edits.journal import Record
from admin.edits.model import (
    MAX_REASON,
    SWITCHES,
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
    is_over,
)
from admin.edits.state import State
from admin.edits.store import Store
from admin.edits.transaction import Mark, Transaction
from admin.edits.wording import fields, sides, target
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.control import Cleared

#: So many changes can one be behind.
_BEHIND: Final = 1_024


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


#: Jobs that may wait; more have to wait to be able to wait.
_QUEUED: Final = 1_024
#: So many edits are written down together at most, so that the first is not kept waiting by the last.
_GROUP_EDITS: Final = 1_024


# What is handed in and waits for its turn, and which of it is done together.
@dataclass(slots=True, eq=False)
class Job:
    """Something to do in its turn.

    Attributes:
        stage: does it on a staging.
        edits: how many edits it is, about.
        dry_run: all of it is taken back.
        durable: whether it needs the disk.
        rulebook: the configuration that takes the place of the one in force; such a job is done alone.
        committed: called once it holds, whether or not anybody still waits for it.
    """

    stage: Callable[[Transaction], Awaitable[None]]
    edits: int
    dry_run: bool
    durable: bool
    rulebook: Rulebook | None = None
    committed: Callable[[], None] | None = None
    changes: tuple[Change, ...] = ()
    error: Exception | None = None
    done: trio.Event = field(default_factory=trio.Event)

    async def stage_on(self, staging: Transaction) -> None:
        """Do it on a staging; a failure is kept for whoever handed it in, and leaves nothing."""
        mark = staging.mark()
        self.error, self.changes = None, ()
        try:
            await self.stage(staging)
            if self.dry_run:
                # Of what is done it is told when all that is done together is known.
                await staging.tell_rules(mark)
        except Exception as error:  # noqa: BLE001 - it is raised where the job was handed in
            self.error = error
            staging.back_to(mark)
            return
        self.changes = tuple(staging.changes[mark.changes :])
        if self.dry_run:
            staging.back_to(mark)
            self.changes = tuple(_unnumbered(change) for change in self.changes)


class Jobs:
    """The jobs that wait, in the order in which they were handed in."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Job](_QUEUED)
        self._waiting: Job | None = None

    async def do(self, job: Job) -> tuple[Change, ...]:
        """Hand in a job and wait until it is done; raises what it failed with."""
        await self._send.send(job)
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return job.changes

    async def next(self, sleep_s: float) -> list[Job]:
        """Wait for jobs, at most for so long; returns those that are done together."""
        jobs: list[Job] = []
        edits = 0
        first, self._waiting = self._waiting, None
        if first is None:
            with trio.move_on_after(sleep_s):
                first = await self._receive.receive()
        while first is not None:
            alone = first.rulebook is not None
            if jobs and (alone or edits + first.edits > _GROUP_EDITS):
                self._waiting = first
                break
            jobs.append(first)
            edits += first.edits
            if alone:
                break
            try:
                first = self._receive.receive_nowait()
            except trio.WouldBlock:
                break
        return jobs


def _unnumbered(change: Change) -> Change:
    return msgspec.structs.replace(change, id=0)


_log = structlog.get_logger(__name__)

Clock = Callable[[], datetime]

#: The wall clock can be set: it is looked at again after so long.
_LONGEST_SLEEP_S: Final = 30.0
#: When nothing can be done about something that has ended, it is tried again after so long.
_AFTER_FAILURE_S: Final = 1.0
#: Of changes that are made together, so many have a line of the log each.
_LOGGED: Final = 20
#: So many changes are remembered, to see what was changed while the audit trail was searched.
_RECENT: Final = 4_096


class EditService(LiveLimits):
    """The limits in force.

    Args:
        rulebook: the configuration's rules.
        store: where edits are kept; what stands there is in force from the start.
        clock: the wall clock.

    Attributes:
        reloader: reads the configuration again, as ``reload`` is to; None where there is nothing to read.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        store: Store,
        *,
        clock: Clock = utc_now,
    ) -> None:
        self.reloader: Callable[[Author, bool], Awaitable[ReloadReport]] | None = None
        self._store = store
        self._clock = clock
        self._apply: Callable[[RuleSet], Awaitable[None]] | None = None
        self._reset: Callable[[str, str], Awaitable[Cleared]] | None = None
        now = clock()
        # What ended while nobody was looking never comes back into force, and is told of once the task runs.
        self._over = {path: each for path, each in store.standings.items() if is_over(each, now)}
        standings = {path: each.under if path in self._over else each for path, each in store.standings.items()}
        self._state = State(rulebook, {path: each for path, each in standings.items() if each is not None}, now)
        self._next_id = store.last_id + 1
        self._recent: deque[tuple[int, str]] = deque(maxlen=_RECENT)
        self._followers: WeakSet[Follower] = WeakSet()
        self._jobs = Jobs()
        self._least_sleep_s = 0.0

    # --- reading

    @property
    def reader(self) -> RuleReader:
        """What rules are read with; it knows the kinds that there are."""
        return self._state.rulebook.reader

    @property
    def rule_set(self) -> RuleSet:
        """The configuration's rules with the standing edits over them."""
        return self._state.rule_set

    @property
    def etag(self) -> str:
        """Of all limits and switches together."""
        return self._state.etag(self._clock())

    @property
    def persistence(self) -> Persistence:
        """Where edits are kept, and what is wrong with that."""
        directory = self._store.directory
        return Persistence(
            directory=None if directory is None else str(directory),
            error=self._store.error,
            set_aside=self._store.set_aside,
        )

    def limit(self, kind: str, name: str) -> LimitEntry:
        """Return the limit of one name or pattern, with a rule of its own or not.

        Raises:
            NotFoundError: there is no such kind, or the name is none.
        """
        return self._state.limit(kind, name, self._clock())

    def limits(self) -> Sequence[LimitEntry]:
        """Return all that have a rule of their own."""
        return self._state.limits(self._clock())

    def switches(self) -> Sequence[SwitchEntry]:
        """Return the switch for all, then that of each kind."""
        return self._state.switches()

    def edited_rules(self) -> list[Rule]:
        """Return the rules of the edits that stand."""
        return list(self._state.edits.values())

    def drift(self) -> list[str]:
        """Say of each edit that stands what it makes of the configuration, a line each."""
        return self._state.drift()

    def idle(self) -> list[str]:
        """Name the edits that stand and do nothing, as the configuration has no place for them."""
        return [
            f"the edit of {path.partition('/')[2].replace('/', ' ', 1)} stands and does nothing: {why}"
            for path, why in self._state.idle.items()
        ]

    def warnings(self) -> list[str]:
        """Say what an operator ought to look at: edits that do nothing, a disk that takes none."""
        found = self.idle()
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
        """Do all the edits or none of them; see ``LiveLimits``."""
        durable = not volatile and self._store.directory is not None

        async def stage(staging: Transaction) -> None:
            # What is staged already will have changed the tag once it is in force.
            if if_match and (staging.changes or if_match != self.etag):
                raise StaleError(0, self.etag, "something has been changed since")
            problems: list[EditError] = []
            for index, edit in enumerate(edits):
                try:
                    staging.edit(index, edit, author, durable=durable)
                except EditError as error:
                    problems.append(error)
                await staging.pace.keep()
            if problems:
                raise EditError(tuple(each for error in problems for each in error.problems))

        return await self._jobs.do(Job(stage, len(edits), dry_run, durable))

    async def revert(
        self, change_id: int, author: Author, *, reason: str = "", force: bool = False, dry_run: bool = False
    ) -> Change:
        """Undo one change; see ``LiveLimits``."""
        while True:
            seen = self._next_id - 1
            change, later = await trio.to_thread.run_sync(self._find, change_id)
            # What was changed since the audit trail was searched is among the recent, unless they were too many.
            if self._next_id - 1 - seen < _RECENT:
                break
        if change is None:
            raise NotFoundError(f"there is no change {change_id}; it may be too old to be known")
        if not change.target.startswith(("limits/", "switches/")) or change.action in {"expire", "reset"}:
            raise NotFoundError(f"nothing of change {change_id} can be undone")

        async def stage(staging: Transaction) -> None:
            await trio.lowlevel.checkpoint()
            after = max([later, *(id_ for id_, path in self._recent if path == change.target and id_ > change_id)])
            after = max([after, *(each.id for each in staging.changes if each.target == change.target)])
            if after and not force:
                raise ConflictError(
                    f"change {after} changed {change.target} since; with force (--force) it is reverted all the same"
                )
            staging.revert(change, author, reason)

        (done,) = await self._jobs.do(Job(stage, 1, dry_run, change.durable and self._store.directory is not None))
        return done

    async def reset(self, kind: str, name: str, author: Author, *, reason: str = "") -> Change:
        """Let the limiters of a limit begin anew; see ``LiveLimits``."""
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

        # What was cleared is told of even if the disk does not take it now.
        async def stage(staging: Transaction) -> None:
            await trio.lowlevel.checkpoint()
            staging.reset(target, author, details, reason=reason, durable=self._store.directory is not None)

        (change,) = await self._jobs.do(Job(stage, 1, dry_run=False, durable=False))
        return change

    async def reload(self, author: Author, *, dry_run: bool = False) -> ReloadReport:
        """Read the configuration again; see ``LiveLimits``."""
        if self.reloader is None:
            raise NotFoundError("there is no configuration to read again")
        return await self.reloader(author, dry_run)

    async def put_rulebook(
        self, rulebook: Rulebook, author: Author, details: Sequence[str], committed: Callable[[], None] | None = None
    ) -> Change:
        """Put another configuration under the edits that stand.

        It needs no disk: the configuration is on one. What the audit trail cannot be told now it is told later.

        Args:
            rulebook: the configuration's rules.
            author: who asks.
            details: what changed, for the audit trail.
            committed: called once it holds, even if the caller is cancelled meanwhile.
        """

        async def stage(staging: Transaction) -> None:
            await trio.lowlevel.checkpoint()
            staging.note("reload", "configuration", author, details, durable=durable)

        durable = self._store.directory is not None
        job = Job(stage, 1, dry_run=False, durable=False, rulebook=rulebook, committed=committed)
        (change,) = await self._jobs.do(job)
        return change

    async def audit(
        self, *, before: int | None = None, target: str = "", by: str = "", limit: int = 100
    ) -> tuple[Change, ...]:
        """Return changes, the latest first."""
        search = partial(self._store.audit, before=before, target=target, by=by, limit=limit)
        try:
            return await trio.to_thread.run_sync(search)
        except OSError as error:
            raise StoreError(f"the audit trail cannot be read: {words_for(error)}") from None

    def changes(self) -> AsyncIterator[Change]:
        """Follow changes as they are committed; a follower that does not keep up loses the oldest."""
        follower = Follower()
        self._followers.add(follower)
        return follower

    # --- the task

    async def run(
        self,
        apply: Callable[[RuleSet], Awaitable[None]],
        reset: Callable[[str, str], Awaitable[Cleared]] | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Take what is handed in until cancelled.

        Args:
            apply: puts a rule set in force.
            reset: lets the limiters of a kind and name begin anew.
            task_status: reports that changes are taken.
        """
        self._apply, self._reset = apply, reset
        task_status.started()
        jobs: list[Job] = []
        while True:
            with trio.CancelScope(shield=True):
                # The first time there are none: what ended while nobody was looking is told of.
                await self._work(jobs)
            jobs = await self._jobs.next(self._sleep_s())

    def _sleep_s(self) -> float:
        """Return how long it is until something that stands ends."""
        end = min(self._state.ends.values(), default=None)
        if end is None:
            return _LONGEST_SLEEP_S
        return min(_LONGEST_SLEEP_S, max(self._least_sleep_s, (end - self._clock()).total_seconds()))

    async def _work(self, jobs: list[Job]) -> None:
        self._least_sleep_s = 0.0
        try:
            error = await self._commit(jobs)
            if error is not None:
                # The disk takes nothing: what does not need it is done without those that do.
                for job in jobs:
                    if job.durable and not job.dry_run and not isinstance(job.error, EditError):
                        job.error = StoreError(error)
                kept = [job for job in jobs if not isinstance(job.error, StoreError)]
                await self._commit(kept, without_disk=True)
        except Exception as error:  # noqa: BLE001 - whatever it was, traffic and later edits go on
            _log.exception("a group of edits failed", error=repr(error))
            self._least_sleep_s = _AFTER_FAILURE_S
            for job in jobs:
                job.error = job.error or error
        finally:
            for job in jobs:
                job.done.set()

    async def _commit(self, jobs: list[Job], *, without_disk: bool = False) -> str | None:
        """Do jobs together; returns why the disk does not take them, or None."""
        now = self._clock()
        self._state.refresh(now)
        staging = Transaction(self._state, self._store.standings, self._next_id, now)
        for path, standing in self._over.items():
            staging.tell_end(path, standing)
        for path in [path for path, end in self._state.ends.items() if end <= now]:
            staging.expire(path)
        state: State | None = None
        for job in jobs:
            if job.rulebook is not None:
                state = await self._with_rulebook(job, staging, now)
            else:
                await job.stage_on(staging)
        if not staging.changes:
            await self._heal()
            return None
        await _tell_rules(staging, jobs)
        durable = tuple(change for change in staging.changes if change.durable)
        passing = tuple(change for change in staging.changes if not change.durable)
        record = Record(staging.written, durable)
        if without_disk:
            self._store.owe(record)
            record = Record()
        if state is None:
            rule_set, committed = await staging.ready()
        else:
            rule_set, committed = state.rule_set, partial(_same, state)
        try:
            await trio.to_thread.run_sync(self._store.commit, record, passing)
        except OSError as error:
            return _refusal(error)
        # Written down, they are taken, whatever goes wrong from here on.
        self._next_id += len(staging.changes)
        assert self._apply is not None  # noqa: S101 - only ``run`` comes here
        try:
            await self._apply(rule_set)
        except Exception:
            if durable:
                what = "edits are written down and not in force: the data path did not take them; a restart will"
                _log.error(what, changes=[change.id for change in durable])
            raise
        self._state = committed()
        self._over = {}
        self._publish(staging.changes)
        for job in jobs:
            if job.committed is not None and job.changes and not job.dry_run:
                job.committed()
        return None

    async def _with_rulebook(self, job: Job, staging: Transaction, now: datetime) -> State | None:
        """Return the state with the configuration of a job, which is the only one; None of a dry run."""
        await job.stage_on(staging)
        if job.dry_run or job.error is not None:
            return None
        standings = {**self._state.standings, **staging.standings}
        standing = {path: each for path, each in standings.items() if each is not None}
        assert job.rulebook is not None  # noqa: S101 - asked for by who calls
        return await trio.to_thread.run_sync(State, job.rulebook, standing, now, self._state.rule_set)

    async def _heal(self) -> None:
        """Write down what is owed if the disk takes it again."""
        if self._store.error is not None and self._store.directory is not None:
            with suppress(OSError):
                await trio.to_thread.run_sync(self._store.commit, Record(), ())

    def _publish(self, changes: Sequence[Change]) -> None:
        self._recent.extend((change.id, change.target) for change in changes)
        _log_changes(changes)
        for follower in list(self._followers):
            follower.put(changes)

    def _find(self, change_id: int) -> tuple[Change | None, int]:
        """Return a change, and the id of the latest later one of the same target; 0 if there is none."""
        latest: dict[str, int] = {}
        for change in self._store.backwards(change_id):
            if change.id == change_id:
                return change, latest.get(change.target, 0)
            latest.setdefault(change.target, change.id)
        return None, 0


def _log_changes(changes: Sequence[Change]) -> None:
    """Write a line for each of the first changes, and one for all the others."""
    edits = [change for change in changes if change.action != "reload"]
    for change in edits[:_LOGGED]:
        before, after = sides(change)
        event = "switch changed" if change.target.startswith(SWITCHES) else "limit changed"
        besides: dict[str, Any] = {
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
            **{key: value for key, value in besides.items() if value},
        )
    if more := edits[_LOGGED:]:
        _log.info(
            "more changes were made together; the audit trail has all of them",
            more=len(more),
            by=", ".join(dict.fromkeys(change.by for change in more)),
            first_change=more[0].id,
            last_change=more[-1].id,
        )


async def _tell_rules(staging: Transaction, jobs: Sequence[Job]) -> None:
    """Complete all that was done, also where it is told to whoever handed it in."""
    await staging.tell_rules(Mark(0, 0))
    told = {change.id: change for change in staging.changes}
    for job in jobs:
        if not job.dry_run:
            job.changes = tuple(told[change.id] for change in job.changes)


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


def _same(state: State) -> State:
    return state


def _refusal(error: OSError) -> str:
    return (
        f"the state directory does not take the edit: {words_for(error)}; nothing was changed. With volatile=1 it holds"
        " until the restart"
    )
