"""The spool's decisions: writing and reading ahead, stopping senders, and sharing memory."""

from collections.abc import Callable, Iterator
from errno import EMFILE, ENOSPC

import pytest
from spool_disk import FakeDisk

from proxy.flow.credit import STORE_CREDIT, Stage
from proxy.spool.queue import Lost, Queue
from proxy.spool.segments import MAX_BYTES, RECORD_BYTES
from proxy.spool.spool import Hooks, Spool, SpoolSettings
from proxy.spool.store import Job

_NS = 1_000_000_000
_FULL = OSError(ENOSPC, "No space left on device")


class Made:
    """A spool on a scripted disk."""

    def __init__(self, settings: SpoolSettings) -> None:
        self.flows: list[bool] = []
        self.alarms: list[str | None] = []
        self.lost: list[Lost] = []
        self.ready: list[Queue] = []
        self.disk = FakeDisk()
        hooks = Hooks(self.flows.append, self.alarms.append, self.lost.append)
        self.spool = Spool(settings, hooks, self.disk, now_ns=0)
        self.now_ns = 0

    def queue(self) -> Queue:
        return self.spool.queue(b"name", self.ready.append)

    def tick(self, seconds: float = 1) -> None:
        self.now_ns += round(seconds * _NS)
        self.spool.tick(self.now_ns)

    def put(self, queue: Queue, count: int, size: int = 100) -> None:
        for number in range(count):
            queue.append([bytes(size)], number, self.now_ns)

    def take(self, queue: Queue, count: int) -> list[int]:
        handles = []
        while len(handles) < count:
            entry = queue.head()
            if entry is None or entry.content is None:
                queue.fetch()
                self.disk.finish_all()
            else:
                handles.append(queue.pop().handle)
        return handles


@pytest.fixture
def make() -> Iterator[Callable[..., Made]]:
    def made(**settings: float) -> Made:
        return Made(SpoolSettings(**({"memory_bytes": 1 << 20} | settings)))

    return made


def test_a_slow_disk_stops_and_resumes_the_flow_with_little_data_in_flight(make: Callable[..., Made]) -> None:
    made = make()
    queue = made.queue()
    count = 0
    while not made.flows:
        made.put(queue, 10)
        count += 10
    figures = made.spool.figures()
    assert figures.stopped
    # A quarter of the memory is being written, in addition to the half that need not be.
    assert 256 * 1024 < figures.writing_bytes < 330 * 1024
    assert figures.memory_bytes < 1 << 20
    while made.flows == [True]:
        made.disk.finish_write()
    assert made.flows == [True, False]
    assert 64 * 1024 < made.spool.figures().writing_bytes <= 128 * 1024
    assert made.spool.figures().stops_total == 1


def test_failed_read_is_retried(make: Callable[..., Made]) -> None:
    made = make()
    queue = made.queue()
    made.put(queue, 10_000)
    while made.disk.writes:
        made.disk.finish_write()
    while queue.head() is not None:
        queue.pop()
    while made.disk.reads:
        made.disk.finish_read(error=OSError(EMFILE, "Too many open files"))
    assert made.alarms == ["[Errno 24] Too many open files"]
    assert queue.head() is None
    made.tick(2)
    made.disk.finish_all()
    assert made.alarms[-1] is None
    assert made.ready == [queue]
    assert made.lost == []
    assert queue.head().handle == 10_000 - queue.count


def test_exception_in_a_callback_affects_no_other_job(make: Callable[..., Made]) -> None:
    made = make(memory_bytes=64 * 1024)
    stage = Stage("resource", "a")
    told: list[str] = []

    def fail(text: str) -> None:
        told.append(text)
        raise RuntimeError(text)

    queue = made.spool.queue(b"a", lambda _: fail("ready"), lost=lambda _: fail("lost"))
    other = made.spool.queue(b"b", made.ready.append)
    writing = made.spool.queue(b"c", made.ready.append, stage=stage)
    for each in (queue, other):
        made.put(each, 1_000)
    made.disk.finish_all()
    for each in (queue, other):
        while each.head() is not None:
            each.pop()
    made.put(writing, 1_000)
    assert stage.in_flight(made.spool.store)
    done: list[Job] = []
    made.disk.done, take = done.extend, made.disk.done
    made.disk.finish_read(error=FileNotFoundError(2, "No such file"))
    while not made.disk.is_idle:
        if made.disk.reads:
            made.disk.finish_read()
        else:
            made.disk.finish_write()
    with pytest.raises(RuntimeError, match="lost"):
        take(done)
    assert told == ["lost"]
    assert [lost.queue for lost in made.lost] == [queue]
    assert made.ready == [other]
    assert stage.in_flight(made.spool.store) == 0
    assert not made.spool._jobs.keys() & set(done)


