"""What goes into the log next: the running minute, and the batch of records that is being made.

What was taken goes in second by second, batches come out. A fault here costs the one record that could not be made:
it is counted, told once, and all else goes on. Nothing here reads or writes files.
"""

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVarTuple

import structlog

from admin.common.version import sluice_version
from admin.edits.model import Change
from admin.edits.service import EditService
from admin.rejection_log import write_ahead
from admin.rejection_log.aggregate import Aggregate, Traffic, minute_of
from admin.rejection_log.composing import Batch, Composer, LimitsInForce, Lines, line_of
from admin.rejection_log.figures import Figures
from limiter.counting.rejections import ResourceSecond, TrafficSecond
from limiter.rules.resource import Resource
from proxy.common.cooperative import Pace
from proxy.control import DataPath
from proxy.stats.snapshot import Snapshot

_log = structlog.get_logger(__name__)

_DAY_S: Final = 86_400
_EVER: Final = datetime.max.replace(tzinfo=UTC)

_What = TypeVarTuple("_What")


class Ledger:
    """Makes the records of one process.

    Args:
        instance: name of this sidecar.
        run: whose records come first.
        max_resources: told apart in a minute.
        live: the limits in force.
        data_path: asked for what a heartbeat says of it.
        figures: count what could not be made, and what is odd about what was taken.
        now_s: the time of day, in seconds since 1970.
    """

    def __init__(
        self,
        instance: str,
        run: str,
        *,
        max_resources: int,
        live: EditService,
        data_path: DataPath,
        figures: Figures,
        now_s: float,
    ) -> None:
        self._instance = instance
        self._max_resources = max_resources
        self._live = live
        self._data_path = data_path
        self._figures = figures
        self._version = sluice_version()
        #: The kinds of faults that have been told.
        self._told: set[tuple[str, type[Exception]]] = set()
        #: As far as the data path has said it so far.
        self._bypassed: dict[str, int] = {}
        self._limits = LimitsInForce(live.rule_set)
        self._limits_version = -1
        #: The limits hold from one moment until before another.
        self._limits_hold = _EVER, _EVER
        self._limits_day: int | None = None
        #: What happened before has been taken.
        self._taken_s = int(now_s)
        self.begin_run(run, now_s)

    @property
    def run(self) -> str:
        """Whose records are made."""
        return self._composer.run

    def begin_run(self, run: str, now_s: float) -> None:
        """Make the records of another run, with nothing in its minute yet."""
        self._composer = Composer(self._instance, run)
        self._batch = Batch(run=run)
        self._limits_day = None
        self._begin_minute(minute_of(int(now_s)))

    def begin(self, snapshot: Snapshot, now_s: float) -> None:
        """Begin to record: what had been bypassed before is not of this minute."""
        self._bypassed = _bypassed(snapshot)
        self._taken_s = int(now_s)
        self._begin_minute(minute_of(self._taken_s))

    def hand_out(self, file: int) -> Batch:
        """Return what has been made.

        Args:
            file: number of the log file that it goes into.
        """
        commit = write_ahead.Commit(
            covered=self._minute.covered,
            n=self._composer.n,
            file=file,
            other=self._minute.other,
            limiting=self._live.rule_set.enabled,
            lost_records=self._figures.lost.total(),
        )
        batch, self._batch = self._batch, Batch(run=self.run)
        batch.write_ahead.add(line_of(commit))
        return batch

    # --- what happened

    async def add(self, seconds: tuple[TrafficSecond, ...], now_s: float, pace: Pace, *, last: bool = False) -> None:
        """Make records of what was taken.

        Args:
            seconds: that were taken.
            now_s: the time of day, in seconds since 1970.
            pace: kept between any two records.
            last: nothing comes after it: those of the minute are made, too, whatever it lacks.
        """
        self._look_at_limits(now_s)
        for second in seconds:
            try:
                await self._add_second(second, pace)
            except Exception as error:  # noqa: BLE001 - it costs this second
                self.fault("second", error)
        until_s = int(now_s)
        if last:
            self._minute.cover(self._taken_s, until_s + 1)
            self._batch.last = await self._end_minute(pace)
            return
        self._minute.cover(self._taken_s, until_s)
        if minute_of(until_s) != self._minute.at_s:
            await self._end_minute(pace)
            self._begin_minute(minute_of(until_s))
            self._minute.cover(self._taken_s, until_s)
        self._taken_s = until_s

    async def add_limits(self, now_s: float, pace: Pace, *, again: bool = False) -> None:
        """Write how the rules stand, at the start and with each new day; or again."""
        day = int(now_s) // _DAY_S
        if not again and self._limits_day is not None and day <= self._limits_day:
            return
        self._limits_day = day
        self._look_at_limits(now_s)
        for rule, limit in self._limits.of_rules():
            self._record("limit", self._composer.limit, int(now_s), rule, limit)
            await pace.keep()

    def add_change(self, change: Change) -> None:
        """Write what a live change did."""
        self._record("limit_change", self._composer.limit_change, change)

    # --- in parts

    def _look_at_limits(self, now_s: float) -> None:
        """See whether other limits are in force, by a change or by the clock."""
        rules, now = self._live.rule_set, datetime.fromtimestamp(now_s, UTC)
        since, until = self._limits_hold
        if rules.version == self._limits_version and since <= now < until:
            return
        try:
            limits, change = LimitsInForce(rules.at(now)), rules.next_change(now)
        except Exception as error:  # noqa: BLE001 - those that were in force are better than no records
            self.fault("limit", error)
            return
        # A clock that is set back is before what they hold from.
        self._limits, self._limits_version, self._limits_hold = limits, rules.version, (now, change or _EVER)

    async def _add_second(self, second: TrafficSecond, pace: Pace) -> None:
        at_s = second.at_s
        if second.stepped_s:
            self._figures.clock_steps += 1
            _log.warning("the clock was set; the rejection log goes by it", by_s=second.stepped_s)
        if minute_of(at_s) != self._minute.at_s:
            self._minute.cover(self._taken_s, at_s)
            await self._end_minute(pace)
            self._begin_minute(minute_of(at_s))
        self._minute.cover(at_s, at_s + second.seconds)
        self._minute.other += second.other
        self._figures.other_runs += second.other
        # Each is let go of as soon as it is written: to free thousands at once would take milliseconds.
        rejections, second.rejections = deque(second.rejections), ()
        while rejections:
            self._record("rejection", self._composer.rejection, at_s, rejections.popleft())
            await pace.keep()
        resources, second.resources = deque(second.resources), ()
        while resources:
            self._add_traffic(at_s, resources.popleft())
            await pace.keep()

    def _add_traffic(self, at_s: int, traffic: ResourceSecond) -> None:
        """Add a resource's second to the minute, and note it for the case of a crash."""
        try:
            resource, clients = self._minute.add(at_s, traffic)
            seen = write_ahead.Seen(
                kind=resource.kind,
                name=resource.name,
                limit=self._limits.of(resource),
                at_s=at_s,
                outcomes=traffic.outcomes,
                busy_answers=traffic.busy_answers,
                languages=traffic.languages,
                clients=clients,
                more_clients=traffic.more_clients,
                repeated=traffic.repeated,
                identified=traffic.identified,
            )
            self._batch.write_ahead.add(line_of(seen))
        except Exception as error:  # noqa: BLE001 - as in _record
            self.fault("traffic", error)

    def _begin_minute(self, at_s: int) -> None:
        self._minute = Aggregate(at_s, self._max_resources)
        header = write_ahead.Header(
            write_ahead.VERSION, self._instance, self.run, self._version, at_s, self._composer.n, self._max_resources
        )
        self._batch.begin = line_of(header)
        # What was noted of the minute before is in its records.
        self._batch.write_ahead = Lines()

    async def _end_minute(self, pace: Pace) -> bool:
        """Make the records of the minute; the heartbeat last, as whoever reads it knows then that all are there.

        Returns:
            What was noted of the minute is not needed any more.
        """
        minute = self._minute
        for resource, traffic in minute.taken():
            self._record("traffic", self._traffic, resource, traffic)
            await pace.keep()
        if not minute.seconds:
            return True
        try:
            snapshot = await self._data_path.snapshot(whole=False)
        except Exception as error:  # noqa: BLE001 - as in _record
            self.fault("heartbeat", error)
            return False
        return self._record("heartbeat", self._heartbeat, snapshot)

    def _traffic(self, resource: Resource, traffic: Traffic) -> bytes:
        return self._composer.traffic(self._minute.at_s, resource, traffic, self._limits.of(resource))

    def _heartbeat(self, snapshot: Snapshot) -> bytes:
        before, self._bypassed = self._bypassed, _bypassed(snapshot)
        return self._composer.heartbeat(
            self._minute,
            version=self._version,
            limiting=self._live.rule_set.enabled,
            connections=sum(listener.connections for listener in snapshot.listeners),
            bypassed_requests={
                key: more for key, count in self._bypassed.items() if (more := count - before.get(key, 0))
            },
            lost_records=self._figures.lost.total(),
        )

    def _record(self, type_: str, make: Callable[[*_What], bytes], *what: *_What) -> bool:
        """Have a record made, and say whether it could be; one that cannot be made costs no other."""
        try:
            line = make(*what)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one may be different
            self.fault(type_, error)
            return False
        self._batch.records.add(line, type_)
        return True

    def fault(self, what: str, error: Exception) -> None:
        """Count what no record could be made of; the first of a kind is told: there may be more each second.

        Args:
            what: it was to be of.
            error: that is being handled.
        """
        self._figures.lost["fault"] += 1
        if (what, type(error)) not in self._told:
            self._told.add((what, type(error)))
            _log.exception("rejection log: a fault cost a record; more of them are counted", of=what, error=repr(error))


def _bypassed(snapshot: Snapshot) -> dict[str, int]:
    return {f"{handler}/{reason}": count for (handler, reason), count in snapshot.bypassed.items()}
