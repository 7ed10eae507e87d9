"""What logs of the real world have besides records: copies, broken lines, late files; and storms at the very edge."""

import gzip
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from log_maker.making import START_S, Made

MIDNIGHT_S: Final = START_S + 7200
BAD_LINES: Final = 13
"""So many lines ``soil`` adds that are no records."""


@dataclass(frozen=True)
class Soiled:
    """What was added."""

    duplicates: int
    bad_lines: int
    records: int


def soil(folder: Path, made: Made, gap_s: int = 30) -> Soiled:
    """Add to logs what must change no result, and some records at the edge."""
    more = folder / "more" / "deeper"
    more.mkdir(parents=True)
    first = made.files[0]
    duplicates = 0
    # A copy under another name, one as .gz, and two files in one.
    shutil.copy(first, more / "copy.jsonl")
    last = made.files[-1].read_bytes()
    (more / "zipped.jsonl.gz").write_bytes(gzip.compress(last))
    (more / "both.jsonl").write_bytes(first.read_bytes() + last)
    duplicates = 2 * (first.read_bytes().count(b"\n") + last.count(b"\n"))
    # A file that is being written, and one that is hidden: neither is there.
    (folder / ".rejections-x.jsonl.open").write_bytes(b'{"type":')
    (more / ".hidden.jsonl").write_bytes(last)
    edge = _edge(gap_s)
    (folder / "more" / "late.jsonl").write_text("\n".join([*edge, "", "   "]) + "\n", encoding="utf-8")
    (folder / "more" / "bad.jsonl").write_bytes(b"\n".join(bad_lines()))
    return Soiled(duplicates, BAD_LINES, len(edge))


def _edge(gap_s: int) -> list[str]:
    """Return records: storms over midnight, exactly the gap apart, one second more, ties, and several of one key."""
    lines: list[str] = []

    def rejection(at_s: int, name: str, client: str = "10.9.9.9", messages: int = 5, **other: object) -> None:
        record = {
            "type": "rejection", "v": 1, "instance": "edge", "run": "edge-run", "n": len(lines) + 1, "at_s": at_s,
            "kind": "topic", "name": name, "client": client, "producer_group": "g", "rule": "r", "verdict": "refuse",
            "requests": 1, "messages": messages, "bytes": 100, "wait_max_us": 7, **other,
        }  # fmt: skip
        lines.append(json.dumps(record, ensure_ascii=False))

    for at_s in range(MIDNIGHT_S - 40, MIDNIGHT_S + 40):
        rejection(at_s, "over midnight")
    for step in (0, gap_s, 2 * gap_s):
        rejection(MIDNIGHT_S + step, "exactly the gap")
        rejection(MIDNIGHT_S + step * (gap_s + 1) // gap_s, "a second more")
    # Over the end of an hour, where slots end too.
    for at_s in (3599, 3600 + gap_s - 1, 3600 + 2 * gap_s):
        rejection(MIDNIGHT_S + at_s, "over the hour")
    for place in range(30):
        rejection(MIDNIGHT_S + 100, "ties", client=f"10.0.0.{place:02d}", messages=3)
        rejection(MIDNIGHT_S + 100, "ties", client=f"10.0.0.{place:02d}", messages=3, producer_group="")
        whose = {"user": f"u{place % 2}", "product": f"p{place % 3}"}
        rejection(MIDNIGHT_S + 300, "users", client=f"10.0.0.{place % 5:02d}", messages=place, **whose)
    for _ in range(3):
        rejection(MIDNIGHT_S + 200, "again", client="_other")
    rejection(MIDNIGHT_S + 200, 'names "with" {braces} and ünïcode', client="[::1]")
    rejection(MIDNIGHT_S + 5000, "only held", verdict="hold")
    rejection(MIDNIGHT_S + 5000, "nothing in it", messages=0)
    # The last thing known of this instance is within the gap: this one may go on.
    rejection(MIDNIGHT_S + 6000 - gap_s, "still open")
    rejection(MIDNIGHT_S + 6000 - gap_s - 1, "just over")
    rejection(MIDNIGHT_S + 6000, "at the end")
    return lines


def bad_lines() -> list[bytes]:
    """Return lines that are no records."""
    good = {
        "type": "rejection", "v": 1, "instance": "bad", "run": "bad-run", "n": 1, "at_s": MIDNIGHT_S, "kind": "topic",
        "name": "bad", "client": "c", "rule": "r", "verdict": "refuse", "requests": 1, "messages": 1, "bytes": 1,
    }  # fmt: skip
    text = json.dumps(good).encode()
    traffic = {
        "type": "traffic", "v": 1, "instance": "bad", "run": "bad-run", "n": 2, "at_s": MIDNIGHT_S, "kind": "topic",
        "name": "bad",
    }  # fmt: skip
    lines = [
        b"\x00\xff\xfe junk \x80",
        text.replace(b'"topic"', b'"t\xffpic"'),
        text + text,
        text + b" and more",
        b"[" + text + b"]",
        b"17",
        json.dumps({**good, "v": 2}).encode(),
        json.dumps({**good, "n": "one"}).encode(),
        json.dumps({key: value for key, value in good.items() if key != "client"}).encode(),
        json.dumps({**good, "type": "rumour"}).encode(),
        json.dumps({**good, "messages": -1}).encode(),
        json.dumps({**traffic, "second": [1, 2], "second_admitted": [1]}).encode(),
        text[:-20],
    ]
    if len(lines) != BAD_LINES:
        raise ValueError(f"{len(lines)} bad lines, not {BAD_LINES}")
    return lines
