"""Nanoseconds of processor time that the compiled part takes per publish and confirm of AMQP 0.9.1.

A chunk is what one read of 256 KiB brings. *Cut in Python* is the least that any reading there has to do: a look at
each frame's beginning and end, and at the names of each publish, or the number of each confirm.
"""

import json
import struct
import sys
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from machine import Work, ns_per_piece, one_thread
from report import aligned

from limiter.compiled import COMPILED, VERSION
from limiter.counting.rejections import OUTCOMES
from limiter.deciding.limits import Caller, Limits
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

if TYPE_CHECKING:
    from sluice_native import Publishes

CHUNK_BYTES: Final = 256 * 1024
METHOD, HEADER, BODY = 1, 2, 3
FRAME_MAX: Final = 131_072
MAX_KEYS, MAX_RUNS, MAX_PUBLISHES = 1024, 4096, 10_000
KINDS: Final = ("queue", "exchange", "routing_key")


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return one frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def short(text: bytes) -> bytes:
    """Return a short string."""
    return bytes([len(text)]) + text


def publish(channel: int, exchange: bytes, key: bytes, body_bytes: int) -> list[bytes]:
    """Return the frames of one publish, with the properties that most clients send."""
    properties = short(b"application/octet-stream") + b"\2"
    return [
        frame(METHOD, channel, struct.pack(">HHH", 60, 40, 0) + short(exchange) + short(key) + b"\0"),
        frame(HEADER, channel, struct.pack(">HHQH", 60, 0, body_bytes, 1 << 15 | 1 << 12) + properties),
        frame(BODY, channel, bytes(body_bytes)),
    ]


def publishes(body_bytes: int, keys: int = 1, channels: int = 1, exchange: bytes = b"") -> tuple[bytes, int]:
    """Return a chunk of publishes, and how many there are; frames of several channels lie between each other."""
    size = sum(map(len, publish(1, exchange, b"bench000000", body_bytes)))
    count = CHUNK_BYTES // size // channels * channels
    chunk = []
    for first in range(0, count, channels):
        some = [publish(1 + at, exchange, b"bench%06d" % ((first + at) % keys), body_bytes) for at in range(channels)]
        chunk += [each[part] for part in range(3) for each in some]
    return b"".join(chunk), count


def confirms(method: int, numbers: range, *, multiple: bool = False) -> bytes:
    """Return confirms of the broker's."""
    arguments = [struct.pack(">HHQB", 60, method, number, multiple) for number in numbers]
    return b"".join(frame(METHOD, 1, each) for each in arguments)


def cutting(chunk: bytes, count: int) -> Work:
    """Return what cuts a chunk in Python."""
    view, prefix_at, method_at = memoryview(chunk), struct.Struct(">BHI").unpack_from, struct.Struct(">I").unpack_from
    publish_method, number_at = 60 << 16 | 40, struct.Struct(">QB").unpack_from

    def cut() -> list[object]:
        position, size, found = 0, len(view), list[object]()
        while size - position >= 8:
            kind, channel, length = prefix_at(view, position)
            stop = position + length + 8
            if stop > size or view[stop - 1] != 0xCE:
                break
            if kind == METHOD:
                if method_at(view, position + 7)[0] == publish_method:
                    behind = position + 14 + view[position + 13]
                    found.append((channel, bytes(view[position + 13 : behind + 1 + view[behind]])))
                else:
                    found.append(number_at(view, position + 11))
            position = stop
        return found

    return cut, count


class Bench:
    """One connection, and what limits it."""

    def __init__(self, module: Any, rules: tuple[Rule, ...] = ()) -> None:
        self.limits = Limits(RuleSet(rules))
        self.module = module
        self.sender = self.limits._accounts.sender("192.0.2.1")

    def channels(self, *, confirms: bool = False) -> Any:
        """Return a connection with many channels that are plain."""
        channels = self.module.Channels(self.limits.resources, KINDS, "", FRAME_MAX, MAX_KEYS)
        for number in range(1, 65):
            channels.mark(number)
            if confirms:
                channels.select(number)
        return channels

    def decide(self, taken: "Publishes", now_ns: int) -> None:
        """Admit and count."""
        if self.limits.admit(now_ns, Caller("192.0.2.1", "", "main"), taken, 0) != taken.runs:
            raise AssertionError("something was refused")
        accounts = self.limits._accounts
        taken.count(accounts.at(now_ns), now_ns, self.sender, OUTCOMES.index("admitted"), ())


