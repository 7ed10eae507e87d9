"""Making clean logs, hour by hour: storms are drawn, cut into records by second, and written in order of time."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from log_maker.shapes import Shape

START_S: Final = 1_794_952_800
"""2026-11-17 22:00 UTC: the first midnight comes soon."""
_HOUR_S: Final = 3600
_LANGUAGES: Final = ("JAVA", "GO", "CPP", "")
_VARIANTS: Final = 256
"""Quiet minutes are taken from so many made beforehand."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Made:
    """What was written."""

    files: tuple[Path, ...]
    records: int
    size_bytes: int
    until_s: int


def make(
    folder: Path,
    shape: Shape,
    records: int,
    *,
    start_s: int = START_S,
    seed: int = 1,
    lines: int = 100_000,
    name: str = "broker",
) -> Made:
    """Write logs of at least so many records, whole hours of all instances."""
    folder.mkdir(parents=True, exist_ok=True)
    instances = [
        _Instance(folder, shape, number, name=name, seed=seed, start_s=start_s, lines=lines)
        for number in range(shape.instances)
    ]
    hour_s = start_s
    while sum(instance.so_far() for instance in instances) < records:
        for instance in instances:
            instance.hour(hour_s)
        hour_s += _HOUR_S
    for instance in instances:
        instance.finish()
    files = tuple(file for instance in instances for file in instance.files)
    return Made(files, sum(i.records for i in instances), sum(file.stat().st_size for file in files), hour_s)


