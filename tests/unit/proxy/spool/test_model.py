"""Random puts, writes, reads, damage, disk errors, purges and closes: each entry comes out once, in order."""

from collections import deque
from collections.abc import Iterator
from errno import EMFILE, ENOSPC
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from spool_disk import NONCE, FakeDisk

from proxy.spool import queue as queue_module
from proxy.spool.queue import Lost, Queue
from proxy.spool.segments import RECORD_BYTES, entry_at, header_at
from proxy.spool.spool import Hooks, Spool, SpoolSettings

_NS = 1_000_000_000
_QUEUES = st.integers(0, 3)


class _SpoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Runs of some entries, so that a few of them are many.
        self._patches = [
            patch.object(queue_module, "MIN_RUN_BYTES", 150),
            patch.object(queue_module, "_OBJECT_BYTES", 20),
        ]
        for each in self._patches:
            each.start()
        self.now_ns = 0
        self.flows: list[bool] = []
        self.alarms: list[str | None] = []
        self.ready: set[int] = set()
        hooks = Hooks(self.flows.append, self.alarms.append, self._lost)
        self.disk = FakeDisk()
        self.spool = Spool(SpoolSettings(memory_bytes=1600, target_s=0.1), hooks, self.disk, now_ns=0)
        self.model: list[deque] = [deque() for _ in range(4)]
        self.queues = [self._queue(index) for index in range(4)]
        self.handle = 0
        # Damaged handles, and by queue, the number of lost entries that were reported but not reached yet.
        self.damaged: set[int] = set()
        self.unmet = [0, 0, 0, 0]
        self.synced: list[bool] = []
        self.syncs = 0

    def teardown(self) -> None:
        for each in self._patches:
            each.stop()

    def _queue(self, index: int) -> Queue:
        return self.spool.queue(b"queue %d" % index, lambda _: self.ready.add(index))

    def _lost(self, lost: Lost) -> None:
        assert lost.entries > 0
        assert len(lost.handles) <= lost.entries
        assert self.damaged.issuperset(lost.handles)
        # By its name, because it may be closed and created again.
        self.unmet[int(lost.queue.name.split()[1])] += lost.entries

    def _meet_lost(self, index: int, handle: int | None) -> None:
        """Skip entries lost before this one."""
        entries = self.model[index]
        while entries and entries[0][0] != handle and entries[0][0] in self.damaged:
            entries.popleft()
            self.unmet[index] -= 1
        assert self.unmet[index] >= 0

    def _forget(self, index: int) -> None:
        self.model[index].clear()
        self.unmet[index] = 0

    def _count(self, index: int) -> int:
        return len(self.model[index]) - self.unmet[index]

    @rule(
        index=_QUEUES,
        sizes=st.lists(st.integers(0, 90), max_size=3) | st.just([400]) | st.just([700, 900]),
        count=st.integers(1, 6),
        is_recoverable=st.booleans(),
    )
    def append(self, index: int, sizes: list[int], count: int, *, is_recoverable: bool) -> None:
        for _ in range(count):
            self.handle += 1
            content = [bytes([self.handle % 251]) * size for size in sizes]
            self.queues[index].append(
                content,
                self.handle,
                self.now_ns,
                messages=self.handle % 5,
                cost_bytes=self.handle % 7,
                expires_ns=self.handle % 3,
                is_refusable=not is_recoverable,
                is_recoverable=is_recoverable,
            )
            self.model[index].append((self.handle, self.now_ns, b"".join(content), is_recoverable))

    @rule(index=_QUEUES, count=st.integers(1, 20), needs_content=st.booleans())
    def pop(self, index: int, count: int, *, needs_content: bool) -> None:
        for _ in range(count):
            entry = self.queues[index].head()
            if entry is None:
                self.ready.discard(index)
                assert not self._count(index) or self.disk.reads or self.spool._unread
                return
            if entry.content is None and needs_content:
                self.queues[index].fetch()
                assert self.disk.reads or self.spool._unread
                return
            self._check(index, self.queues[index].pop())

    def _check(self, index: int, entry: object) -> None:
        self._meet_lost(index, entry.handle)
        handle, entered_ns, content, is_recoverable = self.model[index].popleft()
        assert (entry.handle, entry.entered_ns, entry.is_recoverable) == (handle, entered_ns, is_recoverable)
        assert (entry.messages, entry.cost_bytes, entry.expires_ns) == (handle % 5, handle % 7, handle % 3)
        assert entry.size_bytes == len(content)
        assert entry.is_refusable is not is_recoverable
        if entry.content is not None:
            assert b"".join(entry.content) == content

    @rule(passed_s=st.sampled_from([0.1, 1, 2, 10]))
    def tick(self, passed_s: float) -> None:
        self.now_ns += int(passed_s * _NS)
        self.spool.tick(self.now_ns)

    @precondition(lambda self: self.disk.writes)
    @rule(count=st.integers(1, 5))
    def finish_write(self, count: int) -> None:
        for _ in range(min(count, len(self.disk.writes))):
            self.disk.finish_write()

    @precondition(lambda self: self.disk.writes)
    @rule(count=st.integers(1, 5))
    def fail_write(self, count: int) -> None:
        for _ in range(min(count, len(self.disk.writes))):
            self.disk.finish_write(OSError(ENOSPC, "No space left"))

    @precondition(lambda self: self.disk.reads)
    @rule(data=st.data())
    def finish_read(self, data: st.DataObject) -> None:
        self.disk.finish_read(data.draw(st.integers(0, len(self.disk.reads) - 1)))

    @precondition(lambda self: self.disk.reads)
    @rule(data=st.data())
    def fail_read(self, data: st.DataObject) -> None:
        self.disk.finish_read(data.draw(st.integers(0, len(self.disk.reads) - 1)), OSError(EMFILE, "Too many files"))

    @rule(index=_QUEUES)
    def purge(self, index: int) -> None:
        assert self.queues[index].purge() == self._count(index)
        self._forget(index)

    @rule(index=_QUEUES)
    def close(self, index: int) -> None:
        assert self.queues[index].close() == self._count(index)
        self._forget(index)
        self.queues[index] = self._queue(index)

    @precondition(lambda self: self.disk.runs)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        extent = data.draw(st.sampled_from(sorted(self.disk.runs)))
        run = bytearray(self.disk.runs[extent])
        header = header_at(run, NONCE)
        if header is None:
            return
        start, handles = header.length, []
        while start < len(run):
            entry = entry_at(run, start, whole=False)
            handles.append((entry.handle, start + RECORD_BYTES, entry.size_bytes))
            start += RECORD_BYTES + entry.size_bytes
        how = data.draw(st.sampled_from(["content", "header", "gone"]))
        handle, position, size = data.draw(st.sampled_from(handles))
        if how == "header":
            run[3] ^= 1
        elif how == "gone":
            run = bytearray()
            self.damaged.update(each[0] for each in handles)
        elif size:
            run[position] ^= 1
            self.damaged.add(handle)
        self.disk.runs[extent] = bytes(run)

    @rule()
    def sync(self) -> None:
        self.syncs += 1
        self.spool.sync(self.synced.append)

    @invariant()
    def figures_add_up(self) -> None:
        states = self.spool.states()
        counted = states.alpha, states.beta, states.gamma, states.delta
        assert min(counted) >= 0
        assert sum(counted) == sum(map(self._count, range(4)))
        content_bytes = states.alpha_bytes + states.beta_bytes + states.gamma_bytes + states.delta_bytes
        assert content_bytes == sum(each.content_bytes for each in self.queues)
        for index, each in enumerate(self.queues):
            if not self.damaged:
                assert each.content_bytes == sum(len(entry[2]) for entry in self.model[index])
            assert each.count == self._count(index)
            assert each.count or not each.content_bytes
            assert each.memory_bytes == sum(run.memory_bytes for run in (*each._head, *each._tail))
            assert each._ahead_bytes == sum(run.body_bytes for run in each._head)
        assert self.spool._pool.memory_bytes == sum(each.memory_bytes for each in self.queues)
        assert self.spool._pool.busy == sum(1 for each in self.queues if each.count)

    @invariant()
    def what_is_on_disk_is_known(self) -> None:
        known = {run.extent for each in self.queues for run in (*each._head, *each._tail) if run.extent is not None}
        known |= {run.extent for each in self.queues for run in each._disk}
        assert known == set(self.disk.runs)

    def _settle(self) -> Iterator[None]:
        for _ in range(20):
            self.disk.finish_all()
            self.now_ns += 2 * _NS
            self.spool.tick(self.now_ns)
            yield
        raise AssertionError("the spool does not come to rest")

    @rule()
    def come_to_rest(self) -> None:
        for _ in self._settle():
            if self.disk.is_idle and not self.spool._waiting and not self.spool._unread:
                break
        assert self.spool.figures().alarm == ""
        pool = self.spool._pool
        # Requested entries are in memory, however large.
        fetched_bytes = sum(each._head[0].memory_bytes for each in self.queues if each._fetched)
        assert pool.memory_bytes <= pool.bound_bytes + fetched_bytes
        assert not self.spool.figures().stopped or pool.memory_bytes > pool.bound_bytes * 3 // 4
        assert len(self.synced) == self.syncs

    @rule()
    def drain(self) -> None:
        """Take out all entries with their contents. Then nothing is left anywhere."""
        self.come_to_rest()
        for index, entries in enumerate(self.model):
            while self.queues[index].count:
                entry = self.queues[index].head()
                if entry is None or entry.content is None:
                    self.queues[index].fetch()
                    self.ready.discard(index)
                    self.disk.finish_all()
                    assert index in self.ready
                    entry = self.queues[index].head()
                    if entry is None or entry.content is None:
                        continue
                self._check(index, self.queues[index].pop())
            self._meet_lost(index, None)
            assert not entries
            assert self.queues[index].head() is None
        self.disk.finish_all()
        assert not self.disk.runs
        assert not self.spool._pool.memory_bytes
        assert not self.spool.figures().stopped


_SpoolMachine.TestCase.settings = settings(stateful_step_count=50)
TestModel = _SpoolMachine.TestCase
