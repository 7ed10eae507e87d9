"""Nanoseconds of processor time that the compiled part takes per transfer and disposition of AMQP 1.0.

A chunk is what one read of 256 KiB brings. *Read in Python* is the least that the session does of a frame that it reads
itself: its header and its performative's fields.
"""

import json
import struct
import sys
from statistics import median
from typing import Any, Final

from machine import Work, ns_per_piece, one_thread
from report import aligned

from limiter.compiled import COMPILED, VERSION
from proxy.protocols.amqp10 import wire

CHUNK_BYTES: Final = 256 * 1024
MAX_RUNS: Final = 512
FIRST_ID: Final = 1_000
COPIES_KEY: Final = b"x-cc"
#: What most clients send in front of the body: an empty header and some properties.
SECTIONS: Final = wire.composite(0x70) + wire.composite(0x73, wire.string("0123456789abcdef"))


def transfer(handle: int, number: int, body_bytes: int) -> bytes:
    """Return the transfer of an unsettled delivery."""
    tag = b"\xa0\x04" + struct.pack(">I", number)
    fields = wire.composite(wire.TRANSFER, wire.uint(handle), wire.uint(number), tag, b"\x43", b"\x42", b"\x42")
    data = b"\x00\x53\x75\xb0" + struct.pack(">I", body_bytes) + bytes(body_bytes)
    return wire.frame(0, fields, SECTIONS + data)


def transfers(body_bytes: int, links: int = 1) -> tuple[bytes, int]:
    """Return a chunk of transfers of some links in turn, and how many there are."""
    count = CHUNK_BYTES // len(transfer(0, FIRST_ID, body_bytes))
    return b"".join(transfer(at % links, FIRST_ID + at, body_bytes) for at in range(count)), count


def dispositions(count: int, step: int = 1) -> bytes:
    """Return a receiver's dispositions of as many deliveries, each of ``step``."""
    accepted = wire.composite(wire.ACCEPTED)
    return b"".join(
        wire.disposition_frame(0, receiver=True, first=first, last=first + step - 1, state=accepted)
        for first in range(FIRST_ID, FIRST_ID + count * step, step)
    )


def scanning(module: Any, chunk: bytes, count: int, *, copies: bool = False) -> Work:
    """Return what scans a chunk in which all is plain."""
    links, view = module.Links(COPIES_KEY), memoryview(chunk)
    links.begin(0)
    for handle in range(64):
        links.mark(0, handle, None, copies)

    def scan() -> None:
        if links.scan(view, 0, MAX_RUNS)[0] != len(view):
            raise AssertionError("something was left")

    return scan, count


def renumbering(module: Any, chunk: bytes, count: int) -> Work:
    """Return what writes a chunk with other numbers of deliveries."""
    view, sessions = memoryview(chunk), [(0, None, 1, None, 1)]

    def renumber() -> None:
        if module.renumber(view, 0, len(view), sessions)[0] != len(view):
            raise AssertionError("something was left")

    return renumber, count


def reading(chunk: bytes, count: int) -> Work:
    """Return what reads a chunk in Python."""
    view = memoryview(chunk)

    def read() -> None:
        at, stop = 0, len(view)
        while at < stop:
            frame = wire.frame_header(view, at)
            wire.performative(view, at + frame.doff, at + frame.size, whole=True)
            at += frame.size

    return read, count


def works(module: Any) -> dict[str, tuple[Work, Work]]:
    """Return what is measured: each in compiled code, and what reads the same in Python."""
    small, large, turns = transfers(128), transfers(1024), transfers(128, 16)
    one_each, joined = (dispositions(10_000), 10_000), (dispositions(10_000, 2), 10_000)
    return {
        "transfers, 128 bytes": (scanning(module, *small), reading(*small)),
        "transfers, 1 KiB": (scanning(module, *large), reading(*large)),
        "transfers, 128 bytes, 16 links in turn": (scanning(module, *turns), reading(*turns)),
        "transfers, 128 bytes, annotations looked at": (scanning(module, *small, copies=True), reading(*small)),
        "transfers, 128 bytes, written with other numbers": (renumbering(module, *small), reading(*small)),
        "dispositions of one each, written with other numbers": (renumbering(module, *one_each), reading(*one_each)),
        "dispositions of one each": (scanning(module, *one_each), reading(*one_each)),
        "dispositions of two each": (scanning(module, *joined), reading(*joined)),
    }


def main() -> int:
    """Measure every case in turn, round by round, and print medians."""
    given = one_thread("transfers.py", __doc__, is_compiled=COMPILED is not None)
    assert COMPILED is not None
    cases = works(COMPILED)
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(given.rounds):
        for name, (work, read) in cases.items():
            rounds[name].append((ns_per_piece(work, given.seconds), ns_per_piece(read, given.seconds)))
    lines = [["ns each", f"the compiled part {VERSION}", "read in Python", "of that"]]
    for name, some in rounds.items():
        compiled, python = (median(each[way] for each in some) for way in (0, 1))
        ratio = median(each[0] / each[1] for each in some)
        lines.append([name, f"{compiled:,.1f}", f"{python:,.1f}", f"{ratio:.1%}"])
    print(f"the transfers of a chunk, one thread (median of {given.rounds})")
    print(aligned(lines))
    if given.json:
        given.json.write_text(json.dumps(rounds, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