def scanning(bench: Bench, chunk: bytes, count: int, *, decides: bool = False) -> Work:
    """Return what scans a chunk, and with ``decides`` admits, counts and forwards it."""
    channels, view, now_ns = bench.channels(), memoryview(chunk), [0]

    def scan() -> None:
        taken = channels.scan(view, 0, MAX_RUNS, MAX_PUBLISHES, False)
        if len(taken) != count:
            raise AssertionError(f"{len(taken)} of {count} were taken")
        if decides:
            now_ns[0] += 1_000_000
            bench.decide(taken, now_ns[0])
            taken.forward(())

    return scan, count


def refusing(bench: Bench, chunk: bytes, count: int) -> Work:
    """Return what refuses all of a chunk that was scanned."""
    taken = bench.channels(confirms=True).scan(memoryview(chunk), 0, MAX_RUNS, MAX_PUBLISHES, False)
    return lambda: (taken.kept(range(count), 0, len(chunk)), taken.refuse(range(count))), count


def settling(bench: Bench, step: int, *, differ: bool) -> Work:
    """Return what notes the publishes of a new channel as forwarded, and takes a confirm of every ``step`` of them."""
    channels = bench.channels(confirms=True)
    chunk, count = publishes(128)
    taken = channels.scan(memoryview(chunk), 0, MAX_RUNS, MAX_PUBLISHES, False)
    answers = memoryview(confirms(80, range(step, count + step, step), multiple=step > 1))

    def settle() -> None:
        channels.forget(1)
        channels.select(1)
        if differ:
            channels.forward(1, 2)
        taken.forward(())
        if channels.settle(answers, 0, True)[0] != len(answers):
            raise AssertionError("something was left")

    return settle, count


def works(module: Any) -> dict[str, tuple[Work, Work]]:
    """Return what is measured: each in compiled code, and what cuts the same in Python."""
    unlimited, limited = Bench(module), Bench(module, (Rule("queue", "*", 1_000_000_000),))
    small, large, many = publishes(128), publishes(1024), publishes(128, 1000)
    between = publishes(128, channels=16)
    answers = confirms(80, range(1, small[1] + 1))
    of_each = cutting(answers, small[1])
    return {
        "scan, 128 bytes": (scanning(unlimited, *small), cutting(*small)),
        "scan, 1 KiB": (scanning(unlimited, *large), cutting(*large)),
        "scan, 128 bytes, frames of 16 channels in turn": (scanning(unlimited, *between), cutting(*between)),
        "decided and counted as well, 128 bytes": (scanning(limited, *small, decides=True), cutting(*small)),
        "decided and counted as well, 1 KiB": (scanning(limited, *large, decides=True), cutting(*large)),
        "decided and counted as well, 1000 queues": (scanning(limited, *many, decides=True), cutting(*many)),
        "decided and counted as well, 16 channels": (scanning(limited, *between, decides=True), cutting(*between)),
        "all refused: what is kept, and the answers": (refusing(unlimited, *small), cutting(*small)),
        "confirms that pass": (settling(unlimited, 1, differ=False), of_each),
        "confirms of each by another number": (settling(unlimited, 1, differ=True), of_each),
        "confirms of 16 at once by other numbers": (settling(unlimited, 16, differ=True), of_each),
    }


def main() -> int:
    """Measure every case in turn, round by round, and print medians."""
    given = one_thread("publishes.py", __doc__, is_compiled=COMPILED is not None)
    assert COMPILED is not None
    cases = works(COMPILED)
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(given.rounds):
        for name, (work, cut) in cases.items():
            rounds[name].append((ns_per_piece(work, given.seconds), ns_per_piece(cut, given.seconds)))
    lines = [["ns each", f"the compiled part {VERSION}", "cut in Python", "of that"]]
    for name, some in rounds.items():
        compiled, python = (median(each[way] for each in some) for way in (0, 1))
        ratio = median(each[0] / each[1] for each in some)
        lines.append([name, f"{compiled:,.1f}", f"{python:,.1f}", f"{ratio:.1%}"])
    print(f"the publishes of a chunk, one thread (median of {given.rounds})")
    print(aligned(lines))
    if given.json:
        given.json.write_text(json.dumps(rounds, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
