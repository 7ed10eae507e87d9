"""A fleet's log of edits in Redis, and data paths that write to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import trio

from limiter.rules.rule_set import RuleSet
from proxy.control import FleetError


class Log:
    """``fault``: raised by the next commands. ``fail_writes``: writing fails."""

    def __init__(self) -> None:
        self.fields: dict[bytes, bytes] = {}
        self.fault: FleetError | None = None
        self.fail_writes = False
        self.failed = trio.Event()
        self.changed = trio.Event()
        self.reads = 0

    @property
    def version(self) -> bytes:
        return self.fields.get(b"", b"")

    def lose(self) -> None:
        self.fields.clear()
        self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class FleetDataPath:
    def __init__(self, log: Log, member: str, fleet: str = "f") -> None:
        self.log, self.rule_sets = log, list[RuleSet]()
        self._fleet = SimpleNamespace(name=fleet, member=member)

    async def apply(self, rule_set: RuleSet) -> None:
        await trio.lowlevel.checkpoint()
        self.rule_sets.append(rule_set)

    async def snapshot(self, *, whole: bool) -> Any:
        assert not whole
        return SimpleNamespace(fleet=self._fleet)

    async def fleet_edits_changed(self, known: bytes | None) -> None:
        while self.log.version == known:
            await self.log.changed.wait()

    async def read_fleet_edits(self) -> Mapping[bytes, bytes]:
        await self._exchange()
        self.log.reads += 1
        return dict(self.log.fields)

    async def write_fleet_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        await self._exchange()
        if self.log.fail_writes:
            self.log.failed.set()
            raise FleetError("it refuses writes", sent=True)
        if self.log.version != known:
            return False
        for each in removed:
            del self.log.fields[each.encode()]
        self.log.fields |= {name.encode(): value for name, value in fields.items()}
        self.log.notify()
        return True

    async def _exchange(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.log.fault is not None:
            raise self.log.fault
