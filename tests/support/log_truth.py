"""Rejection logs with known contents: five days of sidecars, counted as they are written, and then damaged."""

import gzip
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

START_S: Final = 1_792_713_600
"""2026-10-23 00:00 UTC. Five days follow."""
DAY_S: Final = 86_400
DAYS: Final = 5
SUMMER_ENDS_S: Final = START_S + 2 * DAY_S + 3600
"""2026-10-25 01:00 UTC: in most of Europe 02:00 to 03:00 occurs twice."""
EAST_1: Final = "east-1:10911"
EAST_2: Final = "east-2:10911"
WEST_1: Final = "west-1:5672"
WEST_2: Final = "west-2:5672"
AHEAD: Final = "ahead:5672"
TWICE: Final = "twice:5672"
SET_BACK: Final = "back:5672"
SKEW_S: Final = {WEST_2: 433, AHEAD: 3 * 3600}
"""Seconds by which clocks are ahead."""
NASTY: Final = (
    "".join(map(chr, range(1, 0x30)))
    + "<script>alert(1)</script>&amp; %2F [x]*? {a,b} \\N \\u0000 C:\\ ' \" ` $(ls) ;--"
    " ü ß 漢字 😀 \u202edesrever\u202c \u200b\ufeff\u2028\u2029\x7f\x85\xa0 é=é /../"
)
"""A name with special characters."""
SHARES: Final = (40, 20, 10, 10, 5, 5, 5, 5)
"""Percent of the flood, by client."""
FLOOD_PER_S: Final = 520
LIMIT_PER_S: Final = 100
BATCH: Final = 2
STEADY: Final = {"steady-0": (20, 90), "steady-1": (27, 120)}
"""Messages in most seconds, and in each 33rd: the 99th percentile."""
_OUTCOMES: Final = ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped")
_UP_S: Final = 600
"""Sidecars are up this long before and after a time of interest."""
_DOWN: Final = range(SUMMER_ENDS_S + 20, SUMMER_ENDS_S + 25)
"""Between two runs of ``EAST_1``, in the middle of a storm."""
Resource = tuple[str, str, str]
"""Instance, kind, name."""
Storm = tuple[Resource, bool, int, int, int, tuple[tuple[str, int], ...]]
"""Resource, whether its limit only shadows, begin, end, messages, and messages by client."""


