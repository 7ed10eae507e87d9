"""The last hour of a resource, read from files, also while they are written."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from admin.rejection_log import history as module
from admin.rejection_log.files import FileName
from admin.rejection_log.history import HistoryReader, read
from admin.rejection_log.records import HeartbeatRecord, RejectionRecord, TrafficRecord, line_of
from admin.wire import RefusedClient, ResourceHistory
from limiter.counting.rejections import Amount
from limiter.rules.resource import Resource
from proxy.common.clock import write_time

ORDERS = Resource("topic", "orders")
NOW_S = 1_767_322_980
RUN = "0a1b2c3d4e5f"


class Log:
    """A folder that a run writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = iter(range(1, 1_000_000))

    def write(self, number: int, *records: msgspec.Struct, age_s: int = 0) -> Path:
        path = self.path / str(FileName("broker-a", RUN, number))
        path.write_bytes(b"".join(map(line_of, records)))
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))
        return path

    def _record(self, type_: Any, at_s: int, **fields: Any) -> Any:
        return type_(v=1, instance="broker-a", run=RUN, n=next(self._numbers), at_s=at_s, **fields)

    def traffic(self, at_s: int, name: str = "orders", **fields: Any) -> TrafficRecord:
        record: TrafficRecord = self._record(TrafficRecord, at_s, kind="topic", name=name, **fields)
        return record

    def refusal(self, at_s: int, *, name: str = "orders", **fields: Any) -> RejectionRecord:
        usual = {"client": "10.0.0.1", "rule": "topic:orders", "verdict": "refuse", "requests": 1, "messages": 1}
        record: RejectionRecord = self._record(
            RejectionRecord, at_s, kind="topic", name=name, bytes=9, **{**usual, **fields}
        )
        return record

    def alive(self, at_s: int, **fields: Any) -> HeartbeatRecord:
        record: HeartbeatRecord = self._record(HeartbeatRecord, at_s, **{"version": "0", "seconds": 60, **fields})
        return record

    def minute(self, at_s: int, passed: int = 0, refused: int = 0, **fields: Any) -> list[Any]:
        columns = {"second": (0,), "second_admitted": (passed,), "second_refused": (refused,)}
        return [self.traffic(at_s, **columns, **fields), self.alive(at_s)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def known(history: ResourceHistory) -> list[int]:
    return [index for index, passed in enumerate(history.passed) if passed is not None]


def test_a_heartbeat_before_the_requested_time_is_ignored(log: Log) -> None:
    log.write(1, log.alive(NOW_S - 100, seconds=10), log.alive(NOW_S - 30, seconds=10))
    history = read(log.path, ORDERS, 60, NOW_S)
    assert known(history) == list(range(30, 40))


def test_seconds_are_listed_one_by_one_and_longer_times_in_steps(log: Log) -> None:
    log.write(1, *log.minute(NOW_S - 120, 300, 60, rate_per_s=100.0), *log.minute(NOW_S - 60, 8))
    history = read(log.path, ORDERS, 120, NOW_S)
    assert (history.begin_at[11:19], history.step_s) == (write_time_s(NOW_S - 120), 1)
    assert (history.passed[:2], history.refused[:2]) == ((300.0, 0.0), (60.0, 0.0))
    assert (history.passed[60], history.limit[0], history.limit[60]) == (8.0, 100.0, None)
    hour = read(log.path, ORDERS, 3600, NOW_S)
    assert (hour.step_s, len(hour.passed)) == (4, 900)
    assert (hour.passed[870], hour.refused[870]) == (75.0, 15.0)
    assert known(hour) == list(range(870, 900))
    assert (hour.problem, hour.cut, hour.others_together) == (None, False, False)


def write_time_s(at_s: int) -> str:
    return write_time(datetime.fromtimestamp(at_s, UTC))[11:19]


def test_dropped_and_refused_are_counted_separately(log: Log) -> None:
    second = {"second": (0, 5, 9), "second_admitted": (9, 0, 0), "second_refused": (30, 40, 7)}
    log.write(1, log.traffic(NOW_S - 60, **second, refused=Amount(47, 47, 0), dropped=Amount(30, 30, 0)))
    log.write(2, log.alive(NOW_S - 60), *log.minute(NOW_S - 120, 1, 20))
    history = read(log.path, ORDERS, 120, NOW_S)
    # The log has only their sum by second.
    assert [(history.refused[at], history.dropped[at]) for at in (0, 60, 65, 69)] == [(20, 0), (0, 30), (40, 0), (7, 0)]


def test_counts_follow_from_rates_and_the_seconds_that_are_known(log: Log) -> None:
    log.write(1, *log.minute(NOW_S - 62, 7, 2), log.alive(NOW_S - 62))
    hour = read(log.path, ORDERS, 3600, NOW_S)
    assert hour.seconds[-17:] == (0, 2, *(4,) * 14, 2)
    counts = [round(rate * seconds) for rate, seconds in zip(hour.passed, hour.seconds, strict=True) if rate]
    assert (counts, sum(hour.seconds)) == ([7], 60)


def test_limit_is_that_of_its_time(log: Log) -> None:
    def part(ago_s: int, rate: float) -> Any:
        at_s = NOW_S - ago_s
        columns = {"second": (at_s % 60, at_s % 60 + 9), "second_admitted": (1, 1), "second_refused": (0, 0)}
        return log.traffic(at_s - at_s % 60, rate_per_s=rate, **columns)

    log.write(1, part(180, 100.0), part(40, 100.0), part(30, 250.0), part(20, 250.0))
    assert read(log.path, ORDERS, 180, NOW_S).limit == (100.0,) * 150 + (250.0,) * 30


def test_held_messages_are_spread_over_their_minute(log: Log) -> None:
    log.write(1, log.traffic(NOW_S - 60, held=Amount(30, 30, 0)), log.alive(NOW_S - 60))
    assert set(read(log.path, ORDERS, 60, NOW_S).held) == {0.5}


def test_minutes_without_a_sign_of_life_are_unknown_and_not_nothing(log: Log) -> None:
    log.write(1, log.alive(NOW_S - 180), log.alive(NOW_S - 60))
    history = read(log.path, ORDERS, 180, NOW_S)
    assert history.passed == (0.0,) * 60 + (None,) * 60 + (0.0,) * 60
    assert history.known_from is not None


def test_a_file_that_is_being_written_is_read_up_to_its_last_whole_line(log: Log) -> None:
    log.write(1, *log.minute(NOW_S - 120, 5))
    path = log.write(2, *log.minute(NOW_S - 60, 7))
    with path.open("ab") as file:
        file.write(line_of(log.traffic(NOW_S - 60))[:-20])
    os.utime(path, (NOW_S, NOW_S))
    history = read(log.path, ORDERS, 120, NOW_S)
    assert (history.passed[0], history.passed[60]) == (5.0, 7.0)


def test_the_minute_under_way_is_known_as_far_as_its_heartbeats_say(log: Log) -> None:
    columns = {"second": (0, 2), "second_admitted": (8, 8), "second_refused": (2, 0)}
    first = log.traffic(NOW_S, held=Amount(20, 20, 0), rate_per_s=50.0, **columns)
    log.write(1, log.alive(NOW_S - 10, seconds=10), first, log.alive(NOW_S, seconds=10), log.refusal(NOW_S + 11))
    history = read(log.path, ORDERS, 60, NOW_S + 15)
    assert history.passed == (*(None,) * 35, *(0.0,) * 10, 8.0, 0.0, 8.0, *(0.0,) * 7, *(None,) * 5)
    assert (history.refused[45], history.limit[47], history.held[45:48]) == (2.0, 50.0, (10.0, 0.0, 10.0))
    assert history.messages_refused == 1


def test_refused_clients_are_listed_with_amounts_and_rules(log: Log) -> None:
    whose = {"client": "10.0.0.2", "user": "shop", "product": "JAVA 5", "producer_group": "g"}
    log.write(
        1,
        log.refusal(NOW_S - 9, **whose, messages=10),
        log.refusal(
            NOW_S - 8, client="10.0.0.2", user="shop", product="JAVA 5", producer_group="g", rule="total:topic:*"
        ),
        log.refusal(NOW_S - 7, messages=3),
        log.refusal(NOW_S - 6, client="10.0.0.3", verdict="shadow", messages=40),
        log.refusal(NOW_S - 6, client="10.0.0.3", verdict="hold", messages=50),
        log.refusal(NOW_S - 5, name="orders2", messages=900),
        log.refusal(NOW_S - 4000, messages=900),
        log.refusal(NOW_S + 4000, messages=900),
    )
    history = read(log.path, ORDERS, 3600, NOW_S)
    first, second, third = history.clients
    assert first == RefusedClient(
        client="10.0.0.2",
        user="shop",
        product="JAVA 5",
        producer_group="g",
        rules=("topic:orders", "total:topic:*"),
        requests=2,
        messages_refused=11,
        messages_shadowed=0,
        messages_held=0,
        last_at=first.last_at,
        share=0.7857,
    )
    assert first.last_at[11:19] == write_time_s(NOW_S - 8)
    assert (second.client, second.messages_refused) == ("10.0.0.1", 3)
    assert (third.messages_refused, third.messages_shadowed, third.messages_held) == (0, 40, 50)
    assert (history.messages_refused, history.more_clients) == (14, 0)


def test_clients_beyond_the_bounds_are_counted_together(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS", 150)
    log.write(1, *(log.refusal(NOW_S - 9, client=f"10.0.{n // 200}.{n % 200}") for n in range(400)))
    history = read(log.path, ORDERS, 60, NOW_S)
    assert (len(history.clients), history.more_clients, history.messages_refused) == (100, 51, 400)
    assert (history.clients[0].client, history.clients[0].messages_refused) == ("_other", 250)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "ü/%2F ", "a\nb", "\u2028", '","kind":"x'])