def test_more_is_read_ahead_the_faster_a_queue_is_taken_from(make: Callable[..., Made]) -> None:
    wanted = []
    for count in (100, 4_000):
        made = make(memory_bytes=4 << 20)
        queue = made.queue()
        made.put(queue, 100_000)
        made.disk.finish_all()
        # Entries in memory are not read at first.
        made.take(queue, 20_000)
        for _ in range(12):
            made.take(queue, count)
            made.tick()
            made.disk.finish_all()
        assert queue.out_per_s == pytest.approx(count, rel=0.3)
        assert queue._ahead_bytes >= queue._want_ahead_bytes / 2
        wanted.append(queue._want_ahead_bytes)
    # A run at least, or two seconds of traffic.
    assert wanted[0] == 64 * 1024
    assert wanted[1] == pytest.approx(2 * 4_000 * (100 + RECORD_BYTES), rel=0.3)


def test_idle_queue_gives_its_memory_to_active_ones(make: Callable[..., Made]) -> None:
    made = make()
    still, moving = made.queue(), made.queue()
    made.put(still, 3_500)
    for _ in range(20):
        made.put(moving, 1_500)
        made.tick()
        made.disk.finish_all()
        made.take(moving, 1_400)
    assert still.memory_bytes < 200 * 1024
    assert moving.target_bytes > 2 * 1_400 * (100 + RECORD_BYTES)
    assert made.take(still, 3_500) == list(range(3_500))


def test_a_thousand_queues_share_writes_and_reads(make: Callable[..., Made]) -> None:
    made = make(memory_bytes=4 << 20)
    queues = [made.queue() for _ in range(1_000)]
    for number in range(60):
        for queue in queues:
            queue.append([b"x" * 100], number, 0)
        made.disk.finish_all()
    made.tick()
    made.disk.finish_all()
    figures = made.spool.figures()
    assert figures.memory_bytes <= 6 << 20
    assert made.spool.states().delta > 20_000
    # Entries are never read singly.
    assert made.disk.written_bytes_total / made.disk.writes_total > 900
    for queue in queues:
        assert made.take(queue, 60) == list(range(60))
    made.disk.finish_all()
    assert not made.disk.runs
    assert made.disk.reads_total <= 1.2 * made.disk.writes_total


def test_expired_and_overdue_are_reported_at_the_head(make: Callable[..., Made]) -> None:
    made = make(max_age_s=10)
    queue = made.queue()
    assert queue.ending(0) is None
    queue.append([b"x"], 1, 0, expires_ns=5 * _NS)
    queue.append([b"x"], 2, 0)
    assert queue.ending(5 * _NS - 1) is None
    assert queue.ending(5 * _NS) == "expired"
    queue.pop()
    assert queue.ending(5 * _NS) is None
    assert queue.ending(10 * _NS) == "too old"


