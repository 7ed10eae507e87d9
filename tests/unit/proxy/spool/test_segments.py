"""Files after damage: each truncation, each bit, each missing file, counted exactly."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from proxy.spool.segments import (
    LEDGER,
    RECORD_BYTES,
    RUN_BYTES,
    Folder,
    Found,
    Ledger,
    RunHeader,
    entry_at,
    head_of,
    header_at,
    salvage,
    scan_folder,
    segment_name,
)

NONCE = b"\x11nonce\x22\x33"
# Handles by queue, as two runs each. Each entry repeats its handle that many times.
WRITTEN = {1: ((10,), (12, 13)), 2: ((21, 22), (23,))}


def record(handle: int, content: bytes, *, is_recoverable: bool = True) -> bytes:
    head = head_of(
        [content], len(content), handle, 5, 0, 1, 2, is_refusable=not is_recoverable, is_recoverable=is_recoverable
    )
    return head + content


def run(queue: int, number: int, handles: Sequence[int], *, kept: Sequence[int] | None = None) -> bytes:
    kept = handles if kept is None else kept
    body = b"".join(record(each, bytes([each]) * (each % 4), is_recoverable=each in kept) for each in handles)
    sizes = sum(each % 4 for each in kept)
    header = RunHeader(queue, number, 99, len(handles), len(kept), sizes, len(body), crc32(body), b"name %d" % queue)
    return header.pack(NONCE) + body


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "spool")
    yield folder
    folder.close()


def write(folder: Folder, number: int, data: bytes) -> Path:
    path = folder.path / segment_name(number, NONCE)
    path.write_bytes(data)
    return path


def replayed(folder: Folder, found: Found) -> dict[int, list[int]]:
    """Return the handles by queue, in order of replay."""
    handles: dict[int, list[int]] = {}
    for queue, its in found.queues.items():
        for each in its.runs:
            data = (folder.path / segment_name(each.extent.segment, NONCE)).read_bytes()
            start = each.extent.offset + RUN_BYTES + len(its.name)
            left = salvage(data[start : each.extent.offset + each.extent.length], recoverable_only=True)
            assert left.entries == each.entries
            position = 0
            for _ in range(left.entries):
                entry = entry_at(left.body, position)
                assert entry.content == (bytes([entry.handle]) * (entry.handle % 4),)
                handles.setdefault(queue, []).append(entry.handle)
                position += RECORD_BYTES + entry.size_bytes
            assert position == len(left.body)
    return handles


def small_file() -> bytes:
    """Return two runs each of two queues, alternating."""
    pairs = zip(*WRITTEN.values(), strict=True)
    return b"".join(run(queue, number, pair[queue - 1]) for number, pair in enumerate(pairs) for queue in (1, 2))


ALL = {queue: [handle for each in runs for handle in each] for queue, runs in WRITTEN.items()}
COUNT = sum(map(len, ALL.values()))


def check(folder: Folder, found: Found, *, lost: int | None = None) -> None:
    handles = replayed(folder, found)
    count = sum(map(len, handles.values()))
    assert found.recoverable == count
    assert found.lost == COUNT - count
    assert lost is None or found.lost == lost
    assert bool(found.damaged) is bool(found.lost)
    for queue, its in handles.items():
        rest = iter(ALL[queue])
        assert all(handle in rest for handle in its), "out of order, or twice"


def test_a_whole_file_is_replayed_in_the_order_of_each_queue(folder: Folder) -> None:
    write(folder, 0, small_file())
    found = scan_folder(folder, Ledger(folder))
    assert replayed(folder, found) == ALL
    assert (found.recoverable, found.lost, found.dropped, found.damaged) == (COUNT, 0, 0, [])
    assert [(its.name, its.clock_ns) for its in found.queues.values()] == [(b"name 1", 99), (b"name 2", 99)]


def test_a_truncated_file_loses_and_reports_the_rest(folder: Folder) -> None:
    ledger = Ledger(folder)
    ledger.add(0, COUNT)
    data = small_file()
    last = 0
    for length in range(len(data)):
        write(folder, 0, data[:length])
        found = scan_folder(folder, ledger)
        check(folder, found)
        assert found.recoverable >= last
        last = found.recoverable
        assert found.lost


def test_partial_write_at_a_kill_is_not_damage(folder: Folder) -> None:
    data = small_file()
    second = header_at(data, NONCE)
    assert second is not None
    ledger = Ledger(folder)
    ledger.add(0, second.entries)
    for length in range(second.length + second.body_bytes, len(data)):
        write(folder, 0, data[:length])
        found = scan_folder(folder, ledger)
        assert (found.lost, found.damaged) == (0, [])
        assert found.recoverable >= second.entries


def test_any_flipped_bit_costs_a_run_at_most_and_is_counted(folder: Folder) -> None:
    ledger = Ledger(folder)
    ledger.add(0, COUNT)
    data = small_file()
    most = max(len(each) for runs in WRITTEN.values() for each in runs)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        write(folder, 0, flipped)
        found = scan_folder(folder, ledger)
        handles = replayed(folder, found)
        count = sum(map(len, handles.values()))
        assert found.lost == COUNT - count <= most
        assert found.damaged
        for queue, its in handles.items():
            rest = iter(ALL[queue])
            assert all(handle in rest for handle in its)


def test_a_flipped_bit_of_a_content_costs_its_entry_only_whose_handle_is_known() -> None:
    body = b"".join(record(handle, b"content", is_recoverable=False) for handle in range(5))
    damaged = bytearray(body)
    damaged[2 * (RECORD_BYTES + 7) + RECORD_BYTES + 3] ^= 8
    left = salvage(damaged)
    assert (left.entries, left.lost_handles, left.content_bytes) == (4, [2], 28)
    assert salvage(damaged, recoverable_only=True).lost_handles == []


def test_a_damaged_head_whose_length_is_believable_costs_its_entry_only() -> None:
    damaged = bytearray(b"".join(record(handle, b"content") for handle in range(5)))
    damaged[2 * (RECORD_BYTES + 7)] ^= 8
    left = salvage(damaged)
    assert (left.entries, left.lost_handles) == (4, [])


def test_punched_holes_are_skipped(folder: Folder) -> None:
    data = bytearray(small_file())
    first = header_at(data, NONCE)
    assert first is not None
    data[: first.length + first.body_bytes] = bytes(first.length + first.body_bytes)
    write(folder, 0, data)
    ledger = Ledger(folder)
    ledger.add(0, COUNT - first.entries)
    found = scan_folder(folder, ledger)
    assert replayed(folder, found) == {1: [12, 13], 2: ALL[2]}
    assert (found.lost, found.damaged) == (0, [])


def test_ledger_round_trips_and_is_rewritten(folder: Folder) -> None:
    ledger = Ledger(folder)
    ledger.add(0, 5)
    ledger.add(1, 7)
    ledger.append(sync=True)
    ledger.add(0, -2)
    ledger.append()
    ledger.forget(1)
    ledger.append()
    again = Ledger(folder)
    assert {segment: held for segment, held in again.held.items() if held} == {0: 3}
    again.rewrite()
    assert (folder.path / LEDGER).stat().st_size == 16
    assert Ledger(folder).held == {0: 3}
    again.close()
    ledger.close()


def test_torn_line_is_ignored_and_not_appended_to(folder: Folder) -> None:
    ledger = Ledger(folder)
    ledger.add(0, 5)
    ledger.add(1, 7)
    ledger.append()
    ledger.close()
    path = folder.path / LEDGER
    path.write_bytes(path.read_bytes()[:-1])
    again = Ledger(folder)
    assert (again.held, again.intact) == ({0: 5}, True)
    again.add(2, 1)
    again.append()
    assert Ledger(folder).held == {0: 5, 2: 1}


def test_a_damaged_ledger_does_not_count_losses(folder: Folder) -> None:
    ledger = Ledger(folder)
    ledger.add(0, COUNT)
    ledger.append()
    ledger.close()
    write(folder, 0, small_file())
    path = folder.path / LEDGER
    data = path.read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found = scan_folder(folder, Ledger(folder))
        assert (found.recoverable, found.lost, found.damaged) == (COUNT, 0, [LEDGER])
