"""Random edits, ends, reverts, restarts and reloads, compared with a model in a few dictionaries."""

import tempfile
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from admin.config.rulebook import Rulebook
from admin.config.sources import Flags, load
from admin.edits.model import Author, ConflictError, MissingError, SetLimit, SetSwitch, UnsetLimit, UnsetSwitch
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.run.composition import compose
from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet

_AUTHOR = Author("test")
_PAIR = {"listen": ["127.0.0.1:1"], "broker": ["127.0.0.1:2"]}
NAMES = ("a", "ab", "a*", "*", "[a]")
# The requested spelling of names.
SPELLED = {"[a]": "a"}
BOOKS: list[Rulebook] = [
    compose(load(None, {}, Flags(**_PAIR, limits=limits))).rulebook
    for limits in ((), ("topic:a=50/s",), ("topic:*=70/s", "topic:a*=60/s"))
]


class _DataPath:
    async def apply(self, _: RuleSet) -> None:
        await trio.lowlevel.checkpoint()


_DATA_PATH: Any = _DataPath()


class Held(NamedTuple):
    """The state of one name."""

    value: Any
    ends: datetime | None
    number: int


class Edits(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.now = datetime(2026, 11, 21, tzinfo=UTC)
        self.book = 0
        self.held: dict[str, Held] = {}
        self.history: list[tuple[int, str, Held | None]] = []
        self.latest: dict[str, int] = {}
        self.store = Store(Path(self._folder.name))
        self._open()

    def _open(self) -> None:
        self.edits = EditService(BOOKS[self.book], self.store, clock=lambda: self.now)

    def teardown(self) -> None:
        self.store.close()
        self._folder.cleanup()

    def do(self, what: Callable[[], Awaitable[Any]]) -> Any:
        """Run the edits for one name."""

        async def run() -> Any:
            result: Any = None
            error: Exception | None = None
            async with trio.open_nursery() as nursery:
                await nursery.start(self.edits.run, _DATA_PATH)
                try:
                    result = await what()
                except (MissingError, ConflictError) as refused:
                    error = refused
                nursery.cancel_scope.cancel()
            if error is not None:
                raise error
            return result

        return trio.run(run)

    def end_what_is_over(self) -> None:
        for name, held in list(self.held.items()):
            if held.ends is not None and held.ends <= self.now:
                self.latest[name] = -1
                del self.held[name]

    def hold(self, name: str, value: Any, ttl_s: int | None, number: int) -> None:
        before = self.held.get(name)
        ends = None if ttl_s is None else self.now + timedelta(seconds=ttl_s)
        self.history.append((number, name, before))
        self.latest[name] = number
        self.held[name] = Held(value, ends, number)

    @rule(name=st.sampled_from(NAMES), rate=st.integers(0, 9), ttl_s=st.sampled_from([None, None, 5, 50]))
    def put(self, name: str, rate: int, ttl_s: int | None) -> None:
        edit = SetLimit(kind="topic", name=name, limit={"rate": rate}, ttl_s=ttl_s)
        (change,) = self.do(lambda: self.edits.change([edit], _AUTHOR))
        self.end_what_is_over()
        self.hold(SPELLED.get(name, name), rate, ttl_s, change.id)

    @rule(kind=st.sampled_from(["all", "topic"]), limiting=st.booleans(), ttl_s=st.sampled_from([None, 5]))
    def switch(self, kind: str, limiting: bool, ttl_s: int | None) -> None:  # noqa: FBT001 - hypothesis' call
        edit = SetSwitch(kind=kind, limiting=limiting, ttl_s=ttl_s)
        (change,) = self.do(lambda: self.edits.change([edit], _AUTHOR))
        self.end_what_is_over()
        self.hold(f"!{kind}", limiting, ttl_s, change.id)

    @rule(name=st.sampled_from([*NAMES[:4], "!all", "!topic"]))
    def unset(self, name: str) -> None:
        edit = UnsetSwitch(kind=name[1:]) if name[0] == "!" else UnsetLimit(kind="topic", name=name)
        try:
            (change,) = self.do(lambda: self.edits.change([edit], _AUTHOR))
        except MissingError:
            self.end_what_is_over()
            assert name not in self.held
            return
        self.end_what_is_over()
        self.history.append((change.id, name, self.held.pop(name)))
        self.latest[name] = change.id

    @precondition(lambda self: self.history)
    @rule(pick=st.randoms(use_true_random=False), force=st.booleans())
    def revert(self, pick: Any, force: bool) -> None:  # noqa: FBT001 - hypothesis' call
        number, name, before = pick.choice(self.history)
        try:
            change = self.do(lambda: self.edits.revert(number, _AUTHOR, force=force))
        except ConflictError:
            self.end_what_is_over()
            assert not force
            assert self.latest[name] != number
            return
        self.end_what_is_over()
        assert force or self.latest[name] == number
        if before is not None and before.ends is not None and before.ends <= self.now:
            before = None
        self.history.append((change.id, name, self.held.pop(name, None)))
        self.latest[name] = change.id
        if before is not None:
            self.held[name] = before._replace(number=change.id)

    @rule(seconds=st.sampled_from([1, 10, 100]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store(Path(self._folder.name))
        self._open()
        self.do(lambda: trio.testing.wait_all_tasks_blocked(0.002))
        self.end_what_is_over()

    @rule(book=st.integers(0, 2))
    def reload(self, book: int) -> None:
        self.do(lambda: self.edits.put_rulebook(BOOKS[book], _AUTHOR, ["changed"]))
        self.book = book
        self.do(
            lambda: self.edits.change([SetLimit(kind="topic", name="zz", limit={"rate": 1})], _AUTHOR, dry_run=True)
        )
        self.end_what_is_over()

    @invariant()
    def rules_are_as_the_model_has_them(self) -> None:
        if any(held.ends is not None and held.ends <= self.now for held in self.held.values()):
            return
        configured = BOOKS[self.book].rule_set()
        rates: dict[str, float] = {rule.pattern: rule.rate_per_s or 0 for rule in configured.rules if _counts(rule)}
        rates |= {name: held.value for name, held in self.held.items() if name[0] != "!"}
        for name in ("a", "ab", "abc", "other"):
            found = self.edits.rule_set.match(Resource("topic", name)).rate_per_s
            own = [pattern for pattern in (name, "a*" if name[0] == "a" else "*", "*") if pattern in rates]
            assert found == (rates[own[0]] if own else None)
        off = {name for name, held in self.held.items() if name[0] == "!" and held.value is False}
        assert self.edits.rule_set.enabled == ("!all" not in off)
        assert self.edits.rule_set.off_kinds == ({"topic"} if "!topic" in off else set())
        again = EditService(BOOKS[self.book], self.store, clock=lambda: self.now)
        for ordered in (set, _patterns):
            assert ordered(again.rule_set.rules) == ordered(self.edits.rule_set.rules)
        assert again.etag == self.edits.etag


def _patterns(rules: Iterable[Any]) -> list[Any]:
    """Return the patterns whose order matters."""
    return [rule for rule in rules if rule.exact_name is None]


def _counts(rule: Any) -> bool:
    return rule.kind == "topic" and rule.pattern in {"a", "ab", "a*", "*"}


TestEdits = Edits.TestCase
TestEdits.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
