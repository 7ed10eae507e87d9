"""Samples the data path, joins the samples with the limits, and answers queries from the last sample.

Samples are taken every second while a client is watching, and otherwise every five seconds, for the history.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import structlog
import trio

from admin.edits.model import ALL_KINDS, Change, LimitEntry, MissingError
from admin.edits.service import EditService
from admin.stats.connections import ConnectionStats
from admin.stats.health import Health
from admin.stats.rows import (
    FILTERED,
    NS_PER_S,
    POINT_S,
    WINDOW_S,
    Query,
    RowStats,
    Steps,
    Window,
    in_alphabet,
    part_in_order,
)
from admin.wire import BypassCount, Bypassed, LimitPage, Rates, Row
from limiter.rules.rule_set import RuleSet
from proxy.common.clock import Clock
from proxy.common.threads import from_loop, on_thread
from proxy.control import DataPath
from proxy.stats.snapshot import Direction, ResourceState, Snapshot

_log = structlog.get_logger(__name__)

_TICK_S: Final = 1.0
_TICK_NS: Final = NS_PER_S
_IDLE_NS: Final = 5 * NS_PER_S
#: After a request, a client counts as watching for this long.
_WATCHED_NS: Final = 10 * NS_PER_S
_WINDOW_NS: Final = WINDOW_S * NS_PER_S
_MINUTE_NS: Final = 60 * NS_PER_S
#: Usage is added up by seconds of the monotonic clock, so take samples right after a second ends.
_AFTER_NS: Final = NS_PER_S // 200
#: A sample covers the resources that were active since the last sample or within the window, because their usage still
#: changes. Every ten seconds, it covers the last minute. Every ten minutes, it covers everything, so that rows of
#: forgotten resources can be removed.
_MARGIN_NS: Final = _WINDOW_NS + NS_PER_S
_MINUTE_EVERY_NS: Final = 10 * NS_PER_S
_ALL_EVERY_NS: Final = 600 * NS_PER_S
_MAX_PAGES: Final = 64
_MAX_CHANGES: Final = 256
_PROBE_S: Final = 5.0
#: A late sample must not delay a step of the history or extend the window.
_HALF_TICK_NS: Final = _TICK_NS // 2
_EVER: Final = datetime.max.replace(tzinfo=UTC)


class _Reading(NamedTuple):
    at_ns: int
    bypassed: int
    bytes: Mapping[Direction, int]


class LiveStats:
    def __init__(self, data_path: DataPath, edits: EditService, health: Health, clock: Clock | None = None) -> None:
        self._data_path, self._edits, self._health = data_path, edits, health
        self.clock = clock or Clock()
        self.connections = ConnectionStats(data_path, self.clock)
        self.total = RowStats("", "")
        self.steps = Steps()
        self._snapshot: Snapshot | None = None
        self._readings: deque[_Reading] = deque()
        #: All rules, the rules that apply now, and the time until which they apply.
        self._in_force: tuple[RuleSet, RuleSet, datetime] | None = None
        self._point_ns = 0
        self._rows: dict[tuple[str, str], RowStats] = {}
        self._by_name: list[RowStats] = []
        self._joined: Sequence[LimitEntry] | None = None
        self._pages: dict[tuple[Query, str], LimitPage] = {}
        self._totals: Mapping[str, int] = {}
        # Held while rows are used, also on threads.
        self._lock = trio.Lock()
        self._sampled_ns = self._minute_ns = self._all_ns = 0
        self._window = Window(0, 0)
        self._watched_ns: int | None = None
        self._ticked = trio.Event()
        self._changes: deque[Change] = deque(maxlen=_MAX_CHANGES)
        self.changed = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take samples until cancelled. The task reports that it has started after the first sample."""
        await self._try_sample()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_changes)
            nursery.start_soon(self._probe)
            task_status.started()
            while True:
                await trio.sleep(_TICK_S - (self.clock.now_ns() - _AFTER_NS) % NS_PER_S / NS_PER_S)
                if self._is_watched or self.clock.now_ns() - self._sampled_ns >= _IDLE_NS:
                    await self._try_sample()
                ticked, self._ticked = self._ticked, trio.Event()
                ticked.set()

    async def next_tick(self) -> None:
        """Wait for the next tick. While clients call this, samples are taken every second."""
        self._watched_ns = self.clock.now_ns()
        await self._ticked.wait()

    def changes_since(self, seen: int) -> Sequence[Change]:
        """Return the changes after the first ``seen`` ones. Only the last few hundred are kept."""
        new = min(self.changed - seen, len(self._changes))
        return list(self._changes)[-new:] if new > 0 else []

    async def fresh(self) -> Snapshot:
        """Return the last snapshot if it is recent, otherwise a new one."""
        self._watched_ns = self.clock.now_ns()
        if self._is_stale:
            async with self._lock:
                if self._is_stale:
                    await self._sample()
        if self._snapshot is None:
            raise RuntimeError("the data path has not been sampled yet")
        return self._snapshot

    @property
    def _is_stale(self) -> bool:
        return self._snapshot is None or self.clock.now_ns() - self._sampled_ns > _TICK_NS + _HALF_TICK_NS

    async def query(self, query: Query) -> LimitPage:
        """Return a page of rows. Identical queries against the same sample get the same cached page."""
        await self.fresh()
        async with self._lock:
            await self._join()
            key = (query, self._edits.etag)
            page = self._pages.get(key)
            if page is None:
                page = await on_thread(self._page, query, self._edits.rule_set, key[1])
                if len(self._pages) < _MAX_PAGES:
                    self._pages[key] = page
            return page

    def _page(self, query: Query, rules: RuleSet, etag: str) -> LimitPage:
        window = self._window
        wanted = [row for row in self._by_name if query.wants(row, window)]
        descending = query.order == "desc"
        part = part_in_order(wanted, query.key(rules, window), query.offset, query.limit, descending=descending)
        if not self._totals:
            self._totals = {
                "rows": len(self._by_name),
                **{name: sum(passes(row, window) for row in self._by_name) for name, passes in FILTERED.items()},
            }
        entries = from_loop((row, row.entry or self._limit_of(row)) for row in part)
        return LimitPage(
            rows=tuple(self._shown(row, entry, history=query.history) for row, entry in entries),
            total=len(wanted),
            offset=query.offset,
            limit=query.limit,
            totals=self._totals,
            kinds=tuple(switch.kind for switch in self._edits.switches() if switch.kind != ALL_KINDS),
            sampled_at=self.clock.iso_of(self._sampled_ns),
            rule_set_version=rules.version,
            etag=etag,
        )

    def _shown(self, row: RowStats, entry: LimitEntry, *, history: bool) -> Row:
        live = row.figures(self.clock, self._window, entry.rule)
        return row.row(entry, live, row.history(self.steps) if history else None)

    def _limit_of(self, row: RowStats) -> LimitEntry:
        try:
            return self._edits.limit(row.kind, row.name)
        except MissingError:
            # No limit can have this name, or its kind no longer exists.
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

    def rates(self) -> Rates:
        messages, requests = self.total.rates(self._window)
        started = next((each for each in self._readings if each.at_ns >= self._window.start_ns), None)
        if started is None:
            return Rates()
        return Rates(
            messages_per_s=messages,
            requests_per_s=requests,
            bytes_per_s={
                peer: round((now - started.bytes.get(peer, 0)) / self._window.seconds, 1)
                for peer, now in self._readings[-1].bytes.items()
            },
        )

    def bypassed(self, snapshot: Snapshot) -> Bypassed:
        counts = snapshot.bypassed.items()
        by = tuple(BypassCount(handler, reason, count) for (handler, reason), count in counts if count)
        first, last = self._readings[0], self._readings[-1]
        seconds = min(max((last.at_ns - first.at_ns) / NS_PER_S, 1.0), 60.0)
        total = sum(each.total for each in by)
        return Bypassed(total, round((total - first.bypassed) / seconds, 2), by)

    async def sample(self) -> None:
        async with self._lock:
            await self._sample()

    async def _sample(self) -> None:
        now_ns, first = self.clock.now_ns(), self._snapshot is None
        readings = self._readings
        before = [each.at_ns for each in readings if now_ns - each.at_ns > _WINDOW_NS - _HALF_TICK_NS]
        window = Window(before[-1] if before else readings[0].at_ns if readings else now_ns, now_ns)
        snapshot = await self._data_path.snapshot(whole=False)
        totals = await self._data_path.totals()
        await self._join()
        since_ns = self._since_ns(now_ns)
        await on_thread(self._sample_rows, since_ns, window, first)
        self.total.sample(ResourceState(kind="", name="", counts=totals), window, is_new=False)
        readings.append(_Reading(now_ns, sum(snapshot.bypassed.values()), dict(snapshot.bytes_total)))
        # Keep one reading that is at least a minute old.
        while len(readings) > 1 and now_ns - readings[1].at_ns >= _MINUTE_NS:
            readings.popleft()
        self._snapshot, self._sampled_ns, self._window = snapshot, now_ns, window
        self._forget_pages()
        if first:
            self._point_ns, self.steps = now_ns, Steps(self.clock.iso_of(now_ns))
        elif now_ns - self._point_ns >= POINT_S * NS_PER_S - _HALF_TICK_NS:
            await on_thread(self._write_points, now_ns, self._rules_in_force())
        await self.connections.keep_sampling()

    def _since_ns(self, now_ns: int) -> int:
        if not self._all_ns or now_ns - self._all_ns >= _ALL_EVERY_NS:
            self._all_ns = self._minute_ns = now_ns
            return 0
        back_ns = now_ns - self._sampled_ns + _MARGIN_NS
        if now_ns - self._minute_ns >= _MINUTE_EVERY_NS:
            self._minute_ns = now_ns
            back_ns = max(back_ns, _MINUTE_NS + NS_PER_S)
        return max(now_ns - back_ns, 1)

    def _sample_rows(self, since_ns: int, window: Window, first: bool) -> None:  # noqa: FBT001 - passed by on_thread
        seen: set[RowStats] = set()
        for state in self._data_path.resources(since_ns):
            row = self._rows.get((state.kind, state.name)) or self._new_row(state.kind, state.name)
            row.sample(state, window, is_new=not first)
            seen.add(row)
        if not since_ns:
            for row in [each for each in self._by_name if each not in seen]:
                row.forget(window)
                if row.entry is None:
                    self._drop(row)

    def _write_points(self, now_ns: int, rules: RuleSet) -> None:
        point = self.steps.written
        for row in (*self._rows.values(), self.total):
            row.write_point(point)
        self.steps.add((now_ns - self._point_ns) / NS_PER_S, rules, self.clock.iso_of(now_ns))
        self._point_ns = now_ns

    def _rules_in_force(self) -> RuleSet:
        rules, now = self._edits.rule_set, self.clock.utc()
        if self._in_force is None or self._in_force[0] is not rules or now >= self._in_force[2]:
            self._in_force = (rules, rules.at(now), rules.next_change(now) or _EVER)
        return self._in_force[1]

    def _new_row(self, kind: str, name: str) -> RowStats:
        row = self._rows[kind, name] = RowStats(kind, name)
        insort(self._by_name, row, key=in_alphabet)
        return row

    def _drop(self, row: RowStats) -> None:
        del self._rows[row.kind, row.name]
        del self._by_name[bisect_left(self._by_name, in_alphabet(row), key=in_alphabet)]

    async def _join(self) -> None:
        """Update which rows have a rule of their own. The caller must hold ``_lock``."""
        entries = self._edits.limits()
        if entries is not self._joined:
            await on_thread(self._join_rows, entries)
            self._joined = entries
            self._forget_pages()

    def _forget_pages(self) -> None:
        self._pages.clear()
        self._totals = {}

    def _join_rows(self, entries: Sequence[LimitEntry]) -> None:
        own: set[RowStats] = set()
        for entry in entries:
            row = self._rows.get((entry.kind, entry.name)) or self._new_row(entry.kind, entry.name)
            row.entry = entry
            own.add(row)
        for row in [each for each in self._by_name if each.entry is not None and each not in own]:
            row.entry = None
            if row.state is None:
                self._drop(row)

    @property
    def _is_watched(self) -> bool:
        return self._watched_ns is not None and self.clock.now_ns() - self._watched_ns < _WATCHED_NS

    async def _try_sample(self) -> None:
        try:
            await self.sample()
        except Exception as error:  # noqa: BLE001 - logged: a bug here must not stop the data path
            _log.exception("sampling failed; the admin page shows outdated figures", error=repr(error))

    async def _follow_changes(self) -> None:
        with self._edits.changes() as changes:
            async for change in changes:
                self._changes.append(change)
                self.changed += 1

    async def _probe(self) -> None:
        while True:
            if self._is_watched:
                await self._health.listeners()
            await trio.sleep(_PROBE_S)