def test_oversized_entry_is_refused_before_storing_anything(make: Callable[..., Made]) -> None:
    queue = make().queue()
    with pytest.raises(ValueError, match="too large"):
        queue.append([memoryview(bytes(1 << 20))] * (MAX_BYTES // (1 << 20) + 1), 1, 0)
    assert queue.count == queue.memory_bytes == 0


def test_only_the_index_of_large_head_entries_is_in_memory(make: Callable[..., Made]) -> None:
    made = make()
    queues = [made.queue() for _ in range(20)]
    for number, queue in enumerate(queues):
        queue.append([bytes(300_000)], number, 0, is_recoverable=number % 2 == 0, cost_bytes=7)
    made.disk.finish_all()
    for _ in range(3):
        made.tick()
        made.disk.finish_all()
    figures = made.spool.figures()
    assert figures.memory_bytes < 1 << 20
    states = made.spool.states()
    assert states.alpha + states.beta + states.gamma == 20
    assert states.beta >= 8
    assert states.gamma >= 8
    assert all(queue.head().cost_bytes == 7 for queue in queues)
    reads = made.disk.reads_total
    assert reads == 0
    for number, queue in enumerate(queues):
        assert made.take(queue, 1) == [number]
    made.disk.finish_all()
    assert not made.disk.runs


def test_refused_entries_are_not_read(make: Callable[..., Made]) -> None:
    made = make()
    queue = made.queue()
    for number in range(10):
        queue.append([bytes(300_000)], number, 0)
    made.disk.finish_all()
    for _ in range(3):
        made.tick()
        made.disk.finish_all()
    handles, absent = [], 0
    while queue.count:
        if queue.head() is None:
            made.disk.finish_all()
            continue
        entry = queue.pop()
        handles.append(entry.handle)
        absent += entry.content is None
    assert handles == list(range(10))
    assert absent >= 7


@pytest.mark.parametrize("is_refusable", [True, False])
def test_a_lost_large_entry_is_reported_by_its_index(make: Callable[..., Made], *, is_refusable: bool) -> None:
    made = make(memory_bytes=64 * 1024)
    queue = made.queue()
    for number in range(20):
        queue.append([bytes(50_000)], number, 0, is_refusable=is_refusable)
    made.disk.finish_all()
    while (entry := queue.head()) is None or entry.content is not None:
        if entry is not None:
            queue.pop()
        made.disk.finish_all()
    queue.fetch()
    made.disk.finish_read(error=FileNotFoundError(2, "No such file"))
    (lost,) = made.lost
    assert (lost.entries, lost.handles) == (1, (entry.handle,) if is_refusable else ())


def test_sync_writes_only_recoverable_entries(make: Callable[..., Made]) -> None:
    made = make()
    kept, others = made.queue(), made.queue()
    others.append([b"x"], 1, 0)
    for number in range(3):
        kept.append([b"x"], number, 0, is_recoverable=True)
    kept.pop()
    said: list[bool] = []
    made.spool.sync(said.append)
    made.disk.finish_all()
    assert said == [True]
    assert list(made.disk.recoverable.values()) == [2]
    kept.append([b"x"], 3, 0, is_recoverable=True)
    assert made.take(kept, 3) == [1, 2, 3]
    made.disk.finish_all()
    assert not made.disk.runs


class Upstream:
    """A queue with its own resource."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.stage = Stage("resource", "orders")
        self.queue = made.spool.queue(b"name", made.ready.append, stage=self.stage)

    @property
    def in_flight(self) -> int:
        return self.stage.in_flight(self.made.spool.store)


def test_store_without_credit_lets_the_resource_run_out(make: Callable[..., Made]) -> None:
    made = make(memory_bytes=8 << 20)
    its = Upstream(made)
    while not its.stage.out_of_credit:
        made.put(its.queue, 100)
    assert its.in_flight >= its.stage.credit(made.spool.store) + STORE_CREDIT.initial
    assert made.flows == []
    made.disk.finish_all()
    assert not its.stage.out_of_credit


def test_stopped_flow_stalls_the_stages_of_all_queues_those_made_later_too(make: Callable[..., Made]) -> None:
    made = make()
    its, other = Upstream(made), Upstream(made)
    while not made.flows:
        made.put(its.queue, 100)
    later = Upstream(made)
    assert all(each.stage.out_of_credit for each in (its, other, later))
    later.queue.close()
    assert not later.stage.out_of_credit
    made.take(its.queue, its.queue.count)
    made.disk.finish_all()
    made.tick()
    assert made.flows == [True, False]
    assert not any(each.stage.out_of_credit for each in (its, other))


def test_disk_waits_are_acked_once(make: Callable[..., Made]) -> None:
    made = make()
    its, gone = Upstream(made), Upstream(made)
    for each in (its, gone):
        made.put(each.queue, 6_000)
    in_flight = its.in_flight
    assert in_flight > 0
    while made.disk.writes:
        made.disk.finish_write(_FULL)
    assert made.alarms == [str(_FULL)]
    assert its.in_flight == in_flight
    gone.queue.purge()
    for _ in range(3):
        made.tick()
        made.disk.finish_all()
    assert made.alarms == [str(_FULL), None]
    assert its.in_flight == gone.in_flight == 0
