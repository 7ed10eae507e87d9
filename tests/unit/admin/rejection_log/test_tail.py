import gzip
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from log_traffic import rejection_of

from admin.common.disk import open_to_read
from admin.common.errors import StartError
from admin.rejection_log import tail as module
from admin.rejection_log.composer import Composer
from admin.rejection_log.files import Figures
from admin.rejection_log.records import AnyRecord, HeartbeatRecord, TrafficRecord
from admin.rejection_log.tail import tail, text_of
from limiter.counting.rejections import Amount, Rejection, TrafficSecond
from limiter.rules.rule_set import RuleSet

RUN = "0123456789ab"
NAME = f"rejections-a-{RUN}-{{:06}}.jsonl"
AT = 1_700_000_000


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


def written(*rejections: Rejection, instance: str = "a", run: str = RUN, begin_s: int = AT) -> list[bytes]:
    """Return refusals as lines, a second apart."""
    composer = Composer(instance, run, max_resources=1, figures=Figures(), now_s=AT)
    made: list[tuple[str, bytes]] = []
    seconds = [TrafficSecond(begin_s + number, (), (each,), 0) for number, each in enumerate(rejections)]
    composer.compose(made, seconds, RuleSet(()), AT)
    return [line for _, line in made]


def lines(count: int, client: str = "c", **more: Any) -> list[bytes]:
    return written(*(rejection_of(client=f"{client}{number}") for number in range(count)), **more)


def test_a_time_that_no_calendar_has_is_a_line_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (good,) = lines(1)
    far, before = (good.replace(b":%d" % AT, b":%d" % at_s) for at_s in (10**17, -(10**12)))
    (tmp_path / "a.jsonl").write_bytes(far + before + good)
    assert tail([tmp_path]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert shown.err == "sluice: lines that are unreadable or from another version: 2\n"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_without_an_end_is_not_held_in_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINE_BYTES", 1000)
    content = b"x" * 100_000 + b"\n" + b"".join(lines(2))
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("z") else content)
    assert tail([tmp_path], 2) == 0
    assert clients(capsys.readouterr().out) == ["c0", "c1"]
    (tmp_path / name).write_bytes(gzip.compress(b"x" * 100_000) if name.endswith("z") else b"x" * 100_000)
    assert tail([tmp_path], 10**30) == 0
    assert capsys.readouterr().out == ""


def test_an_impossible_path_is_reported_in_words(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="file name too long"):
        tail([tmp_path / ("x" * 300)])


def clients(text: str) -> list[str]:
    return [line.partition(" client=")[2].split(" ")[0] for line in text.splitlines()]


def test_the_last_records_are_shown_in_order_over_packed_files_and_half_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    each = lines(9)
    (tmp_path / "sub").mkdir()
    with gzip.open(tmp_path / (NAME.format(1) + ".gz"), "wb") as packed:
        packed.write(b"".join(each[:3]))
    (tmp_path / "sub" / NAME.format(2)).write_bytes(b"".join(each[3:6]))
    # An incomplete line is being written.
    (tmp_path / NAME.format(3)).write_bytes(b"".join(each[6:]) + b'{"type":')
    (tmp_path / ".hidden.jsonl").write_bytes(b"[]\n")
    assert tail([tmp_path], 8) == 0
    shown = capsys.readouterr()
    assert clients(shown.out) == [f"c{number}" for number in range(1, 9)]
    assert shown.err == ""
    assert tail([tmp_path / "sub" / NAME.format(2), tmp_path / "sub"], 2) == 0
    assert clients(capsys.readouterr().out) == ["c4", "c5"]
    assert tail([tmp_path], 0) == 0
    assert capsys.readouterr().out == ""


def test_old_files_are_not_read_for_a_few_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 4):
        path = tmp_path / NAME.format(number)
        path.write_bytes(b"".join(lines(5, begin_s=AT + 1000 * number, client=f"{number}-")))
        os.utime(path, (AT + 1000 * number + 5, AT + 1000 * number + 5))
    read: list[str] = []
    real = open_to_read

    def watched(path: Path) -> int:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(module, "open_to_read", watched)
    assert tail([tmp_path], 3) == 0
    assert clients(capsys.readouterr().out) == ["3-2", "3-3", "3-4"]
    assert read == [NAME.format(3)]


