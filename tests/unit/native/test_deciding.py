"""The compiled extension decides and counts the same as Python, and together they do so once."""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import sluice_native
from hypothesis import given
from hypothesis import strategies as st
from live_states import states_of
from playbook import frames
from playbook.extension import CLIENT, Extension, feed

from limiter.buckets.cell import Cell, PythonCell
from limiter.buckets.limiter import LimiterState
from limiter.counting import accounts as accounts_module
from limiter.counting.accounts import Accounts
from limiter.counting.rejections import OTHER, OUTCOMES
from limiter.counting.row import PythonRow, PythonSecond, Row, Second
from limiter.deciding import limits as limits_module
from limiter.deciding.limits import Limits, PlainOfCaller
from limiter.rules.resource import Resource
from limiter.rules.rule import DIMENSIONS, NS_PER_S, Rule
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Request, Shadow, Side, Verdict
from proxy.deciding.counting import Tally
from proxy.deciding.judge import Judge
from proxy.deciding.pipeline import HandlerServices, Pipeline
from proxy.deciding.rate_limit import RateLimit, RateLimitOptions

ADDRESSES = ("192.0.2.1", "192.0.2.2")
# Rules of all sorts, few enough to overlap.
RULES = (
    Rule("topic", "*", 3),
    Rule("topic", "*", 2, burst_s=2.0, break_s=0),
    Rule("topic", "*", 0),
    Rule("topic", "*", None, bytes_per_s=900),
    Rule("topic", "*", 5, bytes_per_s=1500),
    Rule("topic", "*", 4, count="requests"),
    Rule("topic", "a", 1),
    Rule("topic", "b", 7, max_debt_s=0),
    Rule("topic", "b", 3, action="off"),
    Rule("topic", "c", None, exempt=True),
    Rule("topic", "[de]", 2),
    Rule("topic", "d*", 4, shared=True),
    Rule("topic", "e", 2, action="shadow"),
    Rule("topic", "f", 3, fair_by="producer_group"),
    Rule("topic", "g", 3, warm_up_s=1.0),
    Rule("client", "*", 9),
    Rule("client", "192.0.2.2", 4, bytes_per_s=2000),
    Rule("producer_group", "pg", 6),
    Rule("listener", "*", 20),
    Rule("listener", "main", None, adaptive=True, floor_per_s=1),
    Rule("listener", "main", None, adaptive=True, floor_per_s=1, fair_by="client"),
    Rule("topic", "z", None, weight=2),
)


# Producer groups of one client that the compiled extension caches.
MAX_GROUPS = 64
ADMITTED = OUTCOMES.index("admitted")
MANY_LIMITERS = 100


def rule_set_of(chosen: Sequence[Rule], version: int, *, enabled: bool = True) -> RuleSet:
    """Return a set of some rules, the first of those with one key."""
    return RuleSet({rule.key: rule for rule in reversed(chosen)}.values(), enabled, version)


Send = tuple[str, str, int]
"""Topic, producer group, and length of the body."""


class Way:
    """One way to decide and count, with its own limits and accounts."""

    def __init__(self, rule_set: RuleSet, max_live: int = 1000, accounts: Accounts | None = None) -> None:
        self.accounts = accounts or Accounts()
        self.limits = Limits(rule_set, max_live, self.accounts)
        self.tally = Tally(self.accounts)
        self.handler = RateLimit(RateLimitOptions(), HandlerServices(self.limits, lambda: 0))

    def take(self, batch: Batch, now_ns: int) -> list[object]:
        """Decide and count a batch. Return the outcome of each request."""
        batch.add_verdicts(self.handler.on_requests(batch, now_ns))
        self.tally.count(batch, now_ns, self.accounts.sender(batch.connection.address))
        return [_said(batch.verdicts.get(index)) for index in range(len(batch.requests))]

    def states(self, now_ns: int) -> dict[object, LimiterState]:
        return {(state.resource, state.rule): state for state in states_of(self.limits, now_ns)}

    def everything(self, now_ns: int) -> dict[str, Any]:
        """Return the rest of the visible state."""
        limits = self.limits
        return {
            "counts": dict(filter(None, self.accounts.each())),
            "rules": self.accounts.rules,
            "usage": dict(limits.usages(now_ns)),
        }