class _Instance:
    """One sidecar: its storms, its runs and its files."""

    def __init__(
        self, folder: Path, shape: Shape, number: int, *, name: str, seed: int, start_s: int, lines: int
    ) -> None:
        self.records = 0
        self.files: list[Path] = []
        self._folder = folder
        self._shape = shape
        self._lines_of_file = lines
        self._draw = np.random.default_rng([seed, number])
        self._name = f"{name}-{number}:10911"
        self._slug = f"{name}-{number}-10911"
        self._number = number
        self._seed = seed
        self._run = 0
        self._n = 0
        self._sequence = 0
        self._held: list[str] = []
        self._changes = 0
        self._ends: list[tuple[int, int, Ints]] = []
        count = shape.resources
        self._kinds = ["retry_group" if index % 10 == 9 else "topic" for index in range(count)]
        self._names = [f"orders-{index:04d}" for index in range(count)]
        self._rates = [float(50 * (1 + index % 20)) for index in range(count)]
        self._heads = [f'"kind":"{kind}","name":"{name}"' for kind, name in zip(self._kinds, self._names, strict=True)]
        self._clients = [f"10.{number}.{index // 200}.{index % 200 + 1}" for index in range(400)]
        # Every other one has a user and a product, as with protocols that have some.
        self._whose = [f',"user":"user-{at % 7}","product":"pika 1.{at % 3}"' if at % 2 else "" for at in range(400)]
        # Some resources are asked for more often than others.
        weights = 1.0 / np.arange(1, count + 1) ** 0.7
        self._weights = weights / weights.sum()
        self._quiet = [self._quiet_minute() for _ in range(_VARIANTS)]
        self._begin(start_s)

    def _prefix(self, kind: str) -> str:
        return f'{{"type":"{kind}","v":1,"instance":"{self._name}","run":"{self._run_name()}","n":'

    def _run_name(self) -> str:
        return f"{self._seed:04x}{self._number:02x}{self._run:04x}c0ffee"

    def _begin(self, at_s: int) -> None:
        """Start a run, with its limits."""
        self._run += 1
        self._n = 0
        self._limits(at_s)

    def _limits(self, at_s: int) -> None:
        prefix = self._prefix("limit")
        for index in range(0, self._shape.resources, 20):
            self._n += 1
            self._held.append(
                f'{prefix}{self._n},"at_s":{at_s},{self._heads[index]},"rule":"r{index % 20}",'
                f'"rate_per_s":{self._rates[index]}}}\n'
            )
        self._n += 1
        self._held.append(
            f'{prefix}{self._n},"at_s":{at_s},"kind":"topic","name":"never-*","rule":"spare","rate_per_s":7.5}}\n'
        )

    def hour(self, hour_s: int) -> None:
        """Write one hour."""
        if hour_s % 86_400 == 0:
            self._limits(hour_s)
        parts = self._refusals(hour_s)
        # Once in a while the sidecar starts anew, somewhere in an hour; the minute is then in two records.
        stops = [0, 60]
        restart = int(self._draw.integers(1, 59)) if self._draw.random() < 0.2 else None
        if restart is not None:
            stops = [0, restart, 60]
        for first, last in pairwise(stops):
            if first:
                self._twice(hour_s + 60 * (first - 1))
                self._begin(hour_s + 60 * first)
            self._stretch(hour_s, first, last, parts)
        if self._draw.random() < 0.3:
            self._changes += 1
            index = int(self._draw.integers(self._shape.resources))
            self._n += 1
            self._held.append(
                f'{self._prefix("limit_change")}{self._n},"at_s":{hour_s + 3599},"change_id":{self._changes},'
                f'"action":"set",{self._heads[index]},"rate_before_per_s":{self._rates[index]},'
                f'"rate_after_per_s":{self._rates[index] * 2},"by":"ann","reason":"more \\"room\\""}}\n'
            )
        self._flush()

    def _refusals(self, hour_s: int) -> list[Ints]:
        """Draw the storms that begin, and cut what is of this hour into columns, in order of time."""
        draw, shape = self._draw, self._shape
        for _ in range(int(draw.poisson(60 * shape.storms_per_minute))):
            begin = hour_s + int(draw.integers(_HOUR_S))
            end = begin + 1 + int(draw.exponential(shape.storm_s))
            resource = int(draw.choice(shape.resources, p=self._weights))
            clients = draw.choice(len(self._clients), size=int(draw.integers(1, shape.clients + 1)), replace=False)
            self._ends.append((max(begin, hour_s), end, np.concatenate(([resource], clients)).astype(np.int64)))
        pieces: list[list[Ints]] = []
        later: list[tuple[int, int, Ints]] = []
        until_s = hour_s + _HOUR_S
        for begin, end, who in self._ends:
            pieces.append(self._piece(begin, min(end, until_s), int(who[0]), who[1:], 0.7))
            if end > until_s:
                later.append((until_s, end, who))
        self._ends = later
        if shape.hot_clients:
            pieces.append(self._piece(hour_s, until_s, 0, np.arange(shape.hot_clients), 0.85))
        if not pieces:
            return [np.zeros(0, np.int64)] * 3
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return [column[order] for column in columns]

    def _piece(self, begin: int, end: int, resource: int, clients: Ints, often: float) -> list[Ints]:
        seconds = np.arange(begin, end)
        at, who = np.repeat(seconds, len(clients)), np.tile(clients, len(seconds))
        kept = self._draw.random(len(at)) < often
        return [at[kept], np.full(int(kept.sum()), resource), who[kept]]

    def _stretch(self, hour_s: int, first: int, last: int, parts: list[Ints]) -> None:
        """Write the minutes from ``first`` up to ``last``, of one run."""
        at, resource, client = parts
        draw = self._draw
        bounds = np.searchsorted(at, hour_s + 60 * np.arange(first, last + 1))
        prefix = self._prefix("rejection")
        heads, clients, whose, held = self._heads, self._clients, self._whose, self._held
        for minute, (low, high) in enumerate(pairwise(bounds), first):
            minute_s = hour_s + 60 * minute
            count = int(high - low)
            n = self._n
            self._n += count
            requests = draw.integers(1, 40, count)
            fold = draw.integers(1, 4, count)
            messages = requests * fold
            size = messages * 300 + 17
            waits = draw.integers(0, 1_000_000, count)
            kinds = draw.random(count)
            places = slice(int(low), int(high))
            held.extend(
                [
                    f'{prefix}{n + i},"at_s":{s},{heads[r]},"client":"{clients[c]}"{whose[c]},'
                    f'"producer_group":"group-{c % 13}","rule":"r{r % 20}","verdict":"refuse","requests":{q},'
                    f'"messages":{m},"bytes":{b},"wait_max_us":{w}}}\n'
                    if k > 0.04
                    else f'{prefix}{n + i},"at_s":{s},{heads[r]},"client":"{clients[c]}",'
                    f'"rule":"trial","verdict":"{"shadow" if k > 0.02 else "hold"}","requests":{q},"messages":{m},'
                    f'"bytes":{b}}}\n'
                    for i, s, r, c, q, m, b, w, k in zip(
                        range(1, count + 1),
                        at[places].tolist(),
                        resource[places].tolist(),
                        client[places].tolist(),
                        requests.tolist(),
                        messages.tolist(),
                        size.tolist(),
                        waits.tolist(),
                        kinds.tolist(),
                        strict=True,
                    )
                ]
            )
            refused = kinds > 0.04
            amounts = np.column_stack((requests, messages, size))
            self._traffic(minute_s, resource[places], at[places] - minute_s, amounts, refused)
            self._heartbeat(minute_s)
            if len(held) >= self._lines_of_file:
                self._flush()

    def _heartbeat(self, minute_s: int) -> None:
        self._n += 1
        bypassed = ',"bypassed_requests":{"rate_limit/late":3},"other":2' if minute_s % 420 == 0 else ""
        self._held.append(
            f'{self._prefix("heartbeat")}{self._n},"at_s":{minute_s},"version":"0.1.0","seconds":60,'
            f'"connections":{40 + minute_s // 60 % 7}{bypassed}}}\n'
        )

    def _traffic(self, minute_s: int, resource: Ints, second: Ints, amounts: Ints, refused: Flags) -> None:
        """Write the traffic of a minute: first of what was refused anything, then of others that were quiet."""
        draw = self._draw
        prefix = self._prefix("traffic")
        stormy = np.unique(resource)
        order = np.argsort(resource, kind="stable")
        bounds = np.searchsorted(resource[order], np.append(stormy, len(self._names)))
        for place, index in enumerate(stormy.tolist()):
            rows = order[bounds[place] : bounds[place + 1]]
            rows = rows[refused[rows]]
            counts = np.zeros((60, 3), np.int64)
            np.add.at(counts, second[rows], amounts[rows])
            admitted = np.zeros((60, 3), np.int64)
            admitted[:, 0] = draw.integers(0, 30, 60)
            admitted[:, 1] = admitted[:, 0] * 2
            admitted[:, 2] = admitted[:, 1] * 300
            self._n += 1
            self._held.append(
                f'{prefix}{self._n},"at_s":{minute_s},{self._heads[index]},"rule":"r{index % 20}",'
                f'"rate_per_s":{self._rates[index]}{_amounts(admitted, counts, index)}}}\n'
            )
        active = draw.poisson(self._shape.active)
        others = draw.choice(len(self._names), size=min(active, len(self._names)), replace=False, p=self._weights)
        variants = draw.integers(_VARIANTS, size=len(others)).tolist()
        taken = set(stormy.tolist())
        for index, variant in zip(others.tolist(), variants, strict=True):
            if index not in taken:
                self._n += 1
                self._held.append(
                    f'{prefix}{self._n},"at_s":{minute_s},{self._heads[index]},"rule":"r{index % 20}",'
                    f'"rate_per_s":{self._rates[index]}{self._quiet[variant]}}}\n'
                )

    def _quiet_minute(self) -> str:
        draw = self._draw
        counts = np.zeros((60, 3), np.int64)
        chosen = draw.random(60) < draw.random()
        counts[:, 0] = np.where(chosen, draw.integers(1, 50, 60), 0)
        counts[:, 1] = counts[:, 0] * draw.integers(1, 3)
        counts[:, 2] = counts[:, 1] * 250
        return _amounts(counts, np.zeros((60, 3), np.int64), int(draw.integers(100)))

    def _twice(self, minute_s: int) -> None:
        """Write a second record of a minute for some resources: what a crash had left, sealed later."""
        prefix = self._prefix("traffic")
        for index in range(0, self._shape.resources, max(1, self._shape.resources // 7)):
            self._n += 1
            self._held.append(
                f'{prefix}{self._n},"at_s":{minute_s},{self._heads[index]},"rule":"r{index % 20}",'
                f'"rate_per_s":{self._rates[index] + 1}{self._quiet[index % _VARIANTS]}}}\n'
            )

    def _flush(self) -> None:
        """Write the lines that are held into files, whole ones only."""
        while len(self._held) >= self._lines_of_file:
            self._write(self._held[: self._lines_of_file])
            del self._held[: self._lines_of_file]

    def so_far(self) -> int:
        """Return how many records there are, written or not."""
        return self.records + len(self._held)

    def finish(self) -> None:
        """Write what is left."""
        if self._held:
            self._write(self._held)
            self._held.clear()

    def _write(self, lines: list[str]) -> None:
        self._sequence += 1
        file = self._folder / f"rejections-{self._slug}-{self._seed:04x}-{self._sequence:06d}.jsonl"
        file.write_text("".join(lines), encoding="utf-8")
        self.files.append(file)
        self.records += len(lines)


def _amounts(admitted: Ints, refused: Ints, index: int) -> str:
    """Write the amounts of a traffic record and its seconds, from requests, messages and bytes of each second."""
    both = admitted + refused
    used = np.flatnonzero(both[:, 0])
    of_refused = (
        "" if not refused.any() else f',"refused":{_list(refused.sum(0))},"busy_answers":{int(refused[:, 0].sum())}'
    )
    # Of every other resource messages have ids, and a third of what was refused had been so before.
    again = refused // 3
    if index % 2 and again[:, 1].any():
        of_refused += (
            f',"repeated":{_list(again.sum(0))},"identified":{int(refused[:, 0].sum())},'
            f'"second_repeated":{_list(again[used, 1])}'
        )
    language = json.dumps(
        {_LANGUAGES[index % 4]: [int(both[:, 0].sum()), int(refused[:, 0].sum())], _LANGUAGES[(index + 1) % 4]: [1, 0]}
    )
    return (
        f',"admitted":{_list(admitted.sum(0))}{of_refused},"languages":{language},"clients":{1 + index % 30},'
        f'"more_clients":{str(index % 30 == 29).lower()},'
        f'"second":{_list(used)},"second_admitted":{_list(admitted[used, 1])},'
        f'"second_refused":{_list(refused[used, 1])},"second_requests":{_list(both[used, 0])},'
        f'"second_bytes":{_list(both[used, 2])}'
    )


def _list(values: Ints) -> str:
    return "[" + ",".join(map(str, values.tolist())) + "]"
