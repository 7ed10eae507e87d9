"""The count: all files of a folder, line by line, in plain Python. No engine, no SQL, and no code of Sluice's."""

import json
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from log_truth.truth import Amount, Resource, Storm, Truth

_OUTCOMES: Final = ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped")
_BY_SECOND: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes")
_MINUTE_S: Final = 60
_CHUNK: Final = 1 << 16


def count(folder: Path, *, gap_s: int = 30, since_s: int | None = None, until_s: int | None = None) -> Truth:
    """Count what is in a folder of logs."""
    counting = _Counting()
    damaged = set[str]()
    for file in sorted(folder.rglob("*.jsonl*")):
        if any(part.startswith((".", "_")) for part in file.relative_to(folder).parts):
            continue
        lines = _Lines(file)
        for line in lines:
            if line.strip():
                counting.line(line, since_s or 0, until_s)
        if lines.damaged:
            damaged.add(file.name)
    return counting.truth(gap_s, frozenset(damaged))


class _Lines:
    """The lines of a file, as far as they can be read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.damaged = False

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._unpacked() if self._file.suffix == ".gz" else self._chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        # Of what is damaged, the last line may be the beginning of one.
        if not self.damaged:
            yield rest

    def _chunks(self) -> Iterator[bytes]:
        with self._file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    def _unpacked(self) -> Iterator[bytes]:
        unpacking = zlib.decompressobj(31)
        try:
            for chunk in self._chunks():
                while chunk:
                    yield unpacking.decompress(chunk)
                    chunk = unpacking.unused_data  # noqa: PLW2901 - the next member of the same chunk
                    if chunk:
                        unpacking = zlib.decompressobj(31)
        except zlib.error:
            self.damaged = True
        if not unpacking.eof:
            self.damaged = True


class _Counting:
    def __init__(self) -> None:
        self._seen = set[tuple[str, int]]()
        self._bad_lines = 0
        self._numbers = dict[tuple[str, str], list[int]]()
        """First, last, how many, and how many the run says it has lost."""
        self._totals = defaultdict[Resource, Counter[tuple[str, int]]](Counter)
        self._demand: dict[tuple[Resource, int], array[int]] = {}
        self._refused = defaultdict[tuple[Resource, bool], Counter[tuple[int, str]]](Counter)
        self._beats = Counter[tuple[str, str, int]]()

    def line(self, line: bytes, since_s: int, until_s: int | None) -> None:
        try:
            record = json.loads(line.decode())
            good = _is_record(record)
        except (ValueError, KeyError, TypeError):
            good, record = False, None
        if not good:
            self._bad_lines += 1
            return
        if record["at_s"] < since_s or (until_s is not None and record["at_s"] >= until_s):
            return
        key = record["run"], record["n"]
        if key not in self._seen:
            self._seen.add(key)
            self._record(record)

    def _record(self, record: dict[str, Any]) -> None:
        n, instance = record["n"], record["instance"]
        numbers = self._numbers.setdefault((instance, record["run"]), [n, n, 0, 0])
        numbers[0], numbers[1], numbers[2] = min(numbers[0], n), max(numbers[1], n), numbers[2] + 1
        match record["type"]:
            case "heartbeat":
                numbers[3] = max(numbers[3], record.get("lost_records", 0))
                self._beats[instance, record["run"], record["at_s"] // _MINUTE_S] += record["seconds"]
            case "traffic":
                self._traffic((instance, record["kind"], record["name"]), record)
            case "rejection" if record["verdict"] in {"refuse", "shadow"}:
                resource = instance, record["kind"], record["name"]
                which = self._refused[resource, record["verdict"] == "shadow"]
                which[record["at_s"], record["client"]] += record["messages"]
            case _:
                pass

    def _traffic(self, resource: Resource, record: dict[str, Any]) -> None:
        totals = self._totals[resource]
        for outcome in _OUTCOMES:
            for place, value in enumerate(record.get(outcome, ())):
                if value:
                    totals[outcome, place] += value
        demand = self._demand.setdefault((resource, record["at_s"]), array("q", bytes(8 * _MINUTE_S)))
        if "second" in record:
            for second, admitted, refused in zip(
                record["second"], record["second_admitted"], record["second_refused"], strict=True
            ):
                demand[second] += admitted + refused

    def truth(self, gap_s: int, damaged: frozenset[str]) -> Truth:
        lost = Counter[str]()
        for (instance, _), (first, last, records, said) in self._numbers.items():
            lost[instance] += max(last - first + 1 - records, said)
        minutes = defaultdict[str, set[int]](set)
        observed_s = Counter[str]()
        for (instance, _, minute), seconds in self._beats.items():
            minutes[instance].add(minute)
            observed_s[instance] += min(seconds, _MINUTE_S)
        return Truth(
            records=len(self._seen),
            bad_lines=self._bad_lines,
            damaged=damaged,
            storms=frozenset(self._storms(gap_s)),
            totals={resource: _amounts(totals) for resource, totals in self._totals.items()},
            p99_per_s=self._p99(observed_s),
            minutes={instance: len(there) for instance, there in minutes.items()},
            gap_minutes={each: max(there) - min(there) + 1 - len(there) for each, there in minutes.items()},
            lost_records=dict(lost),
        )

    def _storms(self, gap_s: int) -> Iterator[Storm]:
        for (resource, shadow), refused in self._refused.items():
            seconds = sorted({at_s for at_s, _ in refused})
            starts = [seconds[0], *(after for before, after in pairwise(seconds) if after - before > gap_s)]
            by_client = [Counter[str]() for _ in starts]
            ends = list(starts)
            place = 0
            for (at_s, client), messages in sorted(refused.items()):
                while place + 1 < len(starts) and at_s >= starts[place + 1]:
                    place += 1
                by_client[place][client] += messages
                ends[place] = at_s + 1
            for start_s, end_s, clients in zip(starts, ends, by_client, strict=True):
                shares = tuple(sorted(clients.items()))
                yield Storm(resource, shadow, start_s, end_s, clients.total(), shares)

    def _p99(self, observed_s: Counter[str]) -> dict[Resource, float]:
        seconds = defaultdict[Resource, Counter[int]](Counter)
        for (resource, _), demand in self._demand.items():
            seconds[resource].update(demand)
        found = {}
        for resource, values in seconds.items():
            values[0] = max(0, observed_s[resource[0]] - sum(many for value, many in values.items() if value))
            found[resource] = _percentile(values, 0.99)
        return found


def _amounts(totals: Counter[tuple[str, int]]) -> dict[str, Amount]:
    outcomes = {outcome for outcome, _ in totals}
    return {each: (totals[each, 0], totals[each, 1], totals[each, 2]) for each in outcomes}


def _percentile(values: Counter[int], share: float) -> float:
    """Return a percentile of values that are there so often, between two of them in proportion."""
    place = share * (values.total() - 1)
    ranked, below = sorted(values.items()), 0
    found = list[int]()
    for wanted in (int(place), min(int(place) + 1, values.total() - 1)):
        below = 0
        for value, many in ranked:
            below += many
            if wanted < below:
                found.append(value)
                break
    return found[0] + (found[1] - found[0]) * (place - int(place))


def _is_record(record: Any) -> bool:
    """Tell whether a line's value is a record; where a field is missing it raises KeyError."""
    texts, numbers = ["instance", "run"], ["n", "at_s"]
    if record["v"] != 1:
        return False
    match record["type"]:
        case "rejection":
            texts += ["kind", "name", "client", "rule"]
            numbers += ["requests", "messages", "bytes"]
            if record["verdict"] not in {"refuse", "shadow", "hold"}:
                return False
        case "traffic":
            texts += ["kind", "name"]
            if record["at_s"] % _MINUTE_S or any(
                _length(record, each) != _length(record, "second") for each in _BY_SECOND
            ):
                return False
        case "limit":
            texts += ["kind", "name"]
        case "limit_change":
            texts.append("action")
            numbers.append("change_id")
        case "heartbeat":
            texts.append("version")
            numbers.append("seconds")
        case _:
            return False
    return all(isinstance(record[each], str) for each in texts) and all(
        type(record[each]) is int and record[each] >= (each == "n") for each in numbers
    )


def _length(record: dict[str, Any], name: str) -> int:
    return len(record.get(name, ()))