class Compiled(Way):
    """The compiled extension decides and counts as much as it can, and Python the rest of a chunk."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert self.limits.resources is not None
        self.resources = self.limits.resources
        self.extension = Extension(self.limits)
        self.pipeline = Pipeline([], HandlerServices(self.limits, lambda: 0))

    def send(
        self, sends: Sequence[Send], info: ConnectionInfo, now_ns: int, requests: sluice_native.Requests | None = None
    ) -> tuple[list[object], int]:
        """Decide the beginning of a client's requests. Return the outcomes and their number."""
        refuses: list[Refuse] = []

        def around(refuse: Refuse) -> tuple[bytes, bytes]:
            refuses.append(refuse)
            return b"%d " % (len(refuses) - 1), b""

        sender = self.accounts.sender(info.address)
        judge = Judge(self.pipeline, self.handler, self.tally, self.resources, info, sender)
        judge.stays = lambda: True
        # Opaques are compared, and must not repeat.
        lent = self.extension.lend(judge, self.extension.requests() if requests is None else requests, around=around)
        whole = [_frame(number, each) for number, each in enumerate(sends)]
        read = feed(lent, CLIENT, b"".join(whole), now_ns, self.accounts.at(now_ns))
        count = read.frames[CLIENT]
        assert read.stop == sum(map(len, whole[:count]))
        said: list[object] = [None] * count
        for answer in frames.split(read.to_client):
            refuse, number = map(int, answer[8:].split())
            said[number] = _said(refuses[refuse])
        passed = [frame for frame, verdict in zip(whole, said, strict=False) if verdict is None]
        assert read.to_broker == b"".join(passed)
        return said, count

    def ask(self, topics: str, now_s: float = 0, *, info: ConnectionInfo | None = None, requests: Any = None) -> str:
        """Send to topics of one letter each. Return the admitted ones."""
        sends: list[Send] = [(topic, "producers", 0) for topic in topics]
        said, count = self.send(sends, info or info_of(ADDRESSES[0]), round(now_s * NS_PER_S), requests)
        assert count == len(topics)
        return "".join(topic for topic, verdict in zip(topics, said, strict=True) if verdict is None)

    def admitted(self) -> dict[str, int]:
        """Return the admitted requests by visible name."""
        shown = filter(None, self.accounts.each())
        return {resource.name: amounts[ADMITTED][0] for resource, amounts in shown if amounts[ADMITTED][0]}


def _frame(number: int, send: Send) -> bytes:
    topic, group, size = send
    return frames.send(topic, number, group=group, body=bytes(size))


def info_of(address: str) -> ConnectionInfo:
    return ConnectionInfo(1, "main", "main", f"{address}:1", address)


def requests_of(sends: Sequence[Send]) -> list[Request]:
    """Return a client's requests, as Python reads them."""
    return [
        Request((topic(name),), 1, len(_frame(number, (name, group, size))), group, "answered", None, None)
        for number, (name, group, size) in enumerate(sends)
    ]


def batch_of(requests: Sequence[Request], address: str) -> Batch:
    return Batch(info_of(address), Side.CLIENT, requests)


def _said(verdict: Verdict | None) -> object:
    match verdict:
        case Refuse():
            return verdict.resource, verdict.rule, verdict.wait_us, verdict.most
        case Shadow():
            return verdict.resource, verdict.rule
    return None


