"""What the worst header costs in each reading, and a search for worse ones.

    .venv/bin/python tests/bench/worst_headers.py                   # the table of the worst headers known
    .venv/bin/python tests/bench/worst_headers.py --seconds 600     # searches for worse ones before

A header here is a beginning, a part that is repeated until the size is reached, and an end; a search changes these
three, joins those of two headers, and keeps what costs most for each byte. It has two measures: instructions of the
interpreter, which are the same in every run, and the processor's time, of which the least of some runs is taken, for
what happens in C and in the compiled part. Neither knows what else the machine does. The same seed makes the same
headers as long as the measures agree; the headers that a search found can be kept (``--save``) and measured again
elsewhere (``--load``), as in a working tree of another version with PYTHONPATH.

The table has milliseconds of the processor for headers of each size: the worst of each size, so that a row says how
a reading grows. The last column is the worst header of the largest size.
"""

import argparse
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from playbook import frames
from playbook.captures import CAPTURES
from playbook.steps import opcodes

from limiter.deciding.limits import Limits
from limiter.rules.rule_set import RuleSet
from proxy.protocols.base import CommandRequest, CommandStatus
from proxy.protocols.rocketmq.about import MAX_HEARTBEAT_BYTES, AboutClient
from proxy.protocols.rocketmq.limit_commands import LimitCommandReader
from proxy.protocols.rocketmq.options import Networks, RocketMQOptions
from proxy.protocols.rocketmq.scanning import MAX_RUNS, SCAN
from proxy.protocols.rocketmq.wire import lenient
from proxy.protocols.rocketmq.wire.binary import read_binary
from proxy.protocols.rocketmq.wire.header import classify
from proxy.protocols.rocketmq.wire.reading import Header

SIZES: Final = tuple(kib * 1024 for kib in (1, 4, 16, 64, 256))
#: Headers are compared at this size while searching, and every so often at a larger one.
_SEARCH_BYTES: Final = 4 * 1024
_POOL: Final = 24
_FIXED: Final = struct.Struct(">hBhiii")


class Genes(NamedTuple):
    """What a header of any size is made of."""

    head: bytes
    unit: bytes
    tail: bytes

    def header(self, size: int, *, binary: bool) -> bytes:
        """Return one of about that size; of a binary one the length of the fields is made to fit."""
        times = max(0, size - len(self.head) - len(self.tail)) // max(1, len(self.unit))
        data = self.head + self.unit * times + self.tail
        if not binary or len(data) < _FIXED.size + 4:
            return data
        at = _FIXED.size + max(0, min(_FIXED.unpack_from(data)[5], len(data) - _FIXED.size - 4))
        return data[:at] + struct.pack(">i", len(data) - at - 4) + data[at + 4 :]


class Reading(NamedTuple):
    """One reading of a client's bytes.

    Attributes:
        read: takes the bytes.
        binary: it is shown binary headers.
        known: what to begin with.
    """

    read: Callable[[bytes], object]
    binary: bool
    known: Sequence[Genes]


