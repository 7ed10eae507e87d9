"""The spool on real files with its real thread: faults of the disk, and the state for the next process."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from proxy.spool.queue import Entry, Lost, Queue
from proxy.spool.spool import Hooks, Recovered, Spool, SpoolSettings

Make = Callable[..., "Harness"]
_NS = 1_000_000_000
_SMALL = SpoolSettings(memory_bytes=64 * 1024, min_free_bytes=0)


class Harness:
    """A spool and its reports. Posts of the thread are called in ``wait`` only."""

    def __init__(
        self, folder: Path, settings: SpoolSettings = _SMALL, *, recover: bool = True, clock_ns: int = 0
    ) -> None:
        self.posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.flows: list[bool] = []
        self.alarms: list[str | None] = []
        self.lost: list[Lost] = []
        self.folder = folder
        self.now_ns = 0
        self.recovered: Recovered
        hooks = Hooks(self.flows.append, self.alarms.append, self.lost.append)
        self.spool, self.recovered = Spool.open(
            folder, settings, hooks, self.posted.put, now_ns=0, clock_ns=clock_ns, recover=recover
        )

    def queue(self, name: bytes = b"name") -> Queue:
        return self.spool.queue(name, lambda _: None)

    def wait(self) -> None:
        """Wait for a post of the thread, and call it."""
        self.posted.get(timeout=60)()

    def sync(self) -> bool:
        """Let the thread finish, with all consequences."""
        done: list[bool] = []
        for count in (1, 2):
            self.spool.sync(done.append)
            while len(done) < count:
                self.wait()
        return all(done)

    def tick(self, seconds: float = 1) -> None:
        self.now_ns += int(seconds * _NS)
        self.spool.tick(self.now_ns)

    def take(self, queue: Queue) -> Entry:
        while True:
            entry = queue.head()
            if entry is not None and entry.content is not None:
                return queue.pop()
            assert queue.count
            queue.fetch()
            self.wait()

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.segment"))


@pytest.fixture
def made() -> Iterator[Callable[..., Harness]]:
    all_made: list[Harness] = []

    def make(*args: object, **kwargs: object) -> Harness:
        all_made.append(Harness(*args, **kwargs))
        return all_made[-1]

    yield make
    for each in all_made:
        each.spool.close()


def body(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes([number % 251]) * (number % 300)


def fill(queue: Queue, count: int, *, first: int = 0, is_recoverable: bool = True) -> None:
    for number in range(first, first + count):
        queue.append([body(number)], number, number, is_recoverable=is_recoverable, is_refusable=not is_recoverable)


def test_entries_return_from_files_in_order_and_leave_none(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    queues = [harness.queue(b"%d" % index) for index in range(5)]
    for number in range(10_000):
        queues[number % 5].append([body(number)], number, number)
    assert harness.sync()
    states = harness.spool.states()
    assert states.alpha + states.delta == 10_000
    assert states.delta > 9_000
    harness.tick()
    assert harness.sync()
    assert harness.spool.figures().memory_bytes <= 64 * 1024
    for number in range(10_000):
        entry = harness.take(queues[number % 5])
        assert (entry.handle, entry.content) == (number, (body(number),))
    assert harness.sync()
    assert harness.segments() == []
    assert harness.spool.figures().disk_bytes == 0


def test_synced_entries_are_on_disk_with_their_names(
    tmp_path: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
            sync(descriptor)

        return call

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    harness = made(tmp_path / "spool")
    fill(harness.queue(), 1000)
    assert harness.sync()
    assert synced == {harness.folder, *harness.folder.iterdir()} - {harness.folder / "lock"}


def test_only_the_owner_can_read_the_files(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    fill(harness.queue(), 1000)
    assert harness.sync()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in harness.folder.iterdir()}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(harness.folder.stat().st_mode) == 0o700


def test_a_folder_is_for_one_process(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    with pytest.raises(BlockingIOError):
        made(tmp_path / "spool")
    harness.spool.close()
    made(tmp_path / "spool")


def test_a_large_entry_goes_to_disk_as_it_is_and_its_index_is_known_without_it(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    queue = harness.queue()
    fill(queue, 3)
    pieces = [os.urandom(3_000_000), memoryview(os.urandom(5_000_000)), bytearray(70_000)]
    for number in range(3, 6):
        queue.append(pieces, number, 1, cost_bytes=99, is_recoverable=number == 4)
    assert harness.flows == [True]
    assert harness.sync()
    assert harness.flows == [True, False]
    for number in range(3):
        assert harness.take(queue).handle == number
    seen = []
    for number in range(3, 6):
        while (entry := queue.head()) is None:
            harness.wait()
        assert (entry.handle, entry.cost_bytes, entry.size_bytes, entry.content) == (number, 99, 8_070_000, None)
        states = queue.states()
        seen.append((states.beta, states.gamma, states.delta))
        assert b"".join(harness.take(queue).content) == b"".join(pieces)
    assert seen == [(1, 0, 2), (0, 1, 1), (1, 0, 0)]
    assert harness.sync()
    assert harness.segments() == []


def test_a_full_disk_loses_nothing_and_changes_no_order(tmp_path: Path, made: Make) -> None:
    settings = SpoolSettings(memory_bytes=64 * 1024, min_free_bytes=0, max_disk_bytes=100_000)
    harness = made(tmp_path / "spool", settings)
    queue = harness.queue()
    fill(queue, 2_000)
    assert not harness.sync()
    assert harness.alarms == ["[Errno 28] the spool has reached its maximum size"]
    assert harness.flows[-1]
    assert harness.spool.figures().disk_bytes <= 100_000
    fill(queue, 100, first=2_000)
    for number in range(2_100):
        entry = harness.take(queue)
        assert (entry.handle, entry.content) == (number, (body(number),))
        if number % 50 == 0:
            harness.tick(2)
    harness.sync()
    harness.tick(2)
    assert harness.sync()
    assert harness.alarms[-1] is None
    assert not harness.flows[-1]
    assert harness.segments() == []


def test_minimum_free_space_is_respected(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool", SpoolSettings(memory_bytes=64 * 1024, min_free_bytes=1 << 60))
    queue = harness.queue()
    fill(queue, 1_000)
    assert not harness.sync()
    assert harness.alarms == ["[Errno 28] the disk has too little free space"]
    assert harness.segments() == []
    assert [harness.take(queue).handle for _ in range(1_000)] == list(range(1_000))


def test_idle_queue_does_not_pin_disk_space_of_others(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool", SpoolSettings(memory_bytes=1 << 20, min_free_bytes=0))
    still, moving = harness.queue(), harness.queue()
    for number in range(60_000):
        (moving if number % 100 else still).append([body(number)], number, 0)
    harness.sync()
    before = sum(each.stat().st_blocks * 512 for each in harness.segments())
    while moving.count:
        harness.take(moving)
    harness.sync()
    after = sum(each.stat().st_blocks * 512 for each in harness.segments())
    assert before > 10_000_000
    assert after < 1_000_000
    assert harness.spool.figures().disk_bytes < 1_000_000


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


def spilled(harness: Harness, *, is_recoverable: bool = True) -> Queue:
    """Return a queue of 3000 of which the first 1000 or so are in memory."""
    queue = harness.queue()
    fill(queue, 3_000, is_recoverable=is_recoverable)
    assert harness.sync()
    return queue


def taken_all(harness: Harness, queue: Queue) -> list[int]:
    handles = []
    while queue.count:
        entry = queue.head()
        if entry is None:
            harness.wait()
        else:
            assert entry.content == (body(entry.handle),)
            handles.append(queue.pop().handle)
    return handles


@pytest.mark.parametrize("is_refusable", [True, False])
def test_an_entry_damaged_while_running_is_reported_with_its_handle_if_it_can_be_refused(
    tmp_path: Path, made: Make, *, is_refusable: bool
) -> None:
    harness = made(tmp_path / "spool")
    queue = spilled(harness, is_recoverable=not is_refusable)
    (path,) = harness.segments()
    data = path.read_bytes()
    flip(path, data.index(body(2_500)) + 2)
    handles = taken_all(harness, queue)
    (lost,) = harness.lost
    assert (lost.queue, lost.entries, lost.handles) == (queue, 1, (2_500,) if is_refusable else ())
    assert handles == [each for each in range(3_000) if each != 2_500]
    assert harness.spool.figures().lost_total == 1


def test_a_file_truncated_while_running_loses_the_rest(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    queue = spilled(harness)
    (path,) = harness.segments()
    os.truncate(path, path.stat().st_size // 2)
    handles = taken_all(harness, queue)
    assert handles == sorted(set(handles))
    assert len(handles) + sum(lost.entries for lost in harness.lost) == 3_000
    assert 500 < sum(lost.entries for lost in harness.lost) < 2_000
    assert harness.sync()
    assert harness.segments() == []


def test_the_next_process_replays_only_recoverable_entries(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool", clock_ns=1_000)
    first, second, third = (harness.queue(name) for name in (b"one", b"two", b"three"))
    for number in range(3_000):
        first.append([body(number)], number, 7, expires_ns=9, is_recoverable=number % 3 == 0)
        second.append([body(number)], number, 7, is_recoverable=True)
        third.append([body(number)], number, 7)
    second.append([b"x" * 100_000], 3_000, 7, is_recoverable=True)
    for _ in range(500):
        harness.take(second)
    assert harness.sync()
    harness.spool.close()

    again = made(tmp_path / "spool", clock_ns=1_500)
    recovered = again.recovered
    assert (recovered.lost, recovered.damaged) == (0, [])
    assert recovered.entries == sum(queue.count for queue in recovered.queues)
    queues = {queue.name: queue for queue in recovered.queues}
    assert set(queues) == {b"one", b"two"}
    entry = queues[b"one"].head()
    while entry is None:
        again.wait()
        entry = queues[b"one"].head()
    assert (entry.entered_ns, entry.expires_ns) == (7 - 500, 9 - 500)
    one = [again.take(queues[b"one"]) for _ in range(1_000)]
    assert [(each.handle, each.content) for each in one] == [(each, (body(each),)) for each in range(0, 3_000, 3)]
    assert queues[b"one"].count == 0
    # Taken entries may come again, but in their old order.
    two = [again.take(queues[b"two"]).handle for _ in range(queues[b"two"].count)]
    assert two == list(range(3_001 - len(two), 3_001))
    assert 2_501 <= len(two) < 3_000
    with pytest.raises(ValueError, match="the queue accepts no entries because it is closed or recovered"):
        fill(queues[b"two"], 1)
    again.sync()
    assert again.segments() == []
    assert again.lost == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("recover", [True, False])
def test_full_disk_does_not_prevent_opening(
    tmp_path: Path, made: Make, monkeypatch: pytest.MonkeyPatch, number: int, *, recover: bool
) -> None:
    harness = made(tmp_path / "spool")
    spilled(harness)
    harness.spool.close()

    def write(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr("proxy.spool.segments.os.write", write)
        again = made(tmp_path / "spool", recover=recover)
        assert again.recovered.is_full
        assert again.recovered.entries == 3_000 * recover
    assert not (tmp_path / "spool" / "ledger.new").exists()
    for queue in again.recovered.queues:
        assert taken_all(again, queue) == list(range(3_000))
    assert again.sync()
    again.spool.close()
    assert made(tmp_path / "spool").recovered == Recovered([], 0, 0, 0, [])


def test_unclaimed_entries_expire(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    for _ in range(3):
        fill(harness.queue(), 100)
    assert harness.sync()
    harness.spool.close()
    again = made(tmp_path / "spool", SpoolSettings(memory_bytes=64 * 1024, min_free_bytes=0, max_age_s=60))
    spool, unclaimed = again.spool, list[tuple[int, int]]()
    spool._hooks = spool._hooks._replace(unclaimed=lambda *counts: unclaimed.append(counts))
    first, *_, last = spool.take_recovered(lambda _: True)
    spool.give_back(last)
    again.tick(59)
    spool.give_back(first)
    assert unclaimed == []
    again.tick(1)
    assert (unclaimed, last.is_closed, first.is_closed) == ([(1, 100)], True, False)
    again.tick(59)
    assert unclaimed == [(1, 100), (1, 100)]
    assert not spool.has_recovered(lambda _: True)
    # Taken entries belong to their taker, however old.
    (taken,) = spool.queues()
    assert taken.count == 100
    taken.close()
    while not spool.is_idle:
        again.wait()
    assert again.sync()
    assert again.segments() == []


def test_totals_add_up(tmp_path: Path, made: Make) -> None:
    def check(harness: Harness, **expected: int) -> None:
        figures = harness.spool.figures()
        for name, count in expected.items():
            assert getattr(figures, f"{name}_total") == count, name
        held = sum(queue.count for queue in harness.spool.queues())
        gone = figures.out_total + figures.lost_total + figures.dropped_total
        assert figures.in_total + figures.recovered_total == gone + held

    harness = made(tmp_path / "spool")
    queue, other = spilled(harness), spilled(harness)
    for _ in range(500):
        harness.take(queue)
    assert other.close() == 3_000
    check(harness, out=500, dropped=3_000, recovered=0)
    assert harness.sync()
    harness.spool.close()
    again = made(tmp_path / "spool")
    (queue,) = again.recovered.queues
    left = queue.count
    check(again, recovered=left)
    again.take(queue)
    (path,) = again.segments()
    data = path.read_bytes()
    flip(path, data.rindex(body(2_900)) + 2)
    fresh = again.queue()
    fill(fresh, 10)
    assert fresh.purge() == 10
    check(again, recovered=left, out=1, dropped=10)
    taken_all(again, queue)
    check(again, recovered=left, out=left - 1, lost=1, dropped=10)
    fresh.close()
    queue.close()
    check(again, recovered=left, out=left - 1, lost=1, dropped=10)


def test_partial_replay_is_continued_by_the_next_client(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    spilled(harness)
    harness.spool.close()
    again = made(tmp_path / "spool")
    (queue,) = again.recovered.queues
    assert [again.take(queue).handle for _ in range(1_500)] == list(range(1_500))
    other = again.queue(b"other")
    fill(other, 1_000)
    again.sync()
    again.spool.close()
    third = made(tmp_path / "spool")
    assert (third.recovered.lost, third.recovered.damaged) == (0, [])
    replayed, fresh = sorted(third.recovered.queues, key=lambda each: each.number)
    handles = taken_all(third, replayed)
    assert handles == list(range(3_000 - len(handles), 3_000))
    assert 1_500 <= len(handles) < 2_000
    assert taken_all(third, fresh) == list(range(1_000))


def test_writes_fail_and_continue_in_another_file(tmp_path: Path, made: Make) -> None:
    harness = made(tmp_path / "spool")
    queue = harness.queue()
    fill(queue, 1_000)
    harness.sync()
    store = harness.spool._disk
    number = store._current
    good = store._fds[number]
    store._fds[number] = os.open("/dev/full", os.O_RDWR)
    fill(queue, 1_000, first=1_000)
    assert not harness.sync()
    assert harness.alarms == ["[Errno 28] No space left on device"]
    os.close(store._fds[number])
    store._fds[number] = good
    # The next file is a good one.
    harness.tick(2)
    assert harness.sync()
    assert harness.alarms[1:] == [None]
    assert len(harness.segments()) == 2
    assert taken_all(harness, queue) == list(range(2_000))
