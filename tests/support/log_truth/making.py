"""The logs: a plan of five days, written down as four sidecars would have, and then spoiled as the world does."""

import gzip
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from log_truth.truth import Amount, Resource, Storm, Truth

START_S: Final = 1_792_713_600
"""2026-10-23 00:00 UTC; five days from then on."""
DAY_S: Final = 86_400
DAYS: Final = 5
SUMMER_ENDS_S: Final = START_S + 2 * DAY_S + 3600
"""2026-10-25 01:00 UTC: in most of Europe 02:00 to 03:00 comes twice."""
EAST_1: Final = "east-1:10911"
EAST_2: Final = "east-2:10911"
WEST_1: Final = "west-1:5672"
WEST_2: Final = "west-2:5672"
SKEW_S: Final = 433
NASTY: Final = (
    "".join(map(chr, range(1, 0x30)))
    + "<script>alert(1)</script>&amp; %2F [x]*? {a,b} \\N \\u0000 C:\\ ' \" ` $(ls) ;--"
    " ü ß 漢字 😀 \u202edesrever\u202c \u200b\ufeff\u2028\u2029\x7f\x85\xa0 é=é /../"
)
"""A name with all that somebody, somewhere, does not expect in one."""
SHARES: Final = (40, 20, 10, 10, 5, 5, 5, 5)
"""Percent of the flood, by client."""
FLOOD_PER_S: Final = 520
LIMIT_PER_S: Final = 100
_MINUTE_S: Final = 60
_UP_S: Final = 10 * _MINUTE_S
"""How long sidecars are up before and after a time of interest."""
_DOWN: Final = range(SUMMER_ENDS_S + 20, SUMMER_ENDS_S + 25)
"""Between two runs of ``east-1``, in the middle of a storm."""
_HEAD: Final = 17
"""Bytes of a request besides its messages."""
_EACH: Final = 300


@dataclass(frozen=True)
class Made:
    """What was written."""

    folder: Path
    truth: Truth
    duplicates: int
    late: Path
    flood: Storm
    limits: dict[Resource, float]


def make(folder: Path) -> Made:
    """Write the logs."""
    known = _Known()
    sidecars = [_Sidecar(folder, name, known) for name in (EAST_1, EAST_2, WEST_1, WEST_2)]
    for sidecar in sidecars:
        sidecar.write(_storms(sidecar.instance))
    files = [file for sidecar in sidecars for file in sidecar.files]
    spoiled = _spoil(folder, files)
    (late,) = (file for file in files if "late" in file.name)
    (flood,) = (storm for storm in known.storms if storm.resource == (EAST_1, "topic", "orders"))
    truth = Truth(
        records=known.records,
        bad_lines=known.bad_lines + spoiled.bad_lines,
        damaged=spoiled.damaged | known.damaged,
        storms=frozenset(known.storms),
        totals={each: _total(of) for each, of in known.totals.items()},
        p99_per_s=known.p99_per_s,
        minutes={each: len(there) for each, there in known.minutes.items()},
        gap_minutes={each: max(there) - min(there) + 1 - len(there) for each, there in known.minutes.items()},
        lost_records={each: known.lost[each] for each in known.minutes},
    )
    return Made(folder, truth, spoiled.duplicates, late, flood, {(EAST_1, "topic", "orders"): 250.0})


@dataclass
class _Known:
    """What the plan comes to."""

    records: int = 0
    bad_lines: int = 0
    damaged: frozenset[str] = frozenset()
    storms: set[Storm] = field(default_factory=set)
    totals: defaultdict[Resource, Counter[tuple[str, int]]] = field(default_factory=lambda: defaultdict(Counter))
    p99_per_s: dict[Resource, float] = field(default_factory=dict)
    minutes: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    lost: Counter[str] = field(default_factory=Counter)

    def add(self, resource: Resource, outcome: str, amount: Amount) -> None:
        for place, value in enumerate(amount):
            if value:
                self.totals[resource][outcome, place] += value


