"""Lines and files of the log: records, quarantined lines, and reasons. Files in, tables and results out."""

import gzip
import json
import random
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from log_truth import START_S, Run
from small_log import write_blank_log

Report = Callable[..., Any]
NOT_UTF8 = "not UTF-8"
NO_OBJECT = "not a JSON object with fields of the right types"
NO_VERSION = "no schema version"
UNKNOWN = "unknown record type"
MISSING = "a field is missing"
OUT_OF_RANGE = "a value is out of range"
NO_CLOCK = "its time is before 2020, so the clock was not set"
AHEAD = "its time is more than a day in the future"
DAMAGED = "is damaged or truncated; the rest was not read"
HEAD: dict[str, Any] = {"v": 1, "instance": "i", "run": "r", "n": 1, "at_s": START_S, "kind": "topic", "name": "bad"}
GOOD: dict[str, Any] = {
    **HEAD, "type": "rejection", "client": "10.0.0.1", "producer_group": "g", "rule": "rule", "verdict": "refuse",
    "requests": 2, "messages": 3, "bytes": 400, "wait_max_us": 5,
}  # fmt: skip
TRAFFIC: dict[str, Any] = {**HEAD, "type": "traffic"}
CHANGE: dict[str, Any] = {**HEAD, "type": "limit_change", "change_id": 1, "action": "set"}
TEXT = json.dumps(GOOD).encode()
TWO = {f"second_{what}": [1, 1] for what in ("admitted", "refused", "requests", "bytes")}
BAD: dict[str, list[Any]] = {
    NOT_UTF8: [b"\x00\xff\xfe junk \x80", TEXT.replace(b'"bad"', b'"b\xffd"')],
    NO_OBJECT: [
        TEXT[:-20], 17, None, "text", [GOOD], TEXT + TEXT, TEXT + b" and more", TEXT + b"\t" + TEXT,
        b"[" * 20_000, b'{"a":' * 20_000, {**GOOD, "n": "one"}, {**GOOD, "n": 1.5}, {**GOOD, "v": "1"},
        {**GOOD, "v": True}, {**TRAFFIC, "second": [1, "two"]}, {**GOOD, "client": None}, {**CHANGE, "action": None},
        {**TRAFFIC, "second": [1, None], **TWO}, {**TRAFFIC, "second": [1, 2], **TWO, "second_bytes": [None, 2]},
        {**TRAFFIC, "languages": {"GO": [None, 1]}}, {**TRAFFIC, "languages": {"GO": None}},
    ],
    # Each damaged one would be a separate reason.
    NO_VERSION: [{}, {**GOOD, "v": None}, {**GOOD, "v": 20_261}, {**GOOD, "v": -1}],
    "unsupported schema version 2": [{**GOOD, "v": 2}, {"v": 2, "type": "rumour"}],
    UNKNOWN: [{**GOOD, "type": "rumour"}, {**GOOD, "type": None}, {**GOOD, "type": ""}],
    MISSING: [
        *({key: value for key, value in GOOD.items() if key != left_out} for left_out in ("client", "run", "at_s")),
    ],
    AHEAD: [{**GOOD, "at_s": 4_085_856_000}],
    NO_CLOCK: [{**GOOD, "at_s": 0}, {**GOOD, "at_s": 1_577_836_799}],
    OUT_OF_RANGE: [
        {**GOOD, "n": 0}, {**GOOD, "n": 2**63}, {**CHANGE, "change_id": 2**63},
        {**GOOD, "messages": -1}, {**GOOD, "bytes": 10**13}, {**GOOD, "at_s": -1},
        # The minute that begins then ends in the year 10000.
        {**GOOD, "at_s": 10**12}, {**TRAFFIC, "at_s": 253_402_300_740}, {**TRAFFIC, "at_s": START_S + 1},
        {**GOOD, "verdict": "maybe"}, {**CHANGE, "action": "drop"}, {**TRAFFIC, "action": "shrug"},
        {**TRAFFIC, "rate_per_s": 1e308}, {**TRAFFIC, "bytes_per_s": -1}, {**TRAFFIC, "burst_s": -1},
        {**TRAFFIC, "break_s": 3601}, {**TRAFFIC, "max_delay_s": 3601}, {**CHANGE, "rate_after_per_s": 2e9},
        {**CHANGE, "change_id": -(2**63)}, {**TRAFFIC, "admitted": [1, -2, 3]},
        {**TRAFFIC, "second": [1, 2], "second_admitted": [1]}, {**TRAFFIC, "second": [1, 60], **TWO},
        {**TRAFFIC, "second": [1, 2], **TWO, "second_repeated": [1]}, {**TRAFFIC, "second_admitted": [1]},
        {**TRAFFIC, "second": [0] * 61}, {**TRAFFIC, "second": [1, 1], **TWO}, {**TRAFFIC, "second": [2, 1], **TWO},
        {**GOOD, "verdict": "Object missing required field, got `int`"}, {**TRAFFIC, "languages": {"GO": [1, -1]}},
        {**HEAD, "type": "heartbeat", "version": "1", "seconds": 60, "bypassed_requests": {"a/b": 2**62}},
        {**HEAD, "type": "heartbeat", "version": "1", "seconds": 61},
    ],
}  # fmt: skip