_JSON: Final = (
    Genes(b'{"code":34,', b" ", b"?"),
    Genes(b'{"code":34,"', b'\\"', b""),
    Genes(b'{"code":34', b"\\0", b"?"),
    Genes(b'{"code":34,"', b"\\x41\\x4", b""),
    Genes(b'{"code":"310","x":', b"[", b""),
    Genes(b'{"code":"310","x":[', b"1,", b"1]}"),
    Genes(b'{"code":"310"', b',"x":1', b"}"),
    Genes(b'{"code":"310"', b',"' + b"x" * 32 + b'":1', b"}"),
    Genes(b'{"code":"310"', b',"' + b"\\x78" * 31 + b'":1', b"}"),
    Genes(b'{"code":"310","extFields":{"b":"x","a":"', b"\\n", b'"}}'),
    Genes(b'{"code":"310","extFields":{"b":"x","a":"', b"\\ud83d", b'"}}'),
    Genes(b'{"code":"310","language":"', b"\\n", b'"}'),
    Genes(b'{"code":"310","language":', b"0", b"}"),
    Genes(b'{"code":"', b"\\n", b'"}'),
    Genes(b'{"code":"310","remark":"', b"x\\n", b'"}'),
    Genes(b'{"code":"310","remark":"', b"x\xc3\xc3", b'"}'),
    Genes(b'{"code":"310","flag":', b"1", b"}"),
    Genes(b'{"code":310,"opaque":1,"extFields":{"b":"x"', b',"":""', b"}}"),
    Genes(b'{"code":310,"opaque":1,"extFields":{"b":"x"', b',"b":"yy"', b"}}"),
    Genes(b'{"code":310,"opaque":1,"extFields":{"b":"x"', b',"z":[[]]', b"}}"),
    Genes(b'{"code":310,"opaque":1,"extFields":{"b":"x"', b',"f":' + b"9" * 4299, b"}}"),
    Genes(b'{"code":11,"opaque":1,"extFields":{"consumerGroup":"g","topic":"x"', b',"topic":"y"', b"}}"),
    Genes(b'{"opaque":1', b',"code":1', b"}"),
    Genes(b'{"code":310,"opaque":1,"remark":"', "\u00e9\U0001f600".encode(), b'","extFields":{"b":"x"}}'),
    Genes(b'{"code":310,"opaque":1,"remark":"', b'\\"$re', b'","extFields":{"b":"x"}}'),
    Genes(b'{"code":310,"opaque":1,"flag":1.', b"1", b',"extFields":{"b":"x"}}'),
)


def _fields(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value for key, value in fields)


_TOPIC: Final = _fields((b"b", b"x"))
_START: Final = _FIXED.pack(310, 0, 5, 7, 0, 1) + b"r" + bytes(4)
_JAVA: Final = _FIXED.pack(310, 0, 5, 7, 0, 0) + bytes(4) + _fields((b"a", b"g"), (b"b", b"x"))
_BINARY: Final = (
    Genes(_START, _fields((b"", b"")), _TOPIC),
    Genes(_START, _fields((b"k", b"v" * 500)), _TOPIC),
    Genes(_START + _TOPIC, _fields((b"k", b"\xff" * 40)), b""),
    Genes(_START + _TOPIC, b"", b"?"),
    Genes(_JAVA, b"\0\1m\0\0\0\5false", b""),
    Genes(_JAVA, b"\0\1", b""),
    Genes(_JAVA + struct.pack(">h", 1) + b"z" + struct.pack(">i", 100), b"\0\1c", b""),
    Genes(_FIXED.pack(11, 0, 5, 7, 0, 0) + bytes(4), _fields((b"topic", b"x"), (b"consumerGroup", b"g")), b""),
)
_SPLICES: Final = (
    *(b'"', b"'", b"\\", b"\\\\", b'\\"', b"\\u0041", b"\\ud83d", b"\\x41", b"{", b"}", b"[", b"]", b":", b",", b" "),
    *(b"\0", b"\t", b"\xc3", b"\xe2", b"\xf0", b"\x80", b"\xc3\xa9", b"0", b"1", b".", b"-", b"e", b"a", b"_", b"$"),
    *(b'"a":"g",', b'"b":"T",', b'"code":310,', b'"extFields":{', b'"x":', b"null", b"true", b'"$ref"', b"{}", b"[]"),
    *(b"\0\1b", b"\0\0\0\1", b"\0\0\0\0", b"\0\0\0\0\0\0", b"\xff\xff", b"\0\1m\0\0\0\4true"),
)


