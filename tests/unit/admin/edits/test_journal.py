import random
from collections.abc import Callable
from pathlib import Path

import pytest

from admin.edits import journal
from admin.edits.journal import HEADER, NAME, DamagedError, Journal, Record, encode, read
from admin.edits.model import ActiveEdit, Change

STAMP = "20261121T120000Z"


def standing(number: int, rate: float = 5) -> ActiveEdit:
    return ActiveEdit(change_id=number, at="", by="a", address="", reason="why", limit={"rate": rate})


def record(number: int, **names: float | None) -> Record:
    """Put limits of names in, or take them away."""
    written = {f"limits/topic/{name}": None if rate is None else standing(number, rate) for name, rate in names.items()}
    change = Change(id=number, at="", by="a", address="", action="set", target="limits/topic/a")
    return Record(written, (change,))


RECORDS = [record(1, a=1), record(2, a=2, b=3), record(3, a=None), record(4, c=4), record(5, b=None, a=9)]
DATA = HEADER + b"".join(map(encode, RECORDS))


def rates(standings: dict[str, ActiveEdit]) -> dict[str, float]:
    return {path.rpartition("/")[2]: each.limit["rate"] for path, each in standings.items() if each.limit is not None}


#: What stands after each number of records, and how long the file is then.
STEPS = [
    (len(HEADER) + sum(len(encode(each)) for each in RECORDS[:count]), rates(read(HEADER + b"".join(
        encode(each) for each in RECORDS[:count])).active))
    for count in range(len(RECORDS) + 1)
]  # fmt: skip


def test_what_was_written_is_read_again() -> None:
    content = read(DATA)
    assert rates(content.active) == {"c": 4, "a": 9}
    assert [change.id for change in content.changes] == [1, 2, 3, 4, 5]
    assert (content.last_id, content.size, content.torn) == (5, len(DATA), b"")


def test_cut_anywhere_whole_groups_are_there_and_the_last_one_is_not_by_half() -> None:
    for cut in range(len(DATA) + 1):
        content = read(DATA[:cut])
        size, standings = max((step for step in STEPS if step[0] <= cut), default=(0, {}), key=lambda step: step[0])
        assert rates(content.active) == standings
        assert (content.size, content.torn) == (size, DATA[size:cut])


@pytest.mark.parametrize("mask", [1, 0x20, 0x80, 0xFF])
def test_one_wrong_byte_anywhere_is_found(mask: int) -> None:
    for at in range(len(DATA)):
        data = bytearray(DATA)
        data[at] ^= mask
        with pytest.raises(DamagedError):
            read(bytes(data))


def test_several_wrong_bytes_never_make_a_wrong_limit() -> None:
    chance = random.Random(5)
    right = [standings for _, standings in STEPS]
    for _ in range(5_000):
        data = bytearray(DATA)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if bytes(data) == DATA:
            continue
        try:
            content = read(bytes(data))
        except DamagedError:
            continue
        assert rates(content.active) in right
        assert content.torn


def test_a_line_that_the_disk_lost_is_cut_off() -> None:
    line = encode(RECORDS[4])
    for lost in (line[:40] + bytes(len(line) - 40), line[:40] + bytes(len(line) - 41) + b"\n", bytes(500)):
        content = read(HEADER + b"".join(map(encode, RECORDS[:4])) + lost)
        assert rates(content.active) == STEPS[4][1]
        assert content.torn == lost


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"sluice-edits 2\nwhatever", "another version of Sluice \\(format 2\\)"),
        (b"\x7fELF", "no journal of Sluice's"),
        (DATA + b"%08x %08x %s\n" % (14, 0x3E8B2B6D, b'{"whatever":1}'), "another version's|damaged"),
    ],
)
def test_what_others_wrote_is_foreign(data: bytes, what: str) -> None:
    with pytest.raises(DamagedError, match=what):
        read(data)


def test_a_record_with_more_fields_is_another_versions() -> None:
    body = b'{"written":{},"changes":[],"more":1}'
    line = b"%08x %08x %s\n" % (len(body), journal.zlib.crc32(body), body)
    with pytest.raises(DamagedError, match="line 7 is another version's") as caught:
        read(DATA + line)
    assert caught.value.foreign
    assert caught.value.last_id == 5


def test_a_damaged_file_is_set_aside_as_a_whole_and_its_ids_do_not_come_again(tmp_path: Path) -> None:
    damaged = DATA.replace(b'"rate":3', b'"rate":7')
    for name in (f"{NAME}.damaged-{STAMP}", f"{NAME}.damaged-{STAMP}-2"):
        (tmp_path / NAME).write_bytes(damaged)
        opened = Journal(tmp_path, STAMP)
        opened.close()
        assert opened.set_aside == tmp_path / name
        assert opened.damage == "line 3 is damaged"
        assert opened.set_aside.read_bytes() == damaged
        assert (opened.active, opened.last_id) == ({}, 5)


def test_a_torn_line_is_kept_beside_and_written_over(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(DATA[:-10])
    opened = Journal(tmp_path, STAMP)
    opened.append(record(6, d=6))
    opened.close()
    assert (tmp_path / f"{NAME}.torn").read_bytes() == DATA[STEPS[4][0] : -10]
    assert rates(read((tmp_path / NAME).read_bytes()).active) == {**STEPS[4][1], "d": 6}


def test_history_is_given_up_once_it_is_most_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LEAST_BYTES", 2_000)
    opened = Journal(tmp_path, STAMP)
    count = 0
    while not opened.is_history:
        count += 1
        opened.append(record(count, a=count, b=1))
    opened.compact()
    assert not opened.is_history
    opened.append(record(count + 1, c=1))
    opened.close()
    content = read((tmp_path / NAME).read_bytes())
    assert rates(content.active) == {"a": count, "b": 1, "c": 1}
    assert [change.id for change in content.changes] == [count + 1]
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def fail_once(monkeypatch: pytest.MonkeyPatch, call: str, partly: int = 0) -> Callable[[], None]:
    """Let the next call fail, after so many bytes if it writes; returns what lets it work again."""
    real = getattr(journal.os if hasattr(journal, "os") else __import__("os"), call)

    def broken(descriptor: int, *arguments: bytes) -> int:
        if partly:
            real(descriptor, bytes(arguments[0][:partly]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"admin.common.disk.os.{call}", broken)
    return lambda: monkeypatch.setattr(f"admin.common.disk.os.{call}", real)


@pytest.mark.parametrize("cut_fails", [False, True])
@pytest.mark.parametrize(("call", "partly"), [("write", 0), ("write", 25), ("fdatasync", 0)])
def test_what_failed_to_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, partly: int, *, cut_fails: bool
) -> None:
    opened = Journal(tmp_path, STAMP)
    opened.append(record(1, a=1))
    mend = [fail_once(monkeypatch, call, partly)]
    if cut_fails:
        mend.append(fail_once(monkeypatch, "ftruncate"))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            opened.append(record(2, b=2))
    assert rates(opened.active) == {"a": 1}
    for each in mend:
        each()
    opened.append(record(2, c=3))
    opened.close()
    assert rates(read((tmp_path / NAME).read_bytes()).active) == {"a": 1, "c": 3}


def test_an_empty_file_is_damage_since_none_is_ever_made_so(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"")
    journal = Journal(tmp_path, "now")
    assert (journal.damage, journal.set_aside) == ("it is empty", tmp_path / f"{NAME}.damaged-now")
    assert (tmp_path / NAME).read_bytes() == HEADER
    journal.close()
