"""The recording beside the tally, told of the same batches on manual clocks."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from limiter.counting.recorder import Sender
from limiter.counting.rejections import Amount, Outcome, Rejection, TrafficSecond
from limiter.rules.resource import Resource
from proxy.common import cooperative
from proxy.deciding.batch import Batch, Charge, ConnectionInfo, Hold, Refuse, Request, Shadow, Side, Ticket, Verdict
from proxy.stats.recording import Recording
from proxy.stats.snapshot import RequestVerdict
from proxy.stats.tally import Tally

KIND: Final = "topic"
BEGAN: Final = datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC)
BEGAN_S: Final = round(BEGAN.timestamp())
JAVA: Final = Sender("192.0.2.1", "JAVA")
OUTCOMES: Final[dict[RequestVerdict, Outcome]] = {
    "pass": "admitted",
    "refuse": "refused",
    "shadow": "shadowed",
    "bypass": "bypassed",
    "exempt": "exempt",
    "drop": "dropped",
}
RULED: Final[tuple[Outcome, ...]] = ("refused", "shadowed", "held")


class Told:
    """A tally with a recording, and their clocks."""

    def __init__(self, max_resources: int = 100, max_keys: int = 100) -> None:
        self.now_ns = 0
        self.wall = BEGAN
        self.tally = Tally(100)
        self.recording = Recording(max_keys, max_resources, self.tally.pinned, lambda: self.now_ns, lambda: self.wall)
        self.tally.record(self.recording)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.wall += timedelta(seconds=seconds)

    def count(self, batch: Batch, sender: Sender = JAVA) -> Batch:
        self.tally.count(batch, self.now_ns, sender)
        return batch

    async def take(self, *, unfinished: bool = True) -> tuple[TrafficSecond, ...]:
        return await self.recording.take(unfinished=unfinished)

    async def only(self) -> TrafficSecond:
        (second,) = await self.take()
        return second


@pytest.fixture
def told() -> Told:
    return Told()


def resource(name: str) -> Resource:
    return Resource(KIND, name)


def batch_of(*requests: Request, charges: tuple[Charge, ...] = (), exempt: bool = False, **verdicts: Verdict) -> Batch:
    """Make a batch; verdicts are named by the index of their request, as ``at1``."""
    info = ConnectionInfo(1, "main", "main", "192.0.2.1:40000", "192.0.2.1", exempt=exempt)
    batch = Batch(info, Side.CLIENT, requests, charges)
    batch.add_verdicts({int(name.removeprefix("at")): verdict for name, verdict in verdicts.items()})
    return batch


def request(
    *names: str,
    messages: int = 1,
    size_bytes: int = 100,
    group: str = "g",
    oneway: bool = False,
    consumes: bool = False,
) -> Request:
    return Request(tuple(map(resource, names)), messages, size_bytes, group, oneway, None, None, consumes)


def refuse(rule: str = "rule", wait_us: int = 0) -> Refuse:
    return Refuse(resource("x"), rule, wait_us)


def hold(rule: str = "slow") -> Hold:
    return Hold(resource("x"), rule, Ticket(lambda: None))


def outcomes(second: TrafficSecond) -> dict[str, dict[Outcome, Amount]]:
    return {each.resource.name: each.outcomes for each in second.resources}


class TestBatches:
    async def test_what_passes_is_recorded_with_its_bytes(self, told: Told) -> None:
        told.count(
            batch_of(
                request("a", messages=2, size_bytes=10),
                request("b", messages=3, size_bytes=200),
                request("a", messages=5, size_bytes=4000),
                request("b", "c", messages=7, size_bytes=50_000),
            )
        )
        second = await told.only()
        assert second.at_s == BEGAN_S
        assert outcomes(second) == {
            "a": {"admitted": Amount(2, 7, 4010)},
            "b": {"admitted": Amount(2, 10, 50_200)},
            "c": {"admitted": Amount(1, 7, 50_000)},
        }
        assert second.rejections == ()
        assert second.resources[0].languages == {"JAVA": (2, 0)}
        assert second.resources[0].clients == ("192.0.2.1",)

    async def test_runs_of_verdicts_are_told_apart(self, told: Told) -> None:
        once, again, shadow = refuse("one", 5), refuse("two", 9), Shadow(resource("a"), "dark")
        requests = [request("a", messages=1 << at, size_bytes=10**at) for at in range(6)]
        told.count(batch_of(*requests, at0=once, at1=once, at3=again, at4=shadow))
        second = await told.only()
        assert outcomes(second) == {
            "a": {
                "refused": Amount(3, 11, 1011),
                "admitted": Amount(2, 36, 100_100),
                "shadowed": Amount(1, 16, 10_000),
            }
        }
        client = "192.0.2.1"
        assert second.rejections == (
            Rejection(resource("a"), client, "g", "one", "refuse", Amount(2, 3, 11), 5),
            Rejection(resource("a"), client, "g", "two", "refuse", Amount(1, 8, 1000), 9),
            Rejection(resource("a"), client, "g", "dark", "shadow", Amount(1, 16, 10_000), 0),
        )
        assert second.resources[0].languages == {"JAVA": (6, 3)}

    async def test_a_refused_oneway_request_gets_no_answer(self, told: Told) -> None:
        no = refuse()
        told.count(batch_of(request("a"), request("a", oneway=True), request("a"), at0=no, at1=no, at2=no))
        (of,) = (await told.only()).resources
        assert (of.outcomes["refused"].requests, of.busy_answers) == (3, 2)

    async def test_producer_groups_are_told_apart(self, told: Told) -> None:
        no = refuse()
        told.count(batch_of(request("a", group="g"), request("a", group="h"), at0=no, at1=no))
        assert {each.producer_group for each in (await told.only()).rejections} == {"g", "h"}

    async def test_bypassed_and_exempt_requests_have_their_own_words(self, told: Told) -> None:
        bypassed = batch_of(request("a"), request("b"), at1=refuse())
        bypassed.bypassed["rate_limit"] = "late"
        told.count(bypassed)
        told.count(batch_of(request("a"), charges=(Charge((resource("a"),), 5, 70),), exempt=True))
        assert outcomes(await told.only()) == {
            "a": {"bypassed": Amount(1, 1, 100), "exempt": Amount(1, 6, 170)},
            "b": {"refused": Amount(1, 1, 100)},
        }

    async def test_what_consumes_is_charged_by_its_answer(self, told: Told) -> None:
        told.count(batch_of(request("a", messages=0, size_bytes=300, consumes=True)))
        told.count(batch_of(charges=(Charge((resource("a"),), 32, 9000), Charge((resource("b"),), 0, 0))))
        assert outcomes(await told.only()) == {"a": {"admitted": Amount(1, 32, 9000)}}


class TestHeld:
    async def test_is_recorded_as_held_and_again_as_what_it_comes_to(self, told: Told) -> None:
        requests = [request("a", messages=1 << at, size_bytes=10**at, oneway=at == 2) for at in range(5)]
        batch = told.count(batch_of(*requests, **{f"at{at}": hold() for at in range(5)}))
        assert outcomes(await told.only()) == {"a": {"held": Amount(5, 31, 11_111)}}
        tally, now_ns = told.tally, told.now_ns
        tally.resolved(batch.requests[0], None, now_ns, JAVA)
        tally.resolved(batch.requests[1], refuse("full", 77), now_ns, JAVA)
        tally.resolved(batch.requests[2], refuse("full", 7), now_ns, JAVA)
        tally.resolved(batch.requests[3], Shadow(resource("a"), "dark"), now_ns, JAVA)
        tally.dropped(batch.requests[4], now_ns, JAVA)
        second = await told.only()
        (of,) = second.resources
        assert of.outcomes == {
            "admitted": Amount(1, 1, 1),
            "refused": Amount(2, 6, 110),
            "shadowed": Amount(1, 8, 1000),
            "dropped": Amount(1, 16, 10_000),
        }
        assert (of.busy_answers, of.languages, of.clients) == (1, {"JAVA": (5, 2)}, ("192.0.2.1",))
        assert [(each.rule, each.verdict, each.amount, each.wait_max_us) for each in second.rejections] == [
            ("full", "refuse", Amount(2, 6, 110), 77),
            ("dark", "shadow", Amount(1, 8, 1000), 0),
        ]

    async def test_the_hold_itself_is_what_a_rule_did(self, told: Told) -> None:
        told.count(batch_of(request("a", messages=3), at0=hold("slow")))
        (rejection,) = (await told.only()).rejections
        assert (rejection.rule, rejection.verdict, rejection.amount) == ("slow", "hold", Amount(1, 3, 100))

    async def test_what_is_resolved_in_another_second_counts_there(self, told: Told) -> None:
        batch = told.count(batch_of(request("a"), at0=hold()))
        told.pass_s(3)
        told.tally.resolved(batch.requests[0], None, told.now_ns, JAVA)
        assert [(each.at_s - BEGAN_S, set(each.resources[0].outcomes)) for each in await told.take()] == [
            (0, {"held"}),
            (3, {"admitted"}),
        ]


class TestTaking:
    async def test_seconds_are_the_walls_in_whatever_time_zone_it_is_told(self) -> None:
        told = Told()
        told.wall = BEGAN.astimezone(timezone(timedelta(hours=5, minutes=45)))
        told.pass_s(2.5)
        told.count(batch_of(request("a")))
        assert await told.take(unfinished=False) == ()
        told.pass_s(0.5)
        assert [each.at_s for each in await told.take(unfinished=False)] == [BEGAN_S + 2]

    async def test_cancelled_nothing_is_lost(self, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
        # However fast the machine is, others have a turn meanwhile.
        monkeypatch.setattr(cooperative, "STRETCH_NS", 0)
        for _ in range(3):
            told.count(batch_of(*(request(f"t{number}") for number in range(2000))))
            told.pass_s(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await told.take()
        assert scope.cancelled_caught
        seconds = await told.take()
        assert [each.at_s - BEGAN_S for each in seconds] == [0, 1, 2]
        assert sum(each.outcomes["admitted"].requests for second in seconds for each in second.resources) == 6000
        assert sum(second.other for second in seconds) == 3 * 1900

    async def test_others_have_their_turns_while_much_is_taken(self) -> None:
        told = Told(max_resources=20_000)
        told.count(batch_of(*(request(f"t{number}") for number in range(20_000))))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            second = await told.only()
            assert turns > 3
            nursery.cancel_scope.cancel()
        assert len(second.resources) == 20_000


NAMES = ["a", "b", "c", "d"]
FATES = ["none", "refuse", "shadow", "hold"]


@given(
    steps=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True),
                    st.integers(1, 9),
                    st.sampled_from(["g", "h"]),
                    st.sampled_from(FATES),
                ),
                max_size=6,
            ),
            st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 32)), max_size=2),
            st.sampled_from(["", "bypassed", "exempt"]),
            st.sampled_from([0.0, 0.4, 1.0, 100.0]),
            st.sampled_from([0, 0, 0, 30, -30]),
            st.sampled_from(["no", "no", "over", "unfinished"]),
            st.lists(st.sampled_from(["pass", "refuse", "shadow", "drop"]), max_size=4),
        ),
        max_size=25,
    ),
    max_resources=st.integers(1, 5),
    max_keys=st.integers(1, 5),
)
def test_sums_are_those_of_the_tally_whatever_happens(steps: list[Any], max_resources: int, max_keys: int) -> None:
    seconds: list[TrafficSecond] = []
    tallies: list[Tally] = []

    async def history() -> None:
        told = Told(max_resources, max_keys)
        tallies.append(told.tally)
        held: list[Request] = []
        for requests, charges, word, passed_s, stepped_s, take, fates in steps:
            told.pass_s(passed_s)
            told.wall += timedelta(seconds=stepped_s)
            said: dict[str, Verdict | None] = {
                "none": None,
                "refuse": refuse(),
                "shadow": Shadow(resource("x"), "dark"),
            }
            verdicts = {f"at{at}": hold() if fate == "hold" else said[fate] for at, (*_, fate) in enumerate(requests)}
            batch = batch_of(
                *(request(*names, messages=cost, group=group) for names, cost, group, _ in requests),
                charges=tuple(Charge((resource(name),), cost, 10) for name, cost in charges),
                exempt=word == "exempt",
                **{at: verdict for at, verdict in verdicts.items() if verdict is not None},
            )
            if word == "bypassed":
                batch.bypassed["handler"] = "late"
            told.count(batch)
            held += [each for each, (*_, fate) in zip(batch.requests, requests, strict=True) if fate == "hold"]
            for fate in fates[: len(held)]:
                if fate == "drop":
                    told.tally.dropped(held.pop(), told.now_ns, JAVA)
                else:
                    verdict = {"pass": None, "refuse": refuse(), "shadow": Shadow(resource("x"), "dark")}[fate]
                    told.tally.resolved(held.pop(), verdict, told.now_ns, JAVA)
            if take != "no":
                seconds.extend(await told.take(unfinished=take == "unfinished"))
        seconds.extend(await told.take())

    trio.run(history)
    (tally,) = tallies
    counted: Counter[tuple[str, Outcome]] = Counter()
    for _, counts in tally.each():
        for verdict, outcome in OUTCOMES.items():
            counted["requests", outcome] += counts.requests[verdict]
            counted["messages", outcome] += counts.messages[verdict]
    recorded: Counter[tuple[str, Outcome]] = Counter()
    ruled: Counter[tuple[str, Outcome]] = Counter()
    asked = refused = answered = 0
    for second in seconds:
        for of in second.resources:
            for outcome, amount in of.outcomes.items():
                recorded["requests", outcome] += amount.requests
                recorded["messages", outcome] += amount.messages
            asked += sum(requests for requests, _ in of.languages.values())
            refused += sum(requests for _, requests in of.languages.values())
            answered += of.busy_answers
        for rejection in second.rejections:
            outcome = RULED[("refuse", "shadow", "hold").index(rejection.verdict)]
            ruled["requests", outcome] += rejection.amount.requests
            ruled["messages", outcome] += rejection.amount.messages
    assert +ruled == Counter({key: count for key, count in recorded.items() if key[1] in RULED and count})
    recorded = Counter({key: count for key, count in recorded.items() if key[1] != "held"})
    assert +recorded == +counted
    assert asked == sum(count for (what, _), count in counted.items() if what == "requests")
    assert refused == answered == counted["requests", "refused"]