def _total(of: Counter[tuple[str, int]]) -> dict[str, Amount]:
    return {outcome: (of[outcome, 0], of[outcome, 1], of[outcome, 2]) for outcome, _ in of}


@dataclass(frozen=True)
class _Storm:
    """A storm that is to be."""

    name: str
    start_s: int
    seconds: int
    shares: dict[str, int]
    every_s: int = 1
    shadow: bool = False
    admitted: int = LIMIT_PER_S
    rate: float = float(LIMIT_PER_S)
    user: str = ""
    without: range = range(0)

    @property
    def at(self) -> list[int]:
        seconds = range(self.start_s, self.start_s + self.seconds * self.every_s, self.every_s)
        return [at_s for at_s in seconds if at_s not in self.without]


def _centres() -> list[int]:
    """Return the times around which all sidecars are up."""
    return sorted([*(START_S + day * DAY_S for day in range(DAYS + 1)), SUMMER_ENDS_S])


def _windows() -> list[tuple[int, int]]:
    """Return from when to when sidecars are up, without overlaps."""
    found: list[tuple[int, int]] = []
    for centre_s in _centres():
        first_s = max(START_S, centre_s - _UP_S)
        last_s = min(START_S + DAYS * DAY_S, centre_s + _UP_S)
        if found and first_s <= found[-1][1]:
            found[-1] = found[-1][0], max(last_s, found[-1][1])
        else:
            found.append((first_s, last_s))
    return found


