"""Nanoseconds of processor time that the compiled part's scan takes per frame.

A chunk is what one read of 256 KiB brings. The headers are those of the load generator, with times and identifiers that
change from frame to frame as a client's do; in *lengths vary* their message keys are of 1 to 60 letters, and in *none
alike* their fields are in another order each time, too, so that nothing learned from one header helps with the next.
"""

import json
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import TYPE_CHECKING

from machine import Work, ns_per_piece, one_thread
from report import aligned

from limiter.compiled import VERSION
from limiter.deciding.limits import Limits
from limiter.rules.rule_set import RuleSet
from proxy.protocols.rocketmq.scanning import MAX_RUNS, SCAN, Scan

if TYPE_CHECKING:
    from sluice_native import Scanner

CHUNK_BYTES = 256 * 1024
JSON_HEADER_BYTES = 400
FIRST_OPAQUE = 1_000_000_000
MAX_LENGTH = 1 << 24
HEAD, TAIL = b'{"code":2,"flag":1,"remark":"[RateLimit] for bench need wait:1000microsecs","opaque":', b"}"

Fields = list[tuple[str, str]]


def fields_of(number: int, topics: int, keys: int) -> Fields:
    """Return the fields of a send; its message key has ``keys`` letters."""
    properties = f"UNIQ_KEY\x01FD00000000000000000000000000000{number:029X}\x02KEYS\x01{'k' * keys}\x02WAIT\x01true\x02"
    return [
        *(("a", "bench-producer"), ("b", f"bench{number % topics:06}"), ("c", "TBW102"), ("d", "4")),
        *(("e", str(number % 8)), ("f", "0"), ("g", str(1_795_252_796_322 + number)), ("h", "0"), ("i", properties)),
        *(("j", "0"), ("k", "false"), ("m", "false"), ("n", "broker-a")),
    ]