sends = st.tuples(st.sampled_from("aabbcdefgxyz"), st.sampled_from(["pg", "other"]), st.integers(0, 300))
steps = st.tuples(
    st.lists(sends, min_size=1, max_size=12),
    st.sampled_from(ADDRESSES),
    st.sampled_from([0, 0, 1_000_000, 300_000_000, NS_PER_S, 5 * NS_PER_S, 100 * NS_PER_S]),
    st.none() | st.tuples(st.lists(st.sampled_from(RULES), max_size=6), st.booleans()),
    st.sampled_from([None, None, 2.0, 9.0]),
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    with patch("proxy.deciding.rate_limit._log"):
        yield


@given(st.lists(st.sampled_from(RULES), max_size=6), st.sampled_from([1, 3, 1000]), st.lists(steps, max_size=25))
def test_both_ways_agree(rules: list[Rule], max_live: int, walk: list[Any]) -> None:
    def chosen(some: Sequence[Rule]) -> Sequence[Rule]:
        # With a shadow rule, the compiled extension looks up all names of a chunk before it decides any. If there are
        # more names than limiters, they would compete for them in another order.
        return some if max_live > MANY_LIMITERS else [rule for rule in some if rule.action != "shadow"]

    first = rule_set_of(chosen(rules), 1)
    compiled, python = Compiled(first, max_live), Way(first, max_live)
    now_ns, version = 0, 1
    for some, address, passed_ns, swap, limit_per_s in walk:
        now_ns += passed_ns
        if swap is not None:
            version += 1
            for way in (compiled, python):
                way.limits.swap(rule_set_of(chosen(swap[0]), version, enabled=swap[1] or len(swap[0]) > 3), now_ns)
        said, count = compiled.send(some, info_of(address), now_ns)
        requests = requests_of(some)
        # Python decides the rest as another chunk.
        parts = [part for part in (requests[:count], requests[count:]) if part]
        if count < len(some):
            said += compiled.take(batch_of(parts[-1], address), now_ns)
        assert said == [each for part in parts for each in python.take(batch_of(part, address), now_ns)]
        shared = [way.limits.adaptive("main", now_ns) for way in (compiled, python)]
        for limiter in filter(None, shared):
            limiter.follow(now_ns, limit_per_s)
        one, other = (None if limiter is None else sorted(limiter.demands()) for limiter in shared)
        assert one == other
    assert compiled.everything(now_ns) == python.everything(now_ns)
    states, others = compiled.states(now_ns), python.states(now_ns)
    assert all(states[name] == others[name] for name in states.keys() & others.keys())
    for name in states.keys() ^ others.keys():
        # Any limiter that is equivalent to a new one may be evicted.
        state = states.get(name) or others[name]
        assert not state.open
        assert state.stored_permits >= state.rate_per_s


def topic(name: str) -> Resource:
    return Resource("topic", name)


def slow(rate_per_s: float) -> RuleSet:
    """Return a default that stores ten permits at most."""
    return RuleSet([Rule("topic", "*", rate_per_s, burst_s=10 / rate_per_s)])


def test_limiter_begun_under_rules_that_are_gone_makes_room_when_it_is_full_under_those_in_force() -> None:
    way = Compiled(slow(1), 1)
    assert way.ask("a" * 5) == "a" * 5
    way.limits.swap(slow(0.1), 0)
    way.limits.swap(slow(0.2), 4 * NS_PER_S)
    # Under its first rule it would be full.
    assert way.ask("b", 5) == "b"
    assert {state.resource.name: state.stored_permits for state in states_of(way.limits, 5 * NS_PER_S)} == {
        "a": pytest.approx(5.6),
        "_overflow": 9,
    }
    assert (way.limits.live, way.limits.evicted_total, way.limits.overflowed_total) == (1, 0, 2)
    assert way.ask("c", 60) == "c"
    assert [state.resource.name for state in states_of(way.limits, 60 * NS_PER_S)] == ["c", "_overflow"]
    assert (way.limits.live, way.limits.evicted_total, way.limits.overflowed_total) == (1, 1, 2)


@pytest.mark.parametrize("forgotten_first", [True, False])
def test_name_that_is_forgotten_while_a_connection_knows_it_has_one_limiter(
    monkeypatch: pytest.MonkeyPatch,
    forgotten_first: bool,  # noqa: FBT001 - a parameter
) -> None:
    monkeypatch.setattr(limits_module, "_MORE_NAMES", -9)
    way = Compiled(RuleSet(), 10)
    one, other = (way.extension.requests() for _ in range(2))
    assert way.ask("a", requests=one) == "a"
    assert way.ask("b", requests=other) == "b"
    assert len(way.resources) == 1
    way.limits.swap(RuleSet([Rule("topic", "*", 2, max_debt_s=0)]), 0)
    first, second = (one, other) if forgotten_first else (other, one)
    assert (way.ask("aa", requests=first), way.ask("aa", requests=second)) == ("aa", "")
    assert (way.limits.live, way.admitted()) == (1, {"a": 3, "b": 1})
    # It is the same one later on.
    assert (way.ask("aa", 1, requests=second), way.ask("aa", 1, requests=first)) == ("aa", "")


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> Accounts:
    """Accounts with a label for one name and a row for another. All others share one."""
    monkeypatch.setattr(accounts_module, "_MIN_ROWS", 1)
    return Accounts(1, 1, 1)


def test_name_with_a_rule_of_its_own_is_counted_by_itself_whatever_the_others_share(few_rows: Accounts) -> None:
    way = Compiled(RuleSet([Rule("topic", "*", 100), Rule("topic", "v", 100)]), 1000, few_rows)
    assert way.ask("abcdv") == "abcdv"
    assert way.admitted() == {"a": 1, "v": 1, OTHER: 3}


@pytest.mark.parametrize("shares", ["s", "p"])
def test_name_that_shares_a_row_or_has_no_label_gets_its_own_within_ten_seconds(
    few_rows: Accounts, shares: str
) -> None:
    # One's limiter is created by the compiled extension, the other's is not.
    way = Compiled(RuleSet([Rule("topic", "*", 100), Rule("topic", "p*", 100)]), 1000, few_rows)
    for at_s, topics in ((0, "ab"), (595, "b"), (600, "b"), (604, "b")):
        assert way.ask(topics + shares, at_s) == topics + shares
    # From 600 s on there is room, because ``a`` was silent. Its last request was at 595 s.
    assert way.admitted() == {OTHER: 9}
    assert way.limits.used(topic(shares), 605 * NS_PER_S) == {}
    assert way.ask("b" + shares, 605) == "b" + shares
    assert way.admitted() == {"b": 1, OTHER: 10}
    assert way.limits.used(topic(shares), 606 * NS_PER_S)["messages"].last_1s == pytest.approx(0.01)


@pytest.mark.parametrize("pattern", ["*", "a*", "a"])
@pytest.mark.parametrize("off_kinds", [(), ("topic",)])
def test_exempt_names_are_not_limited_by_scopes_though_their_kind_is_switched_off(
    pattern: str, off_kinds: Sequence[str]
) -> None:
    rules = (Rule("topic", pattern, None, exempt=True), Rule("client", "*", 1, max_debt_s=0))
    way = Compiled(RuleSet(rules, off_kinds=off_kinds))
    for _ in range(2):
        assert way.ask("a") == "a"
    assert way.ask("bb") == ("bb" if pattern == "*" else "b")
    assert way.ask("aaa") == "aaa"


def test_limits_of_scopes_are_those_of_the_connection() -> None:
    """Two users behind one address, and one in two virtual hosts."""
    way = Compiled(RuleSet((Rule("user", "*", 3, max_debt_s=0), Rule("vhost", "/", 4, max_debt_s=0))))
    admitted = []
    for names in (("user alice", "vhost /"), ("user bob", "vhost /"), ("user bob", "vhost test"), ()):
        scopes = tuple(Resource(*name.split()) for name in names)
        info = msgspec.structs.replace(info_of(ADDRESSES[0]), scopes=scopes)
        admitted.append(len(way.ask("aaaaa", info=info)))
    assert admitted == [3, 1, 2, 5]
    assert len(way.limits._callers) == 4


def test_limits_of_more_producer_groups_than_are_remembered_are_asked_for_again() -> None:
    asked: list[str] = []

    def limits_of(group: str, _: int) -> PlainOfCaller:
        asked.append(group)
        return PlainOfCaller((), None)

    extension = Extension(Limits(RuleSet()))
    judge = extension.recorder()
    judge.callers = sluice_native.Callers(limits_of)
    lent = extension.lend(judge)
    groups = [f"group{number}" for number in range(MAX_GROUPS)]

    def ask(*groups: str) -> list[str]:
        asked.clear()
        for group in groups:
            assert not feed(lent, CLIENT, frames.send("a", group=group)).leaves
        assert judge.runs == []
        return asked

    assert ask(*groups) == groups
    assert ask(*groups) == []
    assert ask("one more", groups[0], groups[0]) == ["one more", groups[0]]


FIGURES = st.integers(0, 10**12)
NOWS = st.integers(-(10**9), 10**12)


@given(st.lists(st.tuples(NOWS, FIGURES, FIGURES), max_size=20), FIGURES, FIGURES, FIGURES, FIGURES)
def test_cells_are_the_same(
    asked: list[tuple[int, int, int]], rate: int, capacity: int, forgiven: int, max_debt: int
) -> None:
    cells: tuple[Any, ...] = (Cell(), PythonCell())
    for cell in cells:
        cell.rate_upermits_per_s, cell.capacity_upermits, cell.stored_upermits = rate, capacity, capacity
        cell.forgiven_upermits, cell.max_debt_upermits = forgiven, max_debt
    for now_ns, before, more in asked:
        one, other = (cell.admits(now_ns, before // 10**6, (before + more) // 10**6) for cell in cells)
        assert one == other
        for cell in cells:
            if one:
                cell.spend((before + more) // 10**6)
        names = ("stored_upermits", "at_ns", "forgiven_upermits", "open_next_free_ns")
        assert len({tuple(getattr(cell, name) for name in names) for cell in cells}) == 1
        assert cells[0].refill(now_ns + 7) == cells[1].refill(now_ns + 7)


SENDERS = tuple(object() for _ in range(300))
added = st.tuples(
    st.integers(0, 3),
    st.integers(0, 299),
    st.integers(0, 6),
    *[st.integers(0, 99)] * 3,
    st.integers(0, 1),
    st.sampled_from((0, 1, -1)),
)


@given(st.lists(added, max_size=60), st.booleans())
def test_rows_are_the_same(told: list[Any], many: bool) -> None:  # noqa: FBT001 - drawn
    rows: tuple[Any, ...] = (Row(SENDERS[0]), PythonRow(SENDERS[0]))  # type: ignore[arg-type]
    number = 1
    seconds: list[tuple[Any, ...]] = [(Second(number), PythonSecond(number))]
    if many:
        told = [*told, *((0, sender, 1, 1, 2, 3, 1, 1) for sender in range(len(SENDERS)))]
    for passed_s, sender, outcome, *amount, unit, spends in told:
        number += passed_s * 25
        if passed_s:
            seconds.append((Second(number), PythonSecond(number)))
        for row, second in zip(rows, seconds[-1], strict=True):
            if spends:
                row.spend(second, unit, spends * amount[0])
            row.add(second, number, SENDERS[sender], outcome, *amount, unit)
    for unit in range(len(DIMENSIONS)):
        for at in (number, number + 1, number + 30, number + 100):
            assert rows[0].used(at, unit) == rows[1].used(at, unit)
    assert list(rows[0].totals()) == list(rows[1].totals())
    assert (rows[0].seen_ns, rows[0].spent_in) == (rows[1].seen_ns, rows[1].spent_in)
    for one, other in seconds:
        assert len(one.entries) == len(other.entries)
        for entry, twin in zip(one.entries, other.entries, strict=True):
            assert (entry.told, entry.more, entry.asked()) == (twin.told, twin.more, twin.asked())
            assert list(entry.amounts()) == list(twin.amounts())
