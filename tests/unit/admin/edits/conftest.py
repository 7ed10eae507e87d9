"""An edit service with its own clock, with or without real files."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from admin.config.rulebook import Rulebook
from admin.config.sources import Flags, load
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.run.composition import compose
from limiter.rules.rule_set import RuleSet


class WallClock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Applied:
    """A data path that only takes rules, or raises ``fails``."""

    def __init__(self) -> None:
        self.rule_sets: list[RuleSet] = []
        self.fails = False

    async def apply(self, rule_set: RuleSet) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise RuntimeError("no data path")
        assert not self.rule_sets or rule_set.version > self.rule_sets[-1].version
        self.rule_sets.append(rule_set)


MakeRulebook = Callable[..., Rulebook]
OpenEdits = Callable[..., AbstractAsyncContextManager[EditService]]


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def applied() -> Applied:
    return Applied()


@pytest.fixture
def make_rulebook(tmp_path: Path) -> MakeRulebook:
    """Make the rules of a file's text and of flags."""

    def make(text: str = "", *limits: str) -> Rulebook:
        file = tmp_path / "sluice.toml"
        file.write_text(text, encoding="utf-8")
        flags = Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"], limits=limits)
        return compose(load(str(file), {}, flags)).rulebook

    return make


@pytest.fixture
def open_edits(make_rulebook: MakeRulebook, clock: WallClock, applied: Any) -> OpenEdits:
    """Run an edit service. ``directory``: for saving edits."""

    @asynccontextmanager
    async def run(
        text: str = "", *limits: str, directory: Path | None = None, store: Store | None = None
    ) -> AsyncIterator[EditService]:
        if store is None:
            store = Store(directory)
        edits = EditService(make_rulebook(text, *limits), store, clock=clock)
        applied.rule_sets.clear()
        async with trio.open_nursery() as nursery:
            await nursery.start(edits.run, applied)
            yield edits
            nursery.cancel_scope.cancel()
        store.close()

    return run