def test_a_copied_file_shows_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_bytes(b"".join(lines(2)))
    (tmp_path / "other.jsonl").write_bytes(b"".join(lines(1, instance="b\x1b[2J", run="f" * 12, begin_s=AT + 9)))
    assert tail([tmp_path], 10) == 0
    rest = "producer_group=producers rule=topic:orders verdict=refuse requests=1 messages=1 bytes=1 wait_max_us=7"
    assert capsys.readouterr().out.splitlines() == [
        f"2023-11-14 22:13:20 rejection    topic orders instance=a client=c0 {rest}",
        f"2023-11-14 22:13:21 rejection    topic orders instance=a client=c1 {rest}",
        f"2023-11-14 22:13:29 rejection    topic orders instance=b\\x1b[2J client=c0 {rest}",
    ]


def test_unreadable_lines_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junk = [b"\0\xff\n", b"[" * 100_000 + b"\n", b'{"type":"new","v":2}\n', b'{"type":"x"}\n', b"\n"]
    newer = lines(1)[0].replace(b'"v":1', b'"v":2')
    (tmp_path / "a.jsonl").write_bytes(b"".join([*lines(1), *junk, newer]))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"".join(lines(1)))[:-20])
    assert tail([tmp_path], 10) == 1
    shown = capsys.readouterr()
    assert clients(shown.out) == ["c0"]
    unread, count = shown.err.splitlines()
    assert count == "sluice: lines that are unreadable or from another version: 5"
    assert unread.startswith(f"sluice: {tmp_path}/cut.jsonl.gz: ")


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="nothing: no such file or folder"):
        tail([tmp_path / "nothing"])


def test_colours_are_for_terminals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines(1)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    tail([tmp_path])
    assert "\x1b[31m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    tail([tmp_path])
    assert "\x1b" not in capsys.readouterr().out


def test_a_line_has_the_fields_that_are_not_as_by_default_and_no_lists_by_second() -> None:
    head: Any = {"v": 1, "instance": "a", "run": "r", "n": 1, "at_s": AT}
    beat = HeartbeatRecord(**head, version="1", seconds=9, limiting=False, bypassed_requests={"rate_limit/late": 2})
    assert text_of(beat) == (
        "2023-11-14 22:13:20 heartbeat    instance=a version=1 seconds=9 limiting=false"
        ' bypassed_requests={"rate_limit/late":2}'
    )
    traffic = TrafficRecord(
        **head, kind="topic", name="a b\x1b[2J", refused=Amount(1, 2, 3), second=(9,), second_refused=(2,)
    )
    assert text_of(traffic) == (
        '2023-11-14 22:13:20 traffic      topic "a b\\u001b[2J" instance=a'
        ' refused={"requests":1,"messages":2,"bytes":3}'
    )


def test_following_continues_across_rotation_cuts_and_new_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    each = lines(8)
    first, second = tmp_path / NAME.format(1), tmp_path / NAME.format(2)
    first.write_bytes(each[0] + each[1][:7])

    def rest() -> None:
        first.write_bytes(each[0] + each[1])

    def rotate() -> None:
        with first.open("ab") as file:
            file.write(each[2])
        second.write_bytes(each[3] + each[4][:9])

    def cut() -> None:
        # Incomplete writes are cut off again.
        second.write_bytes(each[3])

    def pack() -> None:
        (tmp_path / (first.name + ".gz")).write_bytes(gzip.compress(first.read_bytes()))
        first.unlink()
        second.write_bytes(each[3] + each[5])

    steps = [rest, rotate, cut, pack]

    async def step(_: float) -> None:
        await trio.lowlevel.checkpoint()
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(trio, "sleep", step)
    with pytest.raises(KeyboardInterrupt):
        tail([tmp_path], 1, follow=True)
    assert clients(capsys.readouterr().out) == ["c0", "c1", "c2", "c3", "c5"]


def test_an_empty_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="contains no rejection log files"):
        tail([tmp_path])


@pytest.mark.parametrize(
    ("rule", "end"), [("adaptive listener:*", "(the broker was at capacity)"), ("topic:a", "wait_max_us=7")]
)
def test_a_refusal_by_an_adaptive_limit_has_a_reason(rule: str, end: str) -> None:
    line = written(rejection_of(rule=rule))[0]
    assert text_of(msgspec.json.decode(line, type=AnyRecord)).endswith(end)
