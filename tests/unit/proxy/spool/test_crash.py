"""kill -9 while a process spills and reads back: everything reported as safe is there, once each, in order."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest

from proxy.spool.spool import Hooks, Recovered, Spool, SpoolSettings

_SETTINGS = SpoolSettings(memory_bytes=64 * 1024, min_free_bytes=0)
_QUEUES = 5

# Announces each step before it, except syncs, which it reports after them, in pieces that a pipe takes whole.
_CHILD = """
import os, random, sys
from pathlib import Path
from queue import Empty, SimpleQueue
from proxy.spool.spool import Hooks, Spool, SpoolSettings

posted = SimpleQueue()
hooks = Hooks(lambda _: None, lambda _: None, lambda lost: os.write(1, b"lost\\n"))
settings = SpoolSettings(memory_bytes=64 * 1024, min_free_bytes=0)
spool, _ = Spool.open(Path(sys.argv[1]), settings, hooks, posted.put, now_ns=0, clock_ns=0, recover=False)
chance = random.Random(int(sys.argv[2]))
queues = [spool.queue(b"%d" % index, lambda _: None) for index in range(5)]
last = [0] * 5
for turn in range(1_000_000):
    for index, queue in enumerate(queues):
        for _ in range(chance.randrange(120)):
            last[index] += 1
            queue.append([b"%d" % last[index] * chance.randrange(60)], last[index], turn, is_recoverable=True)
        count = chance.randrange(110)
        while count and (entry := queue.head()) is not None:
            os.write(1, b"pop %d %d\\n" % (index, entry.handle))
            if entry.content is None:
                queue.fetch()
                break
            assert queue.pop().handle == entry.handle
            count -= 1
    if turn % 5 == 0:
        spool.sync(lambda good, told=tuple(last): os.write(1, b"synced %d %d %d %d %d\\n" % told) if good else None)
        spool.tick(turn * 10**9)
    try:
        while True:
            posted.get(timeout=0.001)()
    except Empty:
        pass
"""


def _killed_after(folder: Path, seed: int, syncs: int) -> tuple[list[int], list[int]]:
    """Kill the child after this many syncs. Return the last synced and popped entries of each queue."""
    with subprocess.Popen([sys.executable, "-c", _CHILD, str(folder), str(seed)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        popped, synced = [0] * _QUEUES, [0] * _QUEUES
        for line in child.stdout:
            word, *rest = line.split()
            if word == b"pop":
                popped[int(rest[0])] = int(rest[1])
            else:
                assert word == b"synced"
                synced = [int(each) for each in rest]
                syncs -= 1
                if not syncs:
                    os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    return synced, popped


def _opened(folder: Path) -> tuple[Spool, Recovered, SimpleQueue]:
    posted: SimpleQueue = SimpleQueue()
    hooks = Hooks(lambda _: None, lambda _: None, pytest.fail)
    spool, recovered = Spool.open(folder, _SETTINGS, hooks, posted.put, now_ns=0, clock_ns=0, recover=True)
    return spool, recovered, posted


def _replayed(recovered: Recovered, posted: SimpleQueue) -> dict[int, list[int]]:
    handles: dict[int, list[int]] = {}
    for queue in recovered.queues:
        its = handles.setdefault(int(queue.name), [])
        while queue.count:
            entry = queue.head()
            if entry is None or entry.content is None:
                queue.fetch()
                posted.get(timeout=60)()
                continue
            content = b"".join(entry.content)
            assert content == (b"%d" % entry.handle) * (len(content) // len(b"%d" % entry.handle))
            its.append(queue.pop().handle)
    return handles


@pytest.mark.parametrize("seed", range(4))
def test_synced_entries_are_replayed_once_and_in_order(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "spool"
    synced, popped = _killed_after(folder, seed, syncs=3 + 5 * seed)
    spool, recovered, posted = _opened(folder)
    try:
        assert (recovered.lost, recovered.damaged) == (0, [])
        handles = _replayed(recovered, posted)
        for index in range(_QUEUES):
            its = handles.get(index, [])
            assert its == sorted(set(its))
            assert set(range(popped[index] + 1, synced[index] + 1)) <= set(its)
    finally:
        spool.close()
    assert not list(folder.glob("*.segment"))


def test_damaged_entries_after_a_crash_are_counted_exactly(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    _killed_after(folder, 9, syncs=5)
    (path,) = folder.glob("*.segment")
    data = path.read_bytes()

    def recovered() -> Recovered:
        spool, its, _ = _opened(folder)
        spool.close()
        return its

    whole = recovered()
    assert (whole.lost, whole.damaged) == (0, [])
    # The ledger did not know the group that was just written. Now it does.
    ledger = (folder / "ledger").read_bytes()
    for part in (0, 1, 2):
        path.write_bytes(data[: len(data) * part // 3])
        (folder / "ledger").write_bytes(ledger)
        cut = recovered()
        assert cut.entries + cut.lost == whole.entries
        assert cut.damaged == [path.name]
        assert cut.lost