def json_header(fields: Fields, opaque: int) -> bytes:
    """Return the header as the Java client writes it."""
    header = {
        "code": 310,
        "extFields": dict(fields),
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    return json.dumps(header, separators=(",", ":")).encode()


def binary_header(fields: Fields, opaque: int) -> bytes:
    """Return the header in the other layout."""
    ext = b"".join(
        struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()
        for key, value in fields
    )
    return struct.pack(">hBhiiii", 310, 0, 513, opaque, 0, 0, len(ext)) + ext


@dataclass(frozen=True)
class Case:
    """What the chunks look like.

    Attributes:
        name: for people.
        header_type: 0 is JSON, 1 is binary.
        size: of a frame in bytes.
        topics: so many, in turn.
        alike: 2 if headers are alike, 1 if their lengths vary, 0 if their order does, too.
        frames: so many in a chunk; 0 for as many as fit.
    """

    name: str
    header_type: int
    size: int
    topics: int = 1
    alike: int = 2
    frames: int = 0

    def chunk(self) -> tuple[bytes, int]:
        """Return a chunk, and how many frames are in it."""
        random, frames = Random(310), []
        for number in range(self.frames or CHUNK_BYTES // self.size):
            opaque = FIRST_OPAQUE + number
            keys = 60 if self.alike == 2 else random.randrange(1, 61)
            fields = fields_of(number, self.topics, keys)
            if self.header_type == 0 and self.alike == 2:
                missing = JSON_HEADER_BYTES - len(json_header(fields, opaque))
                fields = fields_of(number, self.topics, keys + missing)
            if not self.alike:
                random.shuffle(fields)
            header = binary_header(fields, opaque) if self.header_type else json_header(fields, opaque)
            word = self.header_type << 24 | len(header)
            body = bytes(self.size - 8 - len(header))
            frames.append(struct.pack(">iI", self.size - 4, word) + header + body)
        return b"".join(frames), len(frames)


CASES = (
    Case("JSON, 536 bytes", 0, 536),
    Case("JSON, 536 bytes, 1000 topics", 0, 536, 1000),
    Case("JSON, 536 bytes, lengths vary", 0, 536, 1, 1),
    Case("JSON, 536 bytes, none alike", 0, 536, 1, 0),
    Case("JSON, 1432 bytes", 0, 1432),
    Case("JSON, 1432 bytes, 1000 topics", 0, 1432, 1000),
    Case("JSON, 536 bytes, one frame a chunk", 0, 536, frames=1),
    Case("binary, 536 bytes", 1, 536),
    Case("binary, 536 bytes, 1000 topics", 1, 536, 1000),
    Case("binary, 536 bytes, none alike", 1, 536, 1, 0),
    Case("binary, 1432 bytes", 1, 1432),
)


def answers(count: int) -> bytes:
    """Return a broker's answers to as many sends."""
    frames = []
    for number in range(count):
        header = (
            f'{{"code":0,"extFields":{{"queueId":"{number % 8}",'
            f'"transactionId":"FD00000000000000000000000000{number:029X}","msgId":"7F00000200002A9F{number:016X}",'
            f'"TRACE_ON":"true","MSG_REGION":"DefaultRegion","queueOffset":"{1000 + number}"}},"flag":1,'
            f'"language":"JAVA","opaque":{FIRST_OPAQUE + number},"serializeTypeCurrentRPC":"JSON","version":513}}'
        ).encode()
        frames.append(struct.pack(">ii", 4 + len(header), len(header)) + header)
    return b"".join(frames)


def scanner_of(scan: Scan) -> "Scanner":
    """Return a scanner of requests that nothing limits."""
    resources = Limits(RuleSet()).resources
    assert resources is not None
    return scan.scanner(scan.opaques(), resources)


def scanning(scan: Scan, case: Case) -> Work | None:
    """Return what scans one chunk; None if the scan leaves some of its frames to the careful reading."""
    chunk, count = case.chunk()
    scanner = scanner_of(scan)
    if len(scanner.scan(memoryview(chunk), 0, MAX_LENGTH, MAX_RUNS)) != count:
        return None
    return lambda: scanner.scan(memoryview(chunk), 0, MAX_LENGTH, MAX_RUNS), count


def refusing(scan: Scan) -> Work:
    """Return what refuses all of a chunk that was scanned."""
    chunk, count = CASES[0].chunk()
    segment = scanner_of(scan).scan(memoryview(chunk), 0, MAX_LENGTH, MAX_RUNS)
    return lambda: (segment.kept(range(count), 0, len(chunk)), segment.refuse(range(count), HEAD, TAIL)), count


def settling(scan: Scan) -> Work:
    """Return what notes a chunk's sends as owed, and steps over their answers."""
    count = CHUNK_BYTES // 536
    chunk, opaques = memoryview(answers(count)), scan.opaques()
    numbers = range(FIRST_OPAQUE, FIRST_OPAQUE + count)

    def settle() -> None:
        for number in numbers:
            opaques.add(number)
        opaques.settle(chunk, 0)

    return settle, count


def main() -> int:
    """Measure every case in turn, round by round, and print medians."""
    given = one_thread("scan.py", __doc__, is_compiled=SCAN is not None)
    assert SCAN is not None
    scan = SCAN
    makes: dict[str, Callable[[Scan], Work | None]] = {
        **{case.name: lambda scan, case=case: scanning(scan, case) for case in CASES},  # type: ignore[misc]  # defaults
        "all refused: what is kept, and the answers": refusing,
        "noted by Python, and settled by answers": settling,
    }
    works = {name: work for name, make in makes.items() if (work := make(scan)) is not None}
    rounds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(given.rounds):
        for name, work in works.items():
            rounds[name].append(ns_per_piece(work, given.seconds))
    lines = [["ns a frame", f"the compiled part {VERSION}", "spread"]]
    for name in makes:
        some = rounds.get(name)
        spread = f"{(max(some) - min(some)) / median(some):.0%}" if some else ""
        lines.append([name, f"{median(some):,.1f}" if some else "left", spread])
    print(f"the scan of a chunk, one thread (median of {given.rounds})")
    print(aligned(lines))
    if given.json:
        given.json.write_text(json.dumps(rounds, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