def readings() -> Mapping[str, Reading]:
    """Return what is to be measured, by what people call it."""
    found = {
        "strict, else lenient": Reading(lambda data: classify(data, 0, True), False, _JSON),
        "lenient alone": Reading(lenient.read_json, False, _JSON),
        "binary": Reading(lambda data: read_binary(data, subscriptions=True), True, _BINARY),
        "heartbeat": Reading(_hear, False, _JSON),
        "signing off": Reading(lambda data: AboutClient().sign_off(data, 0), False, _JSON),
        "9003": Reading(_update, False, _JSON),
    }
    resources = Limits(RuleSet()).resources
    if SCAN is not None and resources is not None:
        scanner = SCAN.scanner(SCAN.opaques(), resources)
        for word, header_type, known in (("JSON", 0, _JSON), ("binary", 1, _BINARY)):

            def scan(data: bytes, header_type: int = header_type) -> object:
                return scanner.scan(memoryview(frames.frame(data, header_type=header_type)), 0, 2**24, MAX_RUNS)

            found[f"compiled part, {word}"] = Reading(scan, header_type == 1, known)
    return found


def _hear(data: bytes) -> None:
    AboutClient().heartbeat(min(len(data), MAX_HEARTBEAT_BYTES), memoryview(data)[:MAX_HEARTBEAT_BYTES])


def _take(ask: CommandRequest) -> CommandStatus:
    del ask
    return "taken"


_REMOTE: Final = RocketMQOptions(remote_update_from=Networks((ip_network("127.0.0.0/8"),)))


def _update(data: bytes) -> None:
    LimitCommandReader("127.0.0.1", _REMOTE, _take).take(Header("", "", 9003, 1, 0), data, 0)


def cpu_ms(read: Callable[[bytes], object], data: bytes, runs: int) -> float:
    """Return what reading takes of the processor, the least of some runs; hopeless ones run once."""
    least = float("inf")
    for _ in range(runs):
        began = time.thread_time_ns()
        read_safely(read, data)
        least = min(least, (time.thread_time_ns() - began) / 1e6)
        if least > 1000:
            break
    return least


def read_safely(read: Callable[[bytes], object], data: bytes) -> None:
    """Read; an error is a fault, but not what is looked for here."""
    try:
        read(data)
    except Exception as error:  # noqa: BLE001 - say so, and go on
        fault = f"{type(error).__name__}: {str(error)[:100]}"
        if fault not in _faults:
            _faults[fault] = data[:80]


_faults: dict[str, bytes] = {}