def _storms(instance: str) -> list[_Storm]:
    day = [START_S + each * DAY_S for each in range(DAYS + 1)]
    eight = {f"10.1.0.{at}": FLOOD_PER_S * share // 100 for at, share in enumerate(SHARES, 1)}
    two = {"10.2.0.1": 30, "10.2.0.2": 10}
    return {
        EAST_1: [
            _Storm("orders", day[2] - 150, 300, eight),
            _Storm("imports", SUMMER_ENDS_S - 100, 160, two, without=_DOWN),
        ],
        EAST_2: [
            _Storm("pulses a gap apart", day[1] - 200, 9, two, every_s=30),
            _Storm("pulses a second more", day[1] - 200, 5, two, every_s=31),
        ],
        WEST_1: [
            _Storm("trial", day[1] + 60, 75, two, shadow=True),
            # A limit that only shadows is put in force: the two are not one storm.
            _Storm("then real", day[2] + 60, 60, two, shadow=True),
            _Storm("then real", day[2] + 125, 40, two),
            _Storm(NASTY, day[3] + 30, 45, {"[::1]:5": 7, NASTY[:40]: 3}, user=NASTY),
        ],
        # By its own clock.
        WEST_2: [
            _Storm("orders", day[2] + SKEW_S, 90, two),
            # While its clock is set back by two minutes: what is of the same second adds up.
            _Storm("set back", day[3] + 6 * _MINUTE_S, 120, two),
        ],
    }[instance]


def _skew(instance: str) -> int:
    return SKEW_S if instance == WEST_2 else 0


class _Sidecar:
    """Writes one sidecar's logs."""

    def __init__(self, folder: Path, instance: str, known: _Known) -> None:
        self.instance = instance
        self.files: list[Path] = []
        self._folder = folder
        self._known = known
        self._slug = instance.replace(":", "-")
        self._run = 0
        self._n = 0
        self._sequence = 0
        self._lines: list[str] = []
        self._started_s = 0
        self._said_lost = 0
        self._is_late_told = False
        self._storms: dict[int, list[_Storm]] = {}
        self._steady = [_Steady(number) for number in range(2)]

    def write(self, storms: list[_Storm]) -> None:
        """Write it all, and note what it comes to."""
        self._storms = defaultdict(list)
        for storm in storms:
            for minute in sorted({at_s // _MINUTE_S for at_s in storm.at}):
                self._storms[minute].append(storm)
        self._note_storms(storms)
        for first_s, last_s in _windows():
            skew_s = _skew(self.instance) // _MINUTE_S * _MINUTE_S
            self._window(first_s + skew_s, last_s + skew_s)
        if self.instance != WEST_2:
            # What a minute counts twice is not known beforehand.
            for steady in self._steady:
                self._known.p99_per_s[self.instance, "topic", steady.name] = float(steady.high)

    def _note_storms(self, storms: list[_Storm]) -> None:
        for storm in storms:
            resource = self.instance, "topic", storm.name
            twice = 2 if storm.name == "set back" else 1
            if storm.every_s <= 30:
                seconds = len(storm.at) * twice
                shares = tuple(sorted((who, seconds * many) for who, many in storm.shares.items()))
                end_s = storm.at[-1] + 1
                messages = seconds * sum(storm.shares.values())
                self._known.storms.add(Storm(resource, storm.shadow, storm.start_s, end_s, messages, shares))
                continue
            for at_s in storm.at:
                shares = tuple(sorted(storm.shares.items()))
                alone = Storm(resource, storm.shadow, at_s, at_s + 1, sum(storm.shares.values()), shares)
                self._known.storms.add(alone)

    def _window(self, first_s: int, last_s: int) -> None:
        """Be up for a while: one run, or two where something happens."""
        self._start(first_s)
        minute_s = first_s
        while minute_s < last_s:
            day_s = minute_s - START_S
            if self.instance == EAST_1 and minute_s == SUMMER_ENDS_S:
                # It is killed in the middle of a minute, and the next one is there five seconds later.
                self._minute(minute_s, 0, _DOWN.start - minute_s)
                self._start(_DOWN.stop)
                self._minute(minute_s, _DOWN.stop - minute_s, 60)
            elif self.instance == EAST_2 and day_s == DAY_S + 3 * _MINUTE_S:
                # It is down for five minutes, with steady topics waiting.
                self._start(minute_s + 5 * _MINUTE_S)
                minute_s += 4 * _MINUTE_S
            elif self.instance == WEST_1 and day_s == 3 * DAY_S + 4 * _MINUTE_S:
                self._lose(3)
                minute_s += 2 * _MINUTE_S
            else:
                self._minute(minute_s, 0, 60)
                if self.instance == WEST_2 and minute_s == START_S + 3 * DAY_S + 7 * _MINUTE_S:
                    # The minutes before and this one come once more.
                    self._minute(minute_s - _MINUTE_S, 0, 60)
                    self._minute(minute_s, 0, 60)
            minute_s += _MINUTE_S
            if (minute_s - first_s) % _UP_S == 0:
                self._finish(minute_s)
        self._finish(minute_s)

    def _start(self, at_s: int) -> None:
        """Begin a run, with its limits."""
        if self._lines:
            self._finish(at_s)
        self._run += 1
        self._n = self._said_lost = 0
        self._started_s = at_s
        self._add("limit", at_s, f'"kind":"topic","name":"orders","rule":"topic:orders","rate_per_s":{LIMIT_PER_S}')
        self._add("limit", at_s, '"kind":"topic","name":"never-*","rule":"spare","rate_per_s":7.5')

    def _add(self, kind: str, at_s: int, rest: str) -> None:
        self._n += 1
        self._lines.append(
            f'{{"type":"{kind}","v":1,"instance":"{self.instance}","run":"{self._slug}-{self._run:04x}","n":{self._n},'
            f'"at_s":{at_s},{rest}}}\n'
        )
        self._known.records += 1

    def _lose(self, minutes: int) -> None:
        """Be there for some minutes of which the files are lost on their way: numbers are missing, nobody says so."""
        lost = minutes * (1 + len(self._steady))
        self._n += lost
        self._known.lost[self.instance] += lost

    def _minute(self, minute_s: int, first: int, last: int) -> None:
        """Write a minute, from a second of it to another."""
        if self.instance == EAST_1 and minute_s == START_S + DAY_S - 5 * _MINUTE_S:
            # A full disk: five records are lost, and that is known.
            self._n += 5
            self._said_lost += 5
            self._known.lost[self.instance] += 5
        self._storm_seconds(minute_s, first, last)
        for steady in self._steady:
            self._steady_minute(steady, minute_s, first, last)
        if self.instance == EAST_1 and minute_s == START_S + 3 * DAY_S:
            self._edit(minute_s)
        beat = f'"version":"0.9.1","seconds":{last - first},"connections":12'
        if self._said_lost:
            beat += f',"lost_records":{self._said_lost}'
        self._add("heartbeat", minute_s, beat)
        self._known.minutes[self.instance].add(minute_s // _MINUTE_S)

    def _edit(self, minute_s: int) -> None:
        """Somebody edits a limit twice; traffic of the next day then has the last one."""
        for change, (before, after) in enumerate(((float(LIMIT_PER_S), 200.0), (200.0, 250.0)), 1):
            self._add(
                "limit_change",
                minute_s + 10 * change,
                f'"change_id":{change},"action":"set","kind":"topic","name":"orders","rate_before_per_s":{before},'
                f'"rate_after_per_s":{after},"by":"ada","reason":{json.dumps(NASTY)}',
            )
        amount = (60, 60, 60 * (_HEAD + _EACH))
        seconds = _list(range(60))
        ones = _list([1] * 60)
        self._add(
            "traffic",
            minute_s,
            f'"kind":"topic","name":"orders","rule":"topic:orders","rate_per_s":250.0,"admitted":{_list(amount)},'
            f'"clients":1,"second":{seconds},"second_admitted":{ones},"second_refused":{_list([0] * 60)},'
            f'"second_requests":{ones},"second_bytes":{_list([_HEAD + _EACH] * 60)}',
        )
        self._known.add((self.instance, "topic", "orders"), "admitted", amount)

    def _storm_seconds(self, minute_s: int, first: int, last: int) -> None:
        by_topic = defaultdict[tuple[str, str], list[tuple[int, _Storm]]](list)
        for storm in self._storms.get(minute_s // _MINUTE_S, ()):
            name = json.dumps(storm.name, ensure_ascii=False)
            verdict = "shadow" if storm.shadow else "refuse"
            for at_s in storm.at:
                if minute_s + first <= at_s < minute_s + last:
                    by_topic[storm.name, verdict].append((at_s - minute_s, storm))
                    for client, messages in storm.shares.items():
                        who = f'"client":{json.dumps(client)},"producer_group":"group-{len(client) % 3}"'
                        if storm.user:
                            who += f',"user":{json.dumps(storm.user)},"product":{json.dumps(storm.user)}'
                        self._add(
                            "rejection",
                            at_s,
                            f'"kind":"topic","name":{name},{who},"rule":"r","verdict":"{verdict}","requests":{messages}'
                            f',"messages":{messages},"bytes":{messages * (_HEAD + _EACH)},"wait_max_us":9000',
                        )
        for (topic, _), seconds in by_topic.items():
            self._storm_traffic(minute_s, topic, seconds)

    def _storm_traffic(self, minute_s: int, topic: str, seconds: list[tuple[int, _Storm]]) -> None:
        limit, shadow = seconds[0][1].rate, seconds[0][1].shadow
        resource = self.instance, "topic", topic
        refused = [sum(storm.shares.values()) for _, storm in seconds]
        admitted = [storm.admitted for _, storm in seconds]
        amounts = {
            # What a limit only shadows reaches the broker.
            "shadowed" if shadow else "refused": sum(refused),
            "admitted": sum(admitted),
        }
        reached = [one + other for one, other in zip(admitted, refused, strict=True)] if shadow else admitted
        asked = [one + other for one, other in zip(admitted, refused, strict=True)]
        rest = ""
        for outcome, messages in amounts.items():
            amount = (messages, messages, messages * (_HEAD + _EACH))
            rest += f'"{outcome}":{_list(amount)},'
            self._known.add(resource, outcome, amount)
        rest += f'"languages":{{"JAVA":[{sum(asked)},{0 if shadow else sum(refused)}]}},"clients":8,'
        rest += f'"second":{_list([at for at, _ in seconds])},"second_admitted":{_list(reached)},'
        rest += f'"second_refused":{_list([0] * len(seconds) if shadow else refused)},"second_requests":{_list(asked)},'
        rest += f'"second_bytes":{_list([each * (_HEAD + _EACH) for each in asked])}'
        action = ',"action":"shadow"' if shadow else f',"busy_answers":{sum(refused)}'
        head = f'"kind":"topic","name":{json.dumps(topic)},"rule":"r","rate_per_s":{limit}{action}'
        self._add("traffic", minute_s, f"{head},{rest}")

    def _steady_minute(self, steady: "_Steady", minute_s: int, first: int, last: int) -> None:
        text, amounts = steady.minute(minute_s, first, last)
        self._add("traffic", minute_s, text)
        for outcome, amount in amounts.items():
            self._known.add((self.instance, "topic", steady.name), outcome, amount)

    def _finish(self, until_s: int) -> None:
        """Write what there is into a file, in the folder of the day on which it is shipped."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        self._sequence += 1
        name = f"rejections-{self._slug}-{self._run:04x}-{self._sequence:06d}"
        # By a clock that is right; the last lines of a skewed sidecar are of the next day.
        shipped_s = min(until_s - _skew(self.instance), START_S + DAYS * DAY_S) - 1
        content = "".join(lines).encode()
        ending = ".jsonl"
        if self.instance == WEST_1 and until_s > START_S + DAY_S and not self._is_late_told:
            self._is_late_told = True
            shipped_s += DAY_S
            name += "-late"
        elif self.instance == EAST_2 and self._sequence == 2:
            # The sidecar's machine dies: the last line is cut, and so lost.
            cut = f'{{"type":"limit","v":1,"instance":"{self.instance}","run":"{self._slug}-{self._run:04x}","n"'
            content += cut.encode()
            self._known.bad_lines += 1
        elif self.instance == EAST_2 and self._sequence == 3:
            # The rest of this one never arrived, but all of its lines did.
            ending += ".gz"
            content = _cut_after(content)
            self._known.damaged |= {name + ending}
        elif self._sequence % 3 == 0:
            ending += ".gz"
            content = gzip.compress(content, mtime=0)
        day = datetime.fromtimestamp(shipped_s, UTC).date().isoformat()
        file = self._folder / day / self._slug / f"{name}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.utime(file, (shipped_s, shipped_s))
        self.files.append(file)


class _Steady:
    """A topic that is asked for every second: usually for ``low`` messages, each 33rd second for ``high`` ones."""

    def __init__(self, number: int) -> None:
        self.name = f"steady-{number}"
        self.low, self.high = 20 + 7 * number, 90 + 30 * number
        self._number = number
        self._texts: dict[tuple[int, int, int], tuple[str, dict[str, Amount]]] = {}

    def minute(self, minute_s: int, first: int, last: int) -> tuple[str, dict[str, Amount]]:
        """Return what a record of a minute says, and its amounts."""
        key = minute_s % 33, first, last
        if key not in self._texts:
            self._texts[key] = self._minute(*key)
        return self._texts[key]

    def _minute(self, begin: int, first: int, last: int) -> tuple[str, dict[str, Amount]]:
        seconds = range(first, last)
        values = [self.high if (begin + at) % 33 == 0 else self.low for at in seconds]
        # Some requests hold more than one message.
        requests = [-(-value // (1 + self._number % 3)) for value in values]
        sizes = [request * _HEAD + value * _EACH for request, value in zip(requests, values, strict=True)]
        whole = (sum(requests), sum(values), sum(sizes))
        amounts: dict[str, Amount] = {"admitted": whole}
        if self._number % 3 == 1:
            tenth = (whole[0] // 10, whole[1] // 10, whole[2] // 10)
            rest = (whole[0] - 2 * tenth[0], whole[1] - 2 * tenth[1], whole[2] - 2 * tenth[2])
            amounts = {"admitted": rest, "exempt": tenth, "bypassed": tenth, "held": tenth}
        text = f'"kind":"topic","name":"{self.name}","rule":"topic:{self.name}","rate_per_s":{2000.0 + self._number},'
        text += "".join(f'"{outcome}":{_list(amount)},' for outcome, amount in amounts.items())
        text += f'"languages":{{"GO":[{whole[0]},0]}},"clients":{3 + self._number},"second":{_list(seconds)},'
        text += f'"second_admitted":{_list(values)},"second_refused":{_list([0] * len(values))},'
        text += f'"second_requests":{_list(requests)},"second_bytes":{_list(sizes)}'
        return text, amounts


def _list(values: "list[int] | range | Amount") -> str:
    return f"[{','.join(map(str, values))}]"


def _cut_after(content: bytes) -> bytes:
    """Compress, and leave out what ends the file: all of the content can be read, by whatever reads."""
    packing = zlib.compressobj(wbits=31)
    return packing.compress(content) + packing.flush(zlib.Z_FULL_FLUSH)


@dataclass(frozen=True)
class _Spoiled:
    bad_lines: int
    damaged: frozenset[str]
    duplicates: int


def _spoil(folder: Path, files: list[Path]) -> _Spoiled:
    """Add what must change nothing: copies, whole and in part, torn ones, and what is no log at all."""
    more = folder / "2026-10-27" / "more {of} [it]"
    more.mkdir(parents=True)
    lines = {file: _lines_of(file) for file in files}
    sound = sorted((file for file in files if lines[file]), key=lambda file: (file.stem[-6:], file.name))
    wanted = sum(map(len, lines.values())) // 5
    duplicates, damaged, bad_lines = 0, set[str](), 0
    for number, file in enumerate(sound):
        if duplicates >= wanted:
            break
        kept = lines[file]
        name = f"copy-{number}.jsonl"
        match number % 4:
            case 0:
                (more / name).write_bytes(b"".join(kept))
            case 1:
                (more / f"{name}.gz").write_bytes(gzip.compress(b"".join(kept), mtime=0))
            case 2:
                # The first part; torn in the middle of a line.
                kept = kept[: len(kept) // 2]
                (more / name).write_bytes(b"".join(kept) + lines[file][len(kept)][:-20])
                bad_lines += 1
            case _:
                # The first part; the rest of what is compressed never came.
                kept = kept[: len(kept) // 2]
                (more / f"{name}.gz").write_bytes(_cut_after(b"".join(kept)))
                damaged.add(f"{name}.gz")
        duplicates += len(kept)
    (more / "no-gzip.jsonl.gz").write_bytes(b"this was never compressed\n" * 20)
    damaged.add("no-gzip.jsonl.gz")
    (more / "empty.jsonl").write_bytes(b"")
    (more / "blank.jsonl").write_bytes(b"\n \n\r\n\t\n")
    (more / ".rejections-east-1.jsonl.open").write_bytes(b'{"type":')
    (more / ".hidden.jsonl").write_bytes(b"".join(lines[sound[0]]))
    wrong = list(_bad_lines(lines[sound[0]][0]))
    (more / "wrong.jsonl").write_bytes(b"\n".join(wrong))
    return _Spoiled(bad_lines + len(wrong), frozenset(damaged), duplicates)


def _lines_of(file: Path) -> list[bytes]:
    content = file.read_bytes()
    if file.suffix == ".gz":
        content = zlib.decompressobj(31).decompress(content)
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def _bad_lines(line: bytes) -> Iterator[bytes]:
    """Yield lines that are no records, made of one that is."""
    good = line.rstrip(b"\n")
    record = json.loads(good)
    yield b"\xff\x00 not UTF-8 \x80"
    yield good[:-30]
    yield good + good
    yield b"[" + good + b"]"
    yield b"null"
    yield b'"heartbeat"'
    yield json.dumps(record | {"v": 2}).encode()
    yield json.dumps(record | {"type": "rumour"}).encode()
    yield json.dumps(record | {"n": "first"}).encode()
    yield json.dumps({key: value for key, value in record.items() if key != "run"}).encode()
    yield json.dumps(record | {"type": "heartbeat", "version": "1", "seconds": -1}).encode()
