"""Compares the broker's own reading of a frame with the codec's."""

import json
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from harness.paths import program

from proxy.protocols.rocketmq.wire.codes import CONSUMING, MAX_NAME_CHARS
from proxy.protocols.rocketmq.wire.header import STRICT, UNPARSED, Header, classify

_HERE = Path(__file__).parent
_FLUSH = struct.pack(">i", -1)
_KEY_OF_CODE = {10: "topic", 324: "topic", 310: "topic", 320: "topic", 325: "topic", 36: "group"}

# The oracle's reading of one frame, see Oracle.java. Without a ``code`` the broker closed the connection.
Reading = dict[str, Any]


def frame(header: bytes, header_type: int = 0, body: bytes = b"") -> bytes:
    """Return a frame with correct lengths, whatever its header."""
    return struct.pack(">iI", 4 + len(header) + len(body), header_type << 24 | len(header)) + header + body


class Oracle:
    """A Java program with the broker's classes."""

    def __init__(self, classpath: str, home: Path) -> None:
        self._errors = (home / "oracle.log").open("wb")
        self._process = subprocess.Popen(
            [
                program("java"),
                "-Xmx512m",
                "-XX:+UseSerialGC",
                f"-Duser.home={home}",
                "-cp",
                f"{_HERE}:{classpath}",
                str(_HERE / "Oracle.java"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._errors.close()

    def read(self, frames: Sequence[bytes]) -> list[Reading]:
        """Return the broker's reading of each frame, each on a separate connection."""
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None

        def ask() -> None:
            for one in frames:
                questions.write(struct.pack(">i", len(one)) + one)
            questions.write(_FLUSH)
            questions.flush()

        # In a thread, because both pipes are smaller than the data.
        writer = threading.Thread(target=ask)
        writer.start()
        lines = [answers.readline() for _ in frames]
        writer.join()
        assert all(lines), f"the oracle ended: see {self._errors.name}"
        return [json.loads(line) for line in lines]


@dataclass
class Comparison:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unparsed: list[bytes] = field(default_factory=list)


def compare(oracle: Oracle, headers: Iterable[tuple[bytes, int]], *, subscriptions: bool = False) -> Comparison:
    """Compare both readings of (type, header) pairs. ``subscriptions``: whether those are limited."""
    comparison = Comparison()
    asked = list(headers)
    for (header, header_type), reading in zip(asked, oracle.read([frame(*one) for one in asked]), strict=True):
        answer = classify(header, header_type, subscriptions)
        _judge(comparison, header, answer, reading, resource_of(reading, subscriptions=subscriptions))
    return comparison


def resource_of(reading: Reading, *, subscriptions: bool = False) -> tuple[str, str] | None:
    """Return the resource that the broker's reading stands for. None if it is not limitable."""
    if "code" not in reading or reading["response"] or "refused" in reading:
        return None
    if subscriptions and reading["code"] in CONSUMING:
        group, topic = reading["consumer_group"], reading["topic"]
        return None if group is None or topic is None else ("subscription", f"{group}@{topic}")
    key = _KEY_OF_CODE.get(reading["code"])
    name = reading[key] if key is not None else None
    if name is None:
        return None
    if key == "group":
        return ("retry_group", name)
    return ("retry_group", name[7:]) if name.startswith("%RETRY%") else ("topic", name)


def _judge(
    comparison: Comparison, header: bytes, answer: Header, reading: Reading, expected: tuple[str, str] | None
) -> None:
    if "code" not in reading:
        comparison.counts["closed by the broker"] += 1
        return
    if answer.reading == UNPARSED:
        comparison.counts["unparsed, limitable" if expected else "unparsed, other"] += 1
        if expected:
            comparison.unparsed.append(header)
        return
    strict = answer.reading == STRICT
    comparison.counts[f"{'strict' if strict else 'lenient'}, {'limitable' if expected else 'other'}"] += 1
    pairs: dict[str, tuple[object, object]] = {
        "code": (answer.code, reading["code"]),
        "flag": (answer.flag, reading["flag"]),
        "version": (answer.version, reading["version"]),
    }
    if strict or answer.opaque:  # the broker numbers headers without an opaque
        pairs["opaque"] = (answer.opaque, reading["opaque"])
    if expected:
        pairs["resource"] = ((answer.kind, answer.name), expected)
        if "batch" in reading:
            pairs["batch"] = (answer.is_batch, reading["batch"])
            if strict:
                pairs["producer group"] = (answer.producer_group, (reading["producer_group"] or "")[:MAX_NAME_CHARS])
    elif strict and "refused" not in reading:
        pairs["kind"] = (answer.kind, "")
    wrong = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    if wrong:
        comparison.wrong.append(f"{header!r}: {wrong}")