@dataclass
class Truth:
    """The contents of a log. ``totals`` are by outcome and position in ``[requests, messages, bytes]``, ``refused`` by
    resource, whether its limit only shadows, second and client, and the others by instance.
    """

    records: int = 0
    duplicates: int = 0
    bad_lines: int = 0
    damaged: set[str] = field(default_factory=set)
    totals: defaultdict[Resource, Counter[tuple[str, int]]] = field(default_factory=lambda: defaultdict(Counter))
    refused: defaultdict[tuple[Resource, bool], Counter[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    minutes: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    lost_records: Counter[str] = field(default_factory=Counter)
    missing_minutes: Counter[str] = field(default_factory=Counter)

    def take(self, record: dict[str, Any]) -> None:
        self.records += 1
        resource = record["instance"], record.get("kind", ""), record.get("name", "")
        match record["type"]:
            case "traffic":
                for outcome in _OUTCOMES:
                    for place, value in enumerate(record.get(outcome, ())):
                        self.totals[resource][outcome, place] += value
            case "rejection" if record["verdict"] != "hold":
                seconds = self.refused[resource, record["verdict"] == "shadow"]
                seconds[record["at_s"], record["client"]] += record["messages"]
            case "heartbeat":
                self.minutes[record["instance"]].add(record["at_s"] // 60)

    def storms(self, gap_s: int = 30) -> Iterator[Storm]:
        """Yield refusals of a resource whose seconds are at most the gap apart."""
        for (resource, shadow), refused in self.refused.items():
            clients = Counter[str]()
            begin = end = 0
            for (at_s, client), messages in [*sorted(refused.items()), ((1 << 40, ""), 0)]:
                if clients and at_s - end >= gap_s:
                    yield resource, shadow, begin, end, clients.total(), tuple(sorted(clients.items()))
                    clients.clear()
                begin, end = begin if clients else at_s, at_s + 1
                clients[client] += messages


class Run:
    """Writes the records of one process of a sidecar into ``lines``."""

    def __init__(self, instance: str, name: str = "r", truth: Truth | None = None) -> None:
        self.lines: list[bytes] = []
        self.n, self.name = 0, name
        self.truth = Truth() if truth is None else truth
        self._head = {"v": 1, "instance": instance, "run": name}

    def add(self, kind: str, at_s: int, name: str = "", **fields: Any) -> None:
        self.n += 1
        record: dict[str, Any] = {"type": kind, **self._head, "n": self.n, "at_s": at_s}
        record |= ({"kind": "topic", "name": name} if name else {}) | fields
        self.truth.take(record)
        self.lines.append(json.dumps(record, ensure_ascii=False).encode())

    def beat(self, minute_s: int, seconds: int = 60, **fields: Any) -> None:
        self.add("heartbeat", minute_s, version="0.9.1", seconds=seconds, connections=12, **fields)

    def reject(self, at_s: int, name: str, messages: int = 1, **fields: Any) -> None:
        """Write a client's refusals in a second."""
        given: dict[str, Any] = {"client": "c", "rule": "r", "verdict": "refuse", "wait_max_us": 9000}
        given |= {"requests": messages, "messages": messages, "bytes": 317 * messages}
        self.add("rejection", at_s, name, **(given | fields))

    def traffic(
        self, minute_s: int, name: str, seconds: Mapping[int, tuple[int, int]], *, each: int = 1, **fields: Any
    ) -> None:
        """Write a minute, from the admitted and refused messages by second. ``each``: messages of a request."""

        def amount(*messages: int) -> list[int]:
            requests = sum(-(-one // each) for one in messages)
            return [requests, sum(messages), 17 * requests + 300 * sum(messages)]

        admitted, refused = ([its[place] for its in seconds.values()] for place in (0, 1))
        asked = [amount(*its) for its in seconds.values()]
        given: dict[str, Any] = {
            "rule": f"topic:{name}",
            "rate_per_s": 2000.0,
            "clients": 3,
            "busy_answers": sum(refused),
        }
        given |= {"admitted": amount(*admitted), "refused": amount(*refused)}
        given |= {"languages": {"GO": [sum(requests for requests, *_ in asked), sum(refused)]}, "second": list(seconds)}
        given |= {"second_admitted": admitted, "second_refused": refused}
        given |= {"second_requests": [its[0] for its in asked], "second_bytes": [its[2] for its in asked]}
        self.add("traffic", minute_s, name, **(given | fields))


@dataclass(frozen=True)
class _Flood:
    """Planned refusals: messages of each client in each of these seconds."""

    name: str
    seconds: range
    shares: Mapping[str, int]
    shadow: bool = False
    user: str = ""
    each: int = 1  # messages of a request, because the limit of batches counts requests


def _floods(instance: str) -> list[_Flood]:
    day = [START_S + each * DAY_S + SKEW_S.get(instance, 0) for each in range(DAYS + 1)]
    eight = {f"10.1.0.{at}": FLOOD_PER_S * share // 100 for at, share in enumerate(SHARES, 1)}
    two = {"10.2.0.1": 30, "10.2.0.2": 10}

    def flood(
        name: str, begin: int, seconds: int, shares: Mapping[str, int] = two, every: int = 1, **how: Any
    ) -> _Flood:
        return _Flood(name, range(begin, begin + seconds * every, every), shares, **how)

    return {
        EAST_1: [
            flood("orders", day[2] - 150, 300, eight),
            flood("imports", SUMMER_ENDS_S - 100, 160, each=BATCH),
            flood("everywhere", day[4] + 60, 40),
        ],
        EAST_2: [
            flood("pulses a gap apart", day[1] - 200, 9, every=30),
            flood("pulses a second more", day[1] - 200, 5, every=31),
            # Within the gap after the first, and the third begins before this one ends.
            flood("everywhere", day[4] + 125, 40),
        ],
        WEST_1: [
            flood("trial", day[1] + 60, 75, shadow=True),
            # A limit changes from shadow to real: the two are not one storm.
            flood("then real", day[2] + 60, 60, shadow=True),
            flood("then real", day[2] + 125, 40),
            flood(NASTY, day[3] + 30, 45, {"[::1]:5": 7, NASTY[:40]: 3}, user=NASTY),
            flood("everywhere", day[4] + 130, 5),
        ],
        WEST_2: [
            flood("orders", day[2], 90),
            # While its clock is set back by two minutes: the same seconds add up.
            flood("set back", day[3] - SKEW_S[WEST_2] + 360, 120),
        ],
        AHEAD: [flood("everywhere", day[4] + 60, 40)],
    }[instance]


def _windows() -> Iterator[tuple[int, int]]:
    """Yield the periods in which sidecars are up."""
    for day in range(DAYS + 1):
        day_s = START_S + day * DAY_S
        yield max(START_S, day_s - _UP_S), min(START_S + DAYS * DAY_S, day_s + _UP_S)
        if day == 2:
            yield SUMMER_ENDS_S - _UP_S, SUMMER_ENDS_S + _UP_S


class _Sidecar:
    def __init__(self, folder: Path, instance: str, truth: Truth) -> None:
        self.files: list[tuple[Path, list[bytes]]] = []
        self._folder, self._instance, self._truth = folder, instance, truth
        self._floods = _floods(instance)
        self._slug = instance.replace(":", "-")
        self._runs = 0
        self._run = Run(instance)
        self._said_lost = 0
        for first_s, last_s in _windows():
            skew_s = SKEW_S.get(instance, 0) // 60 * 60
            self._window(first_s + skew_s, last_s + skew_s)

    def _window(self, first_s: int, last_s: int) -> None:
        """Be up for a while, with a file for each ten minutes."""
        self._start(first_s)
        minute_s = first_s
        while minute_s < last_s:
            at = self._instance, minute_s - START_S
            if at == (EAST_1, SUMMER_ENDS_S - START_S):
                # Killed in the middle of a minute. The next process starts five seconds later.
                self._minute(minute_s, 0, _DOWN.start - minute_s)
                killed = self._run.name
                self._start(_DOWN.stop)
                self._minute(minute_s, _DOWN.stop - minute_s, 60, killed_run=killed)
            elif at == (EAST_2, DAY_S + 180):
                # Down for five minutes.
                self._start(minute_s + 300)
                minute_s += 240
            elif at == (WEST_1, 3 * DAY_S + 240):
                self._lose(range(minute_s, minute_s + 180, 60))
                minute_s += 120
            else:
                if at == (EAST_1, DAY_S - 300):
                    # A full disk: five records are lost, which is known.
                    self._run.n += 5
                    self._said_lost = 5
                    self._truth.lost_records[self._instance] += 5
                if at == (EAST_1, 3 * DAY_S):
                    self._edit(minute_s)
                self._minute(minute_s)
                if at == (WEST_2, 3 * DAY_S + 420):
                    # The clock is set back: two minutes occur twice.
                    self._minute(minute_s - 60)
                    self._minute(minute_s)
            minute_s += 60
            if (minute_s - first_s) % _UP_S == 0:
                self._finish(minute_s)
        self._finish(minute_s)

    def _start(self, at_s: int) -> None:
        """Begin a run, with its limits."""
        self._finish(at_s)
        self._runs += 1
        self._said_lost = 0
        self._run = Run(self._instance, f"{self._slug}-{self._runs:04x}", self._truth)
        self._run.add("limit", at_s, "orders", rule="topic:orders", rate_per_s=LIMIT_PER_S)
        self._run.add("limit", at_s, "never-*", rule="spare", rate_per_s=7.5)

    def _minute(self, minute_s: int, first: int = 0, last: int = 60, **beat: Any) -> None:
        """Write part of a minute."""
        for flood in self._floods:
            seconds = [at_s for at_s in range(minute_s + first, minute_s + last) if at_s in flood.seconds]
            who = {"user": flood.user, "product": flood.user} if flood.user else {}
            for at_s in seconds:
                for client, messages in flood.shares.items():
                    verdict = "shadow" if flood.shadow else "refuse"
                    group = f"group-{len(client) % 3}"
                    self._run.reject(
                        at_s, flood.name, messages, client=client, producer_group=group, verdict=verdict, **who
                    )
            if seconds:
                over = sum(flood.shares.values())
                asked = (LIMIT_PER_S + over, 0) if flood.shadow else (LIMIT_PER_S, over)
                shadowed = {"shadowed": [over, over, over], "action": "shadow"} if flood.shadow else {}
                its = {at_s - minute_s: asked for at_s in seconds}
                how = {"each": flood.each, "count": "messages" if flood.each == 1 else "requests", **shadowed}
                self._run.traffic(minute_s, flood.name, its, rule="r", rate_per_s=LIMIT_PER_S, **how)
        for each, (name, (low, high)) in enumerate(STEADY.items(), 1):
            its = {at: (low if (minute_s + at) % 33 else high, 0) for at in range(first, last)}
            more = {"exempt": [1, 2, 3], "bypassed": [4, 5, 6], "held": [7, 8, 9]}
            self._run.traffic(minute_s, name, its, each=each, **(more if each > 1 else {}))
        self._run.beat(minute_s, last - first, lost_records=self._said_lost, **beat)

    def _edit(self, minute_s: int) -> None:
        """The limit of orders is edited twice. Traffic has the last one."""
        for change, (before, after) in enumerate(((100.0, 200.0), (200.0, 250.0)), 1):
            self._run.add(
                "limit_change", minute_s + 10 * change, "orders", change_id=change, action="set",
                rate_before_per_s=before, rate_after_per_s=after, fair_by_after="client", by="ada",
                reason=NASTY,
            )  # fmt: skip
        self._run.traffic(minute_s, "orders", dict.fromkeys(range(60), (1, 0)), rate_per_s=250.0)

    def _lose(self, minutes: range) -> None:
        """Write minutes into a packed file that is damaged at its beginning."""
        self._finish(minutes[0])
        self._run.truth = Truth()
        for minute_s in minutes:
            self._minute(minute_s)
        self._truth.lost_records[self._instance] += len(self._run.lines)
        self._truth.missing_minutes[self._instance] += len(minutes)
        damaged = bytearray(gzip.compress(b"\n".join(self._run.lines)))
        damaged[10:40] = bytes(30)
        self._file(minutes[-1], "-damaged.jsonl.gz").write_bytes(damaged)
        self._truth.damaged.add(self.files.pop()[0].name)
        self._run.truth, self._run.lines = self._truth, []

    def _finish(self, until_s: int) -> None:
        lines, self._run.lines = self._run.lines, []
        if not lines:
            return
        number = len(self.files) + 1
        content = b"\n".join(lines) + b"\n"
        ending, day_s = ".jsonl", 0
        if self._instance == WEST_1 and number == 3:
            ending, day_s = "-late.jsonl", DAY_S
        elif self._instance == EAST_2 and number == 2:
            # The machine crashes: the last line is cut.
            content += b'{"type":"limit","v":1,"instance":"' + self._instance.encode() + b'","run":"'
            self._truth.bad_lines += 1
        elif self._instance == EAST_2 and number == 3:
            # The end of the file never arrived, but all lines did.
            ending, content = ".jsonl.gz", _cut_after(content)
            self._truth.damaged.add(self._name(number, ending))
        elif number % 3 == 0:
            ending, content = ".jsonl.gz", gzip.compress(content, mtime=0)
        file = self._file(until_s + day_s, ending)
        file.write_bytes(content)
        shipped_s = until_s - SKEW_S.get(self._instance, 0)
        os.utime(file, (shipped_s, shipped_s))
        self.files[-1][1].extend(lines)

    def _name(self, number: int, ending: str) -> str:
        return f"rejections-{self._slug}-{self._runs:04x}-{number:06d}{ending}"

    def _file(self, until_s: int, ending: str) -> Path:
        # Shipped by a machine with a correct clock.
        shipped_s = min(until_s - SKEW_S.get(self._instance, 0), START_S + DAYS * DAY_S) - 1
        day = datetime.fromtimestamp(shipped_s, UTC).date().isoformat()
        file = self._folder / day / self._slug / self._name(len(self.files) + 1, ending)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.files.append((file, []))
        return file


def make(folder: Path) -> Truth:
    """Write the logs, and return their contents."""
    truth = Truth()
    files = [file for name in (EAST_1, EAST_2, WEST_1, WEST_2, AHEAD) for file in _Sidecar(folder, name, truth).files]
    more = folder / "2026-10-27" / "more {of} [it]"
    more.mkdir(parents=True)
    edges = _edges(truth)
    (more / "edges.jsonl").write_bytes(b"\r\n".join(edges) + b"\n\n  \n")
    # Copies, complete and partial, packed and torn.
    for number, (_, lines) in enumerate(files[::3]):
        kept = lines[: len(lines) // (1 + number // 2 % 2)]
        content = b"\n".join(kept) + b"\n"
        name = f"copy-{number}.jsonl"
        match number % 4:
            case 0:
                (more / name).write_bytes(content)
            case 1:
                (more / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
            case 2:
                (more / name).write_bytes(content + lines[len(kept)][:-20])
                truth.bad_lines += 1
            case _:
                (more / f"{name}.gz").write_bytes(_cut_after(content))
                truth.damaged.add(f"{name}.gz")
        truth.duplicates += len(kept)
    (more / "no-gzip.jsonl.gz").write_bytes(b"this was never compressed\n" * 20)
    truth.damaged.add("no-gzip.jsonl.gz")
    (more / "empty.jsonl").write_bytes(b"")
    (more / ".rejections-east-1.jsonl.open").write_bytes(b'{"type":')
    (more / ".hidden.jsonl").write_bytes(edges[0])
    bad = [b"\xff\x00 not UTF-8 \x80", edges[0][:-30], edges[0] + edges[0], edges[0].replace(b'"v": 1', b'"v": 2')]
    (more / "wrong.jsonl").write_bytes(b"\n".join(bad))
    truth.bad_lines += len(bad)
    return truth


def _cut_after(content: bytes) -> bytes:
    """Compress, and cut the end of the file without losing content."""
    packing = zlib.compressobj(wbits=31)
    return packing.compress(content) + packing.flush(zlib.Z_FULL_FLUSH)


def _edges(truth: Truth) -> list[bytes]:
    """Return records of rare kinds."""
    at_s = START_S + DAY_S + 7200
    run, other = Run("edge", "edge-1", truth), Run("edge", "edge-2", truth)
    for place in range(30):
        # Ties, also among callers that differ in one of four names.
        run.reject(at_s, "ties", 3, client=f"10.0.0.{place:02d}")
        run.reject(at_s, "ties", 3, client=f"10.0.0.{place:02d}", producer_group="g", rule=f"r{place % 3}")
        run.reject(
            at_s + 90, "users", place, client=f"10.0.0.{place % 5}", user=f"u{place % 2}", product=f"p{place % 3}"
        )
    for _ in range(3):
        run.reject(at_s, "the same again", client="_other", wait_max_us=7)
    run.reject(at_s, "only held", verdict="hold")
    run.reject(at_s, "nothing in it", 0)
    # Several records of a minute, of two runs, with limits of all kinds, and shadow refusals.
    many: dict[str, Any] = {"bytes_per_s": 1e6, "action": "delay", "max_delay_s": 9.5, "fair_by": "client"}
    for each, fields in (
        (run, {"languages": {"JAVA": [3, 1], "": [1, 0]}, "repeated": [1, 2, 3], "second_repeated": [0, 5]}),
        (run, {"languages": {"": [1, 1]}, "clients": 9, "identified": 4, **many}),
        (other, {"count": "requests", "more_clients": True, "action": "shadow"}),
    ):
        each.traffic(at_s, "several", {7: (30, 2), 8: (3, 4)} if each is run else {8: (50, 0), 9: (60, 0)}, **fields)
    other.traffic(at_s, "two runs", {1: (5, 0)})
    run.traffic(at_s, "two runs", {3: (5, 0)}, **many)
    run.add("traffic", at_s, "no seconds", admitted=[1, 1, 1], dropped=[2, 3, 4])
    other.reject(at_s + 8, "several", 11, verdict="shadow", client="a")
    other.reject(at_s + 8, "several", 4, verdict="shadow", client="b")
    for limiting, bypassed in ((False, {"a/b": 2, "a/c": 3}), (True, {"a/b": 1})):
        other.beat(at_s, 25, limiting=limiting, bypassed_requests=bypassed, other=3)
    for rate in (5.0, 6.0):
        other.add("limit", at_s + int(rate), "several", rule="several", rate_per_s=rate, max_delay_s=rate)
    other.add("limit_change", at_s, change_id=-1, action="reload")
    # The last second is within the gap of one of these: it may continue.
    other.reject(at_s + 600 - 30, "still open")
    other.reject(at_s + 600 - 31, "just over")
    other.reject(at_s + 600, "at the end")
    # Two processes of one name at the same time, and a clock that is set back.
    one, two, back = Run(TWICE, "one", truth), Run(TWICE, "two", truth), Run(SET_BACK, "back", truth)
    for each in (one, two, back, back):
        for minute in range(12):
            each.beat(at_s + 60 * minute)
    return [line for each in (run, other, one, two, back) for line in each.lines]
