"""The live statistics: samples the data path, joins it with the limits, and answers queries from the last sample.

A sample is taken once a second while a client watches, and otherwise every five, for the history. Edits show at once.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import structlog
import trio

from admin import wire
from admin.common.clock import Clock
from admin.edits.model import Change, LimitEntry, MissingError
from admin.edits.service import EditService
from admin.stats.connections import ConnectionStats
from admin.stats.health import Health
from admin.stats.rows import (
    NO_ENDS,
    NOTHING,
    NS_PER_S,
    POINT_S,
    WINDOW_S,
    Counts,
    Ends,
    Query,
    Ring,
    RowStats,
    Steps,
    Window,
    counts_of,
    ends_of,
    in_alphabet,
    part_in_order,
    rates,
    sort_key,
    wanted,
)
from limiter.rules.rule_set import RuleSet
from proxy.common.threads import from_loop, on_thread
from proxy.control import DataPath
from proxy.stats.snapshot import BrokerReach, Direction, ResourceCounts, Snapshot

_MINUTE_NS: Final = 60_000_000_000
_EVER: Final = datetime.max.replace(tzinfo=UTC)


class _Sampled(NamedTuple):
    at_ns: int
    messages: Counts
    requests: Counts
    bytes: Mapping[Direction, int]


class Traffic:
    """What the snapshots add up to."""

    def __init__(self) -> None:
        self.messages: Counts = NOTHING
        self.requests: Counts = NOTHING
        self._point_start: Ends = NO_ENDS
        #: From the beginning of the window on.
        self._sampled: deque[_Sampled] = deque()
        self._window = Window(0, 0)
        self._bypassed: deque[tuple[int, int]] = deque()
        self._ring = Ring()

    def sample(self, snapshot: Snapshot, totals: ResourceCounts, window: Window) -> None:
        """Take over what the data path says.

        Args:
            snapshot: of now; need not be whole.
            totals: of all resources.
            window: what rates are of from now on.
        """
        now_ns = window.end_ns
        self.messages, self.requests = counts_of(totals.messages), counts_of(totals.requests)
        if not self._sampled:
            self._point_start = ends_of(self.messages)
        self._sampled.append(_Sampled(now_ns, self.messages, self.requests, dict(snapshot.bytes_total)))
        while self._sampled[0].at_ns < window.start_ns:
            self._sampled.popleft()
        self._window = window
        self._bypassed.append((now_ns, sum(snapshot.bypassed.values())))
        # The oldest one is what lies a minute back.
        while len(self._bypassed) > 1 and now_ns - self._bypassed[1][0] >= _MINUTE_NS:
            self._bypassed.popleft()

    def write_point(self, point: int) -> None:
        """Write the next point of the history; ``point`` of them were before."""
        now = ends_of(self.messages)
        self._ring.write(point, self._point_start, now)
        self._point_start = now

    def history(self, steps: Steps) -> wire.History:
        """Return the messages of the last minutes."""
        return steps.history(self._ring, self._point_start)

    def rates(self) -> wire.Rates:
        """Return the rates of the window."""
        if not self._sampled:
            return wire.Rates(messages_per_s=wire.Verdicts(), requests_per_s=wire.Verdicts(), bytes_per_s={})
        before, now, seconds = self._sampled[0], self._sampled[-1], self._window.seconds
        return wire.Rates(
            messages_per_s=rates(before.messages, now.messages, seconds),
            requests_per_s=rates(before.requests, now.requests, seconds),
            bytes_per_s={
                peer: round((total - before.bytes.get(peer, 0)) / seconds, 1) for peer, total in now.bytes.items()
            },
        )

    def bypassed(self, snapshot: Snapshot) -> wire.Bypassed:
        """Return what passed since a handler was skipped."""
        total = sum(snapshot.bypassed.values())
        at_ns, before = self._bypassed[0] if self._bypassed else (0, total)
        last_ns = self._bypassed[-1][0] if self._bypassed else 0
        seconds = min(max((last_ns - at_ns) / 1e9, 1.0), 60.0)
        by = tuple(wire.BypassCount(handler, reason, n) for (handler, reason), n in snapshot.bypassed.items())
        return wire.Bypassed(total, round((total - before) / seconds, 2), by)


_log = structlog.get_logger(__name__)

TICK_S: Final = 1.0
_IDLE_NS: Final = 5 * NS_PER_S
#: Somebody watches who has asked for something within this time.
_WATCHED_NS: Final = 10 * NS_PER_S
_WINDOW_NS: Final = WINDOW_S * NS_PER_S
#: Samples are taken right after a second of the monotonic clock has ended, as what is used is summed by these seconds.
_AFTER_NS: Final = NS_PER_S // 200
#: So often all of the last minute is looked at, whose usage changes without anything coming; else a sample looks at
#: what came since the one before, and this much more: the window's usage changes until the second has ended in which
#: what came last has left it.
_WHOLE_EVERY_NS: Final = 10 * NS_PER_S
_MARGIN_NS: Final = _WINDOW_NS + NS_PER_S
_SINCE_ALL_NS: Final = 61 * NS_PER_S
#: When there is no room, a row without a rule of its own is given up after this time without a request.
_FORGET_NS: Final = 900 * NS_PER_S
MAX_ROWS: Final = 50_000
"""Rows at most; names that come when there are so many are left out."""
_MAX_PAGES: Final = 64
_MAX_CHANGES: Final = 256
_PROBE_S: Final = 5.0
#: Samples are not punctual; a point is not put off for that, and a window not made longer.
_HALF_TICK_NS: Final = round(TICK_S * NS_PER_S / 2)
_POINT_NS: Final = POINT_S * NS_PER_S - _HALF_TICK_NS


class LiveStats:
    """What every limit and every connection does.

    Args:
        data_path: what is sampled.
        live: the limits in force.
        health: asked whether brokers answer.
        clock: tells the time.
    """

    def __init__(self, data_path: DataPath, live: EditService, health: Health, clock: Clock | None = None) -> None:
        self._data_path, self._live, self._health = data_path, live, health
        self.clock = clock or Clock()
        self.connections = ConnectionStats(data_path, self.clock)
        self.traffic = Traffic()
        #: By listener; empty until brokers have been tried.
        self.reaches: dict[str, BrokerReach] = {}
        self.snapshot: Snapshot | None = None
        self.steps = Steps()
        #: The rules as they are written, as they hold now, and until when.
        self._in_force: tuple[RuleSet, RuleSet, datetime] | None = None
        self._point_ns = 0
        self._rows: dict[tuple[str, str], RowStats] = {}
        #: The same in the order of names.
        self._by_name: list[RowStats] = []
        #: Rows were given up: what comes new may have been there before.
        self._forgot = False
        self._joined: Sequence[LimitEntry] | None = None
        self._joins = 0
        #: Pages and totals, with the state of the limits, and what they were made of: sample, join and etag.
        self._pages: dict[Query, wire.LimitPage] = {}
        self._totals: wire.RowTotals | None = None
        self._pages_stamp: tuple[int, int, str] | None = None
        # Whoever has it may touch the rows, on a thread as well.
        self._lock = trio.Lock()
        self._samples = 0
        self._sampled_ns = self._whole_ns = 0
        #: What figures are of, and when samples were taken since its beginning.
        self._window = Window(0, 0)
        self._times: deque[int] = deque()
        self._watched_ns: int | None = None
        self._ticked = trio.Event()
        self._changes: deque[Change] = deque(maxlen=_MAX_CHANGES)
        self._changed = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sample until cancelled; started after the first sample."""
        await self._try_sample()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_changes)
            nursery.start_soon(self._probe)
            task_status.started()
            while True:
                await trio.sleep(TICK_S - (self.clock.now_ns() - _AFTER_NS) % NS_PER_S / NS_PER_S)
                if self._is_watched or self.clock.now_ns() - self._sampled_ns >= _IDLE_NS:
                    await self._try_sample()
                self._tick()

    def watch(self) -> None:
        """Say that somebody looks: figures are taken every second for a while."""
        self._watched_ns = self.clock.now_ns()

    async def next_tick(self) -> None:
        """Wait for the next look; counts as watching."""
        self.watch()
        await self._ticked.wait()

    @property
    def changed(self) -> int:
        """How many changes have been seen since the start."""
        return self._changed

    def changes_since(self, seen: int) -> Sequence[Change]:
        """Return the changes after the first ``seen`` ones, as far as they are remembered."""
        new = min(self._changed - seen, len(self._changes))
        return [] if new <= 0 else list(self._changes)[-new:]

    async def fresh(self) -> Snapshot:
        """Take a sample if there was none in the last second; return the snapshot of it."""
        self.watch()
        if self._is_stale:
            async with self._lock:
                # Whoever had it before has probably done it.
                if self._is_stale:
                    await self._sample()
        return self._snapshot

    @property
    def _is_stale(self) -> bool:
        return self.snapshot is None or self.clock.now_ns() - self._sampled_ns > 1.5 * TICK_S * NS_PER_S

    async def query(self, query: Query) -> wire.LimitPage:
        """Return some rows of the table; all who ask the same of one sample share a page."""
        await self.fresh()
        async with self._lock:
            await self._join()
            stamp = (self._samples, self._joins, self._live.etag)
            if stamp != self._pages_stamp:
                self._pages_stamp, self._totals = stamp, None
                self._pages.clear()
            page = self._pages.get(query)
            if page is None:
                page = await on_thread(self._page, query, self._live.rule_set)
                if len(self._pages) < _MAX_PAGES:
                    self._pages[query] = page
            return page

    def _page(self, query: Query, rules: RuleSet) -> wire.LimitPage:
        chosen = list(filter(wanted(query, self._window), self._by_name))
        descending = query.order == "desc"
        key = sort_key(query.sort, rules, self._window, descending=descending)
        part = part_in_order(chosen, key, query.offset, query.limit, descending=descending)
        if self._totals is None:
            self._totals = self._count()
        entries = from_loop((row, row.entry or self._limit_of(row)) for row in part)
        rows = tuple(self._shown(row, entry, history=query.history) for row, entry in entries)
        kinds = tuple(switch.kind for switch in self._live.switches() if switch.kind != "all")
        return wire.LimitPage(
            rows=rows,
            total=len(chosen),
            offset=query.offset,
            limit=query.limit,
            totals=self._totals,
            kinds=kinds,
            sampled_at=self.clock.iso_of(self._sampled_ns),
            rule_set_version=rules.version,
            etag=self._pages_stamp[2] if self._pages_stamp else "",
        )

    async def sample(self) -> None:
        """Look at the data path once."""
        async with self._lock:
            await self._sample()

    async def _sample(self) -> None:
        now_ns = self.clock.now_ns()
        first = self.snapshot is None
        elapsed_ns = now_ns - self._sampled_ns
        times = self._times
        while len(times) > 1 and now_ns - times[1] > _WINDOW_NS - _HALF_TICK_NS:
            times.popleft()
        window = Window(times[0] if times else now_ns, now_ns)
        snapshot = await self._data_path.snapshot(whole=False)
        totals = await self._data_path.totals()
        await self._join()
        whole = first or now_ns - self._whole_ns >= _WHOLE_EVERY_NS
        back_ns = max(elapsed_ns + _MARGIN_NS, _SINCE_ALL_NS if whole else 0)
        since_ns = 0 if first else max(now_ns - back_ns, 0)
        await on_thread(self._sample_rows, since_ns, window, whole, first)
        if whole:
            self._whole_ns = now_ns
        self.traffic.sample(snapshot, totals, window)
        self.snapshot, self._sampled_ns, self._window = snapshot, now_ns, window
        times.append(now_ns)
        self._samples += 1
        if first:
            self._point_ns, self.steps.until = now_ns, self.clock.iso_of(now_ns)
        elif now_ns - self._point_ns >= _POINT_NS:
            await on_thread(self._write_points, now_ns, self._rules_in_force())
        await self.connections.keep_sampling()

    @property
    def _is_watched(self) -> bool:
        return self._watched_ns is not None and self.clock.now_ns() - self._watched_ns < _WATCHED_NS

    @property
    def _snapshot(self) -> Snapshot:
        if self.snapshot is None:
            raise RuntimeError("the data path has not been sampled yet")
        return self.snapshot

    async def _try_sample(self) -> None:
        try:
            await self.sample()
        except Exception as error:  # noqa: BLE001 - logged; a bug here must not end the data path
            _log.exception("resources could not be sampled; the page shows older figures", error=repr(error))

    def _tick(self) -> None:
        ticked, self._ticked = self._ticked, trio.Event()
        ticked.set()

    async def _follow_changes(self) -> None:
        with self._live.changes() as changes:
            async for change in changes:
                self._changes.append(change)
                self._changed += 1

    async def _probe(self) -> None:
        while True:
            if self._is_watched or not self.reaches:
                self.reaches = {reach.listener: reach for reach in await self._health.brokers()}
            await trio.sleep(_PROBE_S)

    def _sample_rows(self, since_ns: int, window: Window, whole: bool, first: bool) -> None:  # noqa: FBT001 - passed on by on_thread
        rows = self._rows
        seen: set[RowStats] = set()
        for state in self._data_path.resources(since_ns):
            row = rows.get((state.kind, state.name)) or self._new_row(state.kind, state.name)
            if row is not None:
                if row.seen_ns is None and not first and not self._forgot:
                    row.begin_at_zero()
                row.sample(state, window)
                seen.add(row)
        if whole:
            self._fade_silent(seen, window.end_ns)

    def _fade_silent(self, seen: set[RowStats], now_ns: int) -> None:
        full = len(rows := list(self._rows.values())) >= MAX_ROWS
        for row in rows:
            if row.seen_ns is not None and row not in seen:
                if row.usage:
                    row.fade()
                if row.entry is None and full and now_ns - row.seen_ns > _FORGET_NS:
                    self._drop(row)
                    self._forgot = True

    def _write_points(self, now_ns: int, rules: RuleSet) -> None:
        point = self.steps.written
        for row in self._rows.values():
            row.write_point(point)
        self.traffic.write_point(point)
        seconds = (now_ns - self._point_ns) / NS_PER_S
        self.steps.add(seconds, rules, self.clock.iso_of(now_ns))
        self._point_ns = now_ns

    def _rules_in_force(self) -> RuleSet:
        """Return the rules as they hold now: the same object for as long as they are the same."""
        rules, now = self._live.rule_set, self.clock.utc()
        if self._in_force is None or self._in_force[0] is not rules or now >= self._in_force[2]:
            self._in_force = (rules, rules.at(now), rules.next_change(now) or _EVER)
        return self._in_force[1]

    def _new_row(self, kind: str, name: str, *, own: bool = False) -> RowStats | None:
        if len(self._rows) >= MAX_ROWS and not own:
            return None
        row = self._rows[kind, name] = RowStats(kind, name)
        insort(self._by_name, row, key=in_alphabet)
        return row

    def _drop(self, row: RowStats) -> None:
        del self._rows[row.kind, row.name]
        del self._by_name[bisect_left(self._by_name, in_alphabet(row), key=in_alphabet)]

    async def _join(self) -> None:
        """Bring the rows up to the limits that have rules of their own; with the lock."""
        entries = self._live.limits()
        if entries is not self._joined:
            await on_thread(self._join_rows, entries)
            self._joined = entries
            self._joins += 1

    def _join_rows(self, entries: Sequence[LimitEntry]) -> None:
        own: set[RowStats] = set()
        for entry in entries:
            row = self._rows.get((entry.kind, entry.name)) or self._new_row(entry.kind, entry.name, own=True)
            if row is not None:
                row.entry = entry
                own.add(row)
        for row in list(self._rows.values()):
            if row.entry is not None and row not in own:
                row.entry = None
                if row.seen_ns is None:
                    self._drop(row)

    def _count(self) -> wire.RowTotals:
        rows, window = self._by_name, self._window
        return wire.RowTotals(
            rows=len(rows),
            limited=sum(row.is_limited(window) for row in rows),
            overridden=sum(row.is_edited for row in rows),
            near=sum(row.is_near for row in rows),
            shadowed=sum(row.is_shadowed(window) for row in rows),
        )

    def _shown(self, row: RowStats, entry: LimitEntry, *, history: bool) -> wire.Row:
        live = row.figures(self.clock, self._window, entry.rule)
        return row.row(entry, live, row.history(self.steps) if history else None)

    def _limit_of(self, row: RowStats) -> LimitEntry:
        try:
            return self._live.limit(row.kind, row.name)
        except MissingError:
            # Counted under a name that is none, or of a kind that is no more.
            return LimitEntry(
                kind=row.kind,
                name=row.name,
                limit={},
                limit_text="",
                rule="",
                source="",
                exact=False,
                configured=None,
                edit=None,
                etag="",
            )
