import gc
import weakref
from typing import NamedTuple

import pytest

from proxy.flow.credit import DEFAULT_CREDIT, STORE_CREDIT, Credit, Kind, Stage, StageState

S = 1_000_000_000


def pair(initial: int = 10, more_after: int = 4) -> tuple[Stage, Stage]:
    return Stage("channel", "sender"), Stage("resource", "follower", Credit(initial, more_after))


class Left(NamedTuple):
    """The state of a pair. ``until_grant`` None: not compared."""

    credit: int
    overdraft: int = 0
    deferred: int = 0
    out_of_credit: bool = False


def left(sender: Stage, follower: Stage) -> Left:
    pair = sender._find(follower)
    overdraft = 0 if pair is None else max(0, -pair.balance)
    return Left(sender.credit(follower), overdraft, follower.deferred(sender), sender.out_of_credit)


@pytest.mark.parametrize(
    ("acks", "granted"),
    [((3,), 0), ((4,), 4), ((3, 1), 4), ((5,), 4), ((7,), 4), ((8,), 8), ((3, 5), 8), ((9, 2), 8), ((10,), 8)],
)
def test_credit_returns_after_a_batch_of_acks(acks: tuple[int, ...], granted: int) -> None:
    sender, follower = pair(40)
    sender.send(follower, 20, 0)
    for count in acks:
        follower.ack(sender, count, 0)
    assert left(sender, follower) == Left(20 + granted)
    assert sender.in_flight(follower) == 20 - sum(acks)


def test_closing_stage_returns_the_credit_of_its_senders() -> None:
    told: list[str] = []
    connection = Stage("connection", on_credit=lambda: told.append("connection"))
    channel = Stage("channel", gives=Credit(3, 3), on_credit=lambda: told.append("channel"))
    resources = [Stage("resource", str(number), Credit(2, 1)) for number in range(3)]
    connection.send(channel, 4, 0)
    for resource in resources:
        channel.send(resource, 2, 0)
    channel.close(0)
    assert told == ["connection"]
    assert not connection.out_of_credit
    assert not channel.out_of_credit
    assert connection.followers() == channel.followers() == channel.waits_for() == ()


class Name(str):
    """A name whose references can be counted."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("who_ends", ["sender", "follower"])
@pytest.mark.parametrize("acked", [0, 10])
@pytest.mark.parametrize("others", [0, 2])
def test_nothing_keeps_a_stage_that_has_closed(who_ends: str, acked: int, others: int) -> None:
    stages = [*pair(), *(Stage("channel") for _ in range(others)), *(Stage("store") for _ in range(others))]
    ending = stages.pop(0 if who_ends == "sender" else 1)
    other = stages[0]
    name = Name("ends")
    ending.name, there = name, weakref.ref(name)
    sender, follower = (ending, other) if who_ends == "sender" else (other, ending)
    for another in stages[1 : 1 + others]:
        another.send(follower, 1, 0)
    for another in stages[1 + others :]:
        sender.send(another, 1, 0)
    sender.send(follower, 10, 0)
    if acked:
        follower.ack(sender, acked, 0)
    gc.collect()
    gc.disable()
    try:
        ending.close(1)
        del ending, sender, follower, name
        assert there() is None
    finally:
        gc.enable()


def test_credit_must_come_back_before_it_is_spent() -> None:
    for gives in (Credit(0, 0), Credit(10, 0), Credit(10, 11), Credit(-1, -1)):
        with pytest.raises(ValueError, match="the second number must be between 1 and the first"):
            Stage("channel", gives=gives)


def test_usual_credit_is_that_of_rabbitmq() -> None:
    assert Stage("store").gives == STORE_CREDIT == (4000, 800)
    kinds: tuple[Kind, ...] = ("connection", "channel", "resource", "writer")
    assert {Stage(kind).gives for kind in kinds} == {DEFAULT_CREDIT} == {(400, 200)}


@pytest.mark.parametrize(("kind", "recent_ns"), [("connection", 5 * S), ("channel", S), ("resource", S)])
def test_stage_shows_flow_for_a_while_after_it_was_out_of_credit(kind: Kind, recent_ns: int) -> None:
    sender, follower = Stage(kind), Stage("store", gives=Credit(1, 1))
    assert sender.state(0) == "running"
    assert sender.waited_until_ns(0) == 0
    sender.send(follower, 1, 2 * S)
    assert sender.state(2 * S) == sender.state(100 * S) == "flow"
    assert sender.waited_until_ns(100 * S) == 100 * S
    follower.ack(sender, 1, 100 * S)
    assert sender.state(100 * S + recent_ns - 1) == "flow"
    assert sender.state(100 * S + recent_ns) == "running"
    assert sender.state(100 * S + recent_ns, recent_ns + 1) == "flow"
    assert sender.waited_until_ns(200 * S) == 100 * S
    assert sender.waits_for() == (follower,)


def test_how_often_and_how_long_counts_the_current_block() -> None:
    sender, follower = pair(2, 1)
    for at_ns in (10, 20):
        sender.send(follower, 2, at_ns)
        follower.ack(sender, 2, at_ns + 3)
    sender.send(follower, 2, 30)
    figures = sender.figures(37)
    assert (sender.out_of_credit, figures.flow_total, figures.flow_s) == (True, 3, 13 / S)


def test_throttled_and_blocked_are_states_of_their_own() -> None:
    stage, follower = Stage("resource", "orders"), Stage("writer", gives=Credit(1, 1))
    stage.throttle(10, on=True)
    stage.throttle(20, on=True)
    assert stage.state(5 * S) == "throttled"
    stage.send(follower, 1, 30)
    assert stage.state(30) == "flow"
    stage.block(40, on=True)
    assert stage.state(40) == "blocked"
    stage.block(45, on=False)
    stage.block(46, on=False)
    assert stage.state(45) == "flow"
    follower.ack(stage, 1, 50)
    stage.throttle(S // 2, on=False)
    assert stage.state(S + 49) == "flow"
    assert stage.state(S + 50) == stage.state(S + S // 2 - 1) == "throttled"
    assert stage.state(S + S // 2) == "running"
    assert stage.figures(S) == StageState(
        kind="resource",
        name="orders",
        state="flow",
        flow_total=1,
        flow_s=20 / S,
        throttled_total=1,
        throttled_s=(S // 2 - 10) / S,
        blocked_total=1,
        blocked_s=5 / S,
        waits_for=("writer",),
    )


def test_credit_of_a_stalled_stage_is_returned_after_the_stall() -> None:
    sender, follower = pair()
    store = Stage("store")
    sender.send(follower, 10, 0)
    follower.stall(store, 0, on=True)
    follower.ack(sender, 8, 0)
    assert left(sender, follower) == Left(0, 0, 8, out_of_credit=True)
    follower.stall(store, 1, on=False)
    assert left(sender, follower) == Left(8)


def test_stall_ends_with_either_stage() -> None:
    sender, follower = pair()
    sender.stall(follower, 0, on=True)
    follower.close(1)
    assert not sender.out_of_credit
    sender, follower = pair()
    sender.send(follower, 10, 0)
    sender.stall(follower, 0, on=True)
    sender.close(1)
    assert not sender.out_of_credit