def _line(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bad lines by reason, of packed files, and of odd names."""
    logs = tmp_path_factory.mktemp("lines") / "odd {name} [1]*?"
    logs.mkdir()
    for number, (reason, values) in enumerate(BAD.items()):
        run = Run("i", f"good-{number}")
        run.reject(START_S, "good", 1)
        content = b"\n".join([run.lines[0], b"", *map(_line, values), b" \t\r"])
        (logs / f"{reason.replace(' ', '%20')}.jsonl").write_bytes(content)
    draw, packed = random.Random(4), Run("i", "packed")
    for at in range(3000):
        packed.reject(START_S + 3600 + at, "packed", client=draw.randbytes(40).hex())
    text = b"\n".join(packed.lines)
    whole = gzip.compress(text)
    members = b"".join(gzip.compress(line + b"\n") for line in packed.lines) + gzip.compress(b"") + bytes(100)
    for name, content in {
        "whole": whole, "members": members, "sum": whole[:-8] + bytes(8), "torn": whole[: len(whole) // 2],
        "text": TEXT, "zlib": zlib.compress(TEXT), "tail": gzip.compress(b"") + b"no gzip",
        "a%3Ab ü": gzip.compress(b"\n"),
    }.items():  # fmt: skip
        (logs / f"{name}.jsonl.gz").write_bytes(content)
    # Names with JSON's special characters, fields of a later release, and white space around.
    odd = Run("i", "odd")
    for name in ('"}{ü', '} {"a":1', "\t\n\u2028😀", "\\"):
        odd.reject(START_S + 7200, name, later={"x": [1]})
    odd.reject(START_S + 7200, "many", 10**12, bytes=1)
    odd.traffic(START_S + 7200, '"}{ü', {3: (1, 1)}, rate_per_s=None, languages={'{"': [1, 1], "}": [2, 0]})
    (logs / "ünïcode" / "a=b").mkdir(parents=True)
    (logs / "ünïcode" / "a=b" / "100%.jsonl").write_bytes(
        BOM_UTF8 + b"\r\n".join(b" " + line + b" " for line in odd.lines)
    )
    return logs


@pytest.fixture(params=["by this process", "by workers"])
def logs(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """The folder alone, or beside blank lines that make the log so large that Spark's workers read it."""
    if request.param == "by this process":
        return folder
    large = tmp_path / "large"
    large.mkdir()
    (large / folder.name).symlink_to(folder)
    write_blank_log(large)
    return large


def test_invalid_lines_are_skipped_with_the_reason(report: Report, logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    inputs = report(out, logs, once=True)["inputs"]
    found = {(Path(each["file"]).name, each["reason"]): each for each in inputs["set_aside"]}
    lines = {(f"{reason.replace(' ', '%20')}.jsonl", reason): len(values) for reason, values in BAD.items()}
    damaged = {(f"{name}.jsonl.gz", DAMAGED): 0 for name in ("sum", "torn", "text", "zlib", "tail")}
    assert {key: each["lines"] for key, each in found.items()} == lines | damaged
    assert inputs["bad_lines"] == sum(lines.values())
    for reason, values in BAD.items():
        example = found[f"{reason.replace(' ', '%20')}.jsonl", reason]["example"]
        assert example in {_line(value).decode(errors="replace")[:200] for value in values}
    with duckdb.connect() as duck:
        rows = f"FROM read_parquet('{out}/refusals/dt=*/*.parquet')"
        # The packed records are there once, however often they were packed.
        packed = f"SELECT count(*), count(DISTINCT client), sum(messages) {rows} WHERE name = 'packed'"
        assert duck.execute(packed).fetchone() == (3000, 3000, 3000)
        assert duck.execute(f"SELECT sum(messages) {rows} WHERE name = 'good'").fetchone() == (len(BAD),)
        names = duck.execute(
            f"SELECT name {rows} WHERE name NOT IN ('packed', 'good', 'many') ORDER BY name"
        ).fetchall()
        assert [name for (name,) in names] == sorted(('"}{ü', '} {"a":1', "\t\n\u2028😀", "\\"))
        minute = f"SELECT languages::VARCHAR FROM read_parquet('{out}/minutes/dt=*/*.parquet')"
        assert len(duck.execute(minute).fetchall()) == 1
    # Hours of each file are known, whatever its name.
    kept = json.loads((out / "_files.json").read_bytes())["files"]
    hours = {file.partition("*?/")[2]: its["hours"] for file, its in kept.items() if its["hours"]}
    assert hours["ünïcode/a=b/100%.jsonl"] == [START_S + 7200]
    assert hours["members.jsonl.gz"] == hours["whole.jsonl.gz"] == [START_S + 3600]
    assert "a%3Ab ü.jsonl.gz" not in hours


def test_of_a_period_the_rest_is_left_out_and_a_file_that_has_gone_is_named(
    report: Report, folder: Path, tmp_path: Path
) -> None:
    run, gone = Run("i"), tmp_path / "logs" / "gone.jsonl"
    for at in range(10):
        run.traffic(START_S + 60 * at, "orders", {0: (5, 2)})
        run.beat(START_S + 60 * at)
    gone.parent.mkdir()
    for file in (gone, tmp_path / "logs" / "there.jsonl"):
        file.write_bytes(b"\n".join(run.lines))
    found = report(tmp_path / "out", tmp_path / "logs", since_s=START_S + 300, until_s=START_S + 480, gone=[gone])
    assert (found["inputs"]["records"], found["totals"]["admitted"], found["totals"]["refused"]) == (6, 15, 6)
    aside = [(each["file"], each["reason"]) for each in found["inputs"]["set_aside"]]
    assert aside == [(str(gone), "was deleted while being read")]