class Search:
    """A search for the worst headers of one reading.

    Args:
        reading: as given.
        random: decides everything but what the measures say.
        others: headers of real clients, whose pieces are used.
    """

    def __init__(self, reading: Reading, random: Random, others: Sequence[bytes]) -> None:
        self._reading = reading
        self._random = random
        self._others = others
        self.tried = 0
        self.pools: tuple[list[tuple[float, Genes]], ...] = ([], [])
        for genes in reading.known:
            for pool in range(2):
                self._enter(pool, genes)

    def run(self, seconds: float) -> None:
        """Search for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # Counting instructions takes a hundred times as long as reading.
            pool = 0 if self.tried % 8 == 0 else 1
            self._enter(pool, self._changed(pool))

    def _enter(self, number: int, genes: Genes) -> None:
        self.tried += 1
        score = self._score(number, genes)
        pool = self.pools[number]
        if len(pool) < _POOL or score > pool[-1][0]:
            if number == 1:
                score = min(score, self._score(number, genes))  # an interrupt is no find
            pool.append((score, genes))
            pool.sort(key=lambda each: -each[0])
            del pool[_POOL:]

    def _score(self, number: int, genes: Genes) -> float:
        size = _SEARCH_BYTES if self.tried % 4 else 8 * _SEARCH_BYTES
        data = genes.header(size, binary=self._reading.binary)
        read = self._reading.read
        if number == 0:
            return opcodes(lambda: read_safely(read, data)) / max(len(data), 512)
        return cpu_ms(read, data, 2) / max(len(data), 512)

    def _changed(self, number: int) -> Genes:
        random, pool = self._random, self.pools[number]
        parts = list(random.choice(pool)[1])
        for _ in range(random.choice((1, 1, 2, 4))):
            at = random.choice((0, 1, 1, 1, 2))
            part = parts[at]
            start = random.randrange(len(part) + 1)
            end = min(len(part), start + random.choice((0, 0, 1, 2, 8)))
            match random.randrange(6):
                case 0:
                    part = part[:start] + part[end:]
                case 1:
                    part = part[:start] + bytes([random.randrange(256)]) + part[end:]
                case 2:
                    part = part[:start] + part[start:end] * random.randrange(2, 5) + part[end:]
                case 3:
                    other = random.choice(self._others)
                    piece = random.randrange(len(other))
                    part = part[:start] + other[piece : piece + random.randrange(40)] + part[end:]
                case 4:
                    part = random.choice(random.choice(self.pools)[:])[1][at] if random.random() < 0.3 else part
                case _:
                    part = part[:start] + random.choice(_SPLICES) + part[end:]
            parts[at] = part[:600]
        return Genes(*parts)

    def worst(self) -> Iterator[Genes]:
        """Return the best of both pools, the known ones among them."""
        yield from self._reading.known
        for pool in self.pools:
            for _, genes in pool:
                yield genes


def table(reading: Reading, candidates: Sequence[Genes]) -> tuple[list[float], Genes]:
    """Return the worst milliseconds for each size, and the worst header of the largest."""
    worst: list[tuple[float, Genes]] = []
    hopeless: set[Genes] = set()
    for size in SIZES:
        found = (0.0, candidates[0])
        for genes in candidates:
            if genes in hopeless:
                continue
            data = genes.header(size, binary=reading.binary)
            took = cpu_ms(reading.read, data, 3)
            if took > found[0]:
                took = min(took, cpu_ms(reading.read, data, 3))
            found = max(found, (took, genes))
            if took > 500:
                hopeless.add(genes)  # four times the size may take minutes
        if hopeless and found[0] < 500:
            found = (float("inf"), next(iter(hopeless)))
        worst.append(found)
    return [took for took, _ in worst], worst[-1][1]


def main(arguments: Sequence[str]) -> None:
    """Search and print."""
    parser = argparse.ArgumentParser(prog="worst_headers.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0, help="search for so long, all together (default 0)")
    parser.add_argument("--seed", type=int, default=1, help="of the search (default 1)")
    parser.add_argument("--save", type=Path, help="keep what was found in this file")
    parser.add_argument("--load", type=Path, help="measure what was found and kept")
    given = parser.parse_args(arguments)
    found: dict[str, list[list[str]]] = json.loads(given.load.read_text()) if given.load else {}
    real = [whole[8 : 8 + int.from_bytes(whole[5:8])] for each in CAPTURES for whole in frames.split(each.to_broker)]
    of_each = readings()
    print("ms of the processor".ljust(24) + "".join(f"{size // 1024:>7} KiB" for size in SIZES) + "  tried  worst")
    for name, reading in of_each.items():
        candidates = [Genes(*map(bytes.fromhex, parts)) for parts in found.get(name, ())]
        search = Search(reading, Random(given.seed), [header for header in real if header])
        search.run(given.seconds / len(of_each))
        candidates = list(dict.fromkeys([*search.worst(), *candidates]))
        took, worst = table(reading, candidates)
        if given.save:
            found[name] = [[part.hex() for part in genes] for genes in candidates]
            given.save.write_text(json.dumps(found))
        shown = tuple(part if len(part) < 48 else part[:45] + b"..." for part in worst)
        row = "".join("  (skipped)" if each == float("inf") else f"{each:11.3f}" for each in took)
        print(f"{name:24}{row}{search.tried:7}  {shown}", flush=True)
    for fault, data in _faults.items():
        print(f"FAULT {fault}: {data!r}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