def test_any_name_is_found_as_it_is_written(log: Log, name: str) -> None:
    log.write(1, log.refusal(NOW_S - 9, name=name), log.refusal(NOW_S - 9, name="a"))
    assert read(log.path, Resource("topic", name), 60, NOW_S).messages_refused == 1


def test_limits_that_are_off_or_of_requests_are_reported_as_such(log: Log) -> None:
    log.write(
        1,
        log.traffic(NOW_S - 120, rate_per_s=5.0, action="off"),
        log.traffic(NOW_S - 60, rate_per_s=6.0, count="requests"),
    )
    history = read(log.path, ORDERS, 120, NOW_S)
    assert (history.limit[0], history.limit[60], history.limit_count) == (None, 6.0, "requests")


def test_of_too_large_a_log_the_latest_part_is_read_and_marked(log: Log) -> None:
    lines = [record for n in range(10, 0, -1) for record in log.minute(NOW_S - 60 * n, 60 - n)]
    path = log.write(1, *lines)
    whole = read(log.path, ORDERS, 600, NOW_S)
    assert (len(known(whole)), whole.cut) == (600, False)
    half = read(log.path, ORDERS, 600, NOW_S, path.stat().st_size // 2)
    assert half.cut
    assert half.bytes_read <= path.stat().st_size // 2
    # The minute of the first line read may have begun before it.
    assert known(half) == list(range(360, 600))
    assert half.passed[540] == 59.0
    nothing = read(log.path, ORDERS, 600, NOW_S, 0)
    assert (nothing.cut, known(nothing), nothing.bytes_read) == (True, [], 0)


def test_reading_time_is_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(1, *log.minute(NOW_S - 60, 5))
    monkeypatch.setattr(module, "MAX_S", -1.0)
    history = read(log.path, ORDERS, 60, NOW_S)
    assert (history.cut, known(history)) == (True, [])


def test_a_file_that_cannot_be_read_is_a_problem_and_the_rest_is_read(log: Log) -> None:
    log.write(1, *log.minute(NOW_S - 60, 5))
    path = log.write(2)
    path.unlink()
    path.symlink_to("gone")
    assert (read(log.path, ORDERS, 60, NOW_S).passed[0], read(log.path, ORDERS, 60, NOW_S).problem) == (5.0, None)
    path.unlink()
    os.mkfifo(path)
    history = read(log.path, ORDERS, 60, NOW_S)
    assert (history.passed[0], history.problem) == (5.0, f"{path}: not a regular file")


def test_files_of_other_times_and_other_files_are_not_read(log: Log) -> None:
    log.write(1, *log.minute(NOW_S - 60, 5), age_s=4000)
    (log.path / "notes.jsonl").write_bytes(line_of(log.refusal(NOW_S - 9)))
    history = read(log.path, ORDERS, 3600, NOW_S)
    assert (history.bytes_read, history.clients, known(history)) == (0, (), [])


def test_lines_that_cannot_be_read_or_are_of_another_version_are_left_out(log: Log) -> None:
    path = log.write(1, *log.minute(NOW_S - 60, 5))
    newer = json.loads(line_of(log.refusal(NOW_S - 9))) | {"v": 2}
    with path.open("ab") as file:
        file.write(b'{"type":"rejection","kind":"topic","name":"orders"\n\xff\n' + json.dumps(newer).encode() + b"\n")
    os.utime(path, (NOW_S, NOW_S))
    history = read(log.path, ORDERS, 60, NOW_S)
    assert (history.passed[0], history.clients, history.problem) == (5.0, (), None)


def test_resources_counted_together_are_reported(log: Log) -> None:
    log.write(1, log.alive(NOW_S - 60, other=3))
    assert read(log.path, ORDERS, 60, NOW_S).others_together


async def test_without_a_log_the_answer_has_the_reason() -> None:
    history = await HistoryReader().of(ORDERS, 60)
    assert history.problem == "the rejection log is off, so there is no history"
    assert history.passed == (None,) * 60
    assert (await HistoryReader(None, "/x: no space left").of(ORDERS, 60)).problem == "/x: no space left"


async def test_a_folder_that_is_gone_is_a_problem_and_no_fault(tmp_path: Path) -> None:
    history = await HistoryReader(tmp_path / "gone").of(ORDERS, 60)
    assert history.problem is not None
    assert history.problem.startswith(f"{tmp_path / 'gone'}: ")


async def test_a_disk_that_does_not_answer_is_reported(
    log: Log, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def hangs(*_: Any, **__: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio.to_thread, "run_sync", hangs)
    history = await HistoryReader(log.path).of(ORDERS, 60)
    assert history.problem == f"{log.path}: the disk has not responded for 15 s"
