"""One task serves the sockets of all connections, without starving other tasks."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from select import EPOLLIN, EPOLLOUT

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from proxy.net import reactor as reactor_module
from proxy.net.reactor import BROKER, CLIENT, Reactor, Watched
from proxy.net.sockets import Wire

MakePair = Callable[[], tuple[Wire, socket.socket]]


def nothing() -> None:
    """Do nothing."""


@pytest.fixture
async def reactor() -> AsyncIterator[Reactor]:
    running = Reactor()
    async with trio.open_nursery() as serving:
        serving.start_soon(running.run)
        yield running
        serving.cancel_scope.cancel()
    running.close()


@pytest.fixture
def pair() -> Iterator[MakePair]:
    """Make connected pairs: a wire, and the plain socket of its peer."""
    with ExitStack() as open_sockets:
        listening = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0)))

        def make() -> tuple[Wire, socket.socket]:
            far = open_sockets.enter_context(socket.create_connection(listening.getsockname()))
            near, _ = listening.accept()
            open_sockets.callback(near.close)
            return Wire(near), far

        yield make


class Counting(Watched):
    def __init__(self, reactor: Reactor, wire: Wire, *, also: Callable[[], None] = nothing) -> None:
        super().__init__(reactor, wire.fileno())
        self.told: list[str] = []
        self.errors: list[Exception] = []
        self._wire = wire
        self._also = also

    def readable(self) -> None:
        self.told.append("readable")
        self._wire.receive_into(memoryview(bytearray(100)))
        self._also()

    def writable(self) -> None:
        self.told.append("writable")
        self.remove_interest(EPOLLOUT)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


async def test_calls_only_for_wanted_permits(reactor: Reactor, pair: MakePair) -> None:
    wire, far = pair()
    watched = Counting(reactor, wire)
    far.send(b"1")
    await wait_all_tasks_blocked()
    assert watched.told == []
    watched.add_interest(EPOLLIN)
    await wait_all_tasks_blocked()
    assert watched.told == ["readable"]
    watched.add_interest(EPOLLOUT)
    await wait_all_tasks_blocked()
    assert watched.told == ["readable", "writable"]
    watched.remove_interest(EPOLLIN)
    far.send(b"2")
    await wait_all_tasks_blocked()
    assert watched.told == ["readable", "writable"]


@pytest.mark.parametrize("event", [EPOLLIN, EPOLLOUT])
async def test_reset_is_reported_to_any_registered_interest(reactor: Reactor, pair: MakePair, event: int) -> None:
    wire, far = pair()
    watched = Counting(reactor, wire)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    watched.add_interest(event)
    while not watched.told:
        await trio.lowlevel.checkpoint()
    watched.unwatch()
    assert watched.told[0] == ("readable" if event == EPOLLIN else "writable")
    assert [type(error) for error in watched.errors] == ([ConnectionResetError] if event == EPOLLIN else [])


async def test_unwatched_descriptor_is_not_called_in_the_same_round(reactor: Reactor, pair: MakePair) -> None:
    pairs = [pair() for _ in range(2)]
    all_watched: list[Counting] = []

    def unwatch() -> None:
        for each in all_watched:
            each.unwatch()

    all_watched.extend(Counting(reactor, wire, also=unwatch) for wire, _ in pairs)
    for each in all_watched:
        each.add_interest(EPOLLIN)
    for _, far in pairs:
        far.send(b"1")
    await wait_all_tasks_blocked()
    assert sorted(len(each.told) for each in all_watched) == [0, 1]


async def test_exception_is_reported_to_its_owner(reactor: Reactor, pair: MakePair) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    pairs = [pair() for _ in range(2)]
    faulty = Counting(reactor, pairs[0][0], also=fail)
    other = Counting(reactor, pairs[1][0])
    for watched, (_, far) in zip((faulty, other), pairs, strict=True):
        watched.add_interest(EPOLLIN)
        far.send(b"1")
    await wait_all_tasks_blocked()
    assert [type(error) for error in faulty.errors] == [ZeroDivisionError]
    assert (other.told, other.errors) == (["readable"], [])


async def test_all_other_tasks_have_their_turn_within_a_round(
    reactor: Reactor, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ns = iter(range(0, 10**12, reactor_module.ROUND_NS // 2))
    monkeypatch.setattr(reactor_module, "perf_counter_ns", lambda: next(clock_ns))
    order: list[str] = []
    pairs = [pair() for _ in range(8)]
    for wire, _ in pairs:
        Counting(reactor, wire, also=lambda: order.append("socket")).add_interest(EPOLLIN)
    for _, far in pairs:
        far.send(b"1")
    while order.count("socket") < len(pairs):
        order.append("other")
        await trio.lowlevel.checkpoint()
    served = "".join("s" if each == "socket" else "." for each in order).strip(".")
    # Two per round. Trio may run this test before or after the reactor in each turn.
    assert "s" * 5 not in served


async def test_timers_are_called_when_they_are_due_unless_they_are_cancelled(
    reactor: Reactor, mock_clock: MockClock
) -> None:
    called: list[str] = []
    timers = {delay_s: reactor.after(delay_s, partial(called.append, f"{delay_s} s")) for delay_s in (60, 5, 1)}
    mock_clock.jump(0.5)
    await wait_all_tasks_blocked()
    reactor.after(1, lambda: reactor.after(1, partial(called.append, "after another")))
    assert called == []
    mock_clock.jump(0.5)
    await wait_all_tasks_blocked()
    assert called == ["1 s"]
    timers[5].cancel()
    timers[1].cancel()
    mock_clock.jump(0.5)
    await wait_all_tasks_blocked()
    mock_clock.jump(10)
    await wait_all_tasks_blocked()
    assert called == ["1 s", "after another"]
    mock_clock.jump(60)
    await wait_all_tasks_blocked()
    assert called == ["1 s", "after another", "60 s"]


async def test_many_timers_at_once_leave_all_other_tasks_their_turn(
    reactor: Reactor, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor_module, "ROUND_NS", 0)
    done: list[str] = []
    for number in range(3):
        reactor.after(10, partial(done.append, str(number)))
    await wait_all_tasks_blocked()
    mock_clock.jump(10)
    while "2" not in done:
        done.append("other")
        await trio.lowlevel.checkpoint()
    assert "other" in done[done.index("0") : done.index("2")]


async def test_soon_callbacks_run_after_the_current_round(reactor: Reactor, pair: MakePair) -> None:
    order: list[str] = []
    wire, far = pair()

    def readable() -> None:
        reactor.soon(partial(order.append, "soon"))
        order.append("over")

    Counting(reactor, wire, also=readable).add_interest(EPOLLIN)
    far.send(b"1")
    await wait_all_tasks_blocked()
    assert order == ["over", "soon"]
    # Outside of any.
    reactor.soon(partial(order.append, "at once"))
    await wait_all_tasks_blocked()
    assert order == ["over", "soon", "at once"]


async def test_one_of_those_that_take_long_is_served_after_all_others(reactor: Reactor, pair: MakePair) -> None:
    order: list[str] = []
    everybody = []
    for name, rank in [*((f"flood {number}", CLIENT) for number in range(3)), ("client", CLIENT), ("broker", BROKER)]:
        wire, far = pair()
        watched = Counting(reactor, wire, also=partial(order.append, name))
        watched.rank = rank
        watched.takes_long = name.startswith("flood")
        watched.add_interest(EPOLLIN)
        everybody.append(far)
    for far in everybody:
        far.send(bytes(250))
    await wait_all_tasks_blocked()
    # Each reads 100 bytes at a time.
    assert order[:3] == ["broker", "client", "flood 0"]
    assert order.index("client", order.index("flood 0")) < order.index("flood 1") < order.index("flood 2")
    assert sorted(order) == sorted(["broker", "client", *(f"flood {number}" for number in range(3))] * 3)


async def test_one_that_counts_as_readable_is_served_while_that_is_wanted(reactor: Reactor, pair: MakePair) -> None:
    wire, _ = pair()
    watched = Counting(reactor, wire)
    for takes_long in (False, True):
        watched.takes_long = takes_long
        watched.told.clear()
        watched.add_interest(EPOLLIN)
        reactor.count_readable(watched)
        await wait_all_tasks_blocked()
        assert watched.told == ["readable"]
        watched.remove_interest(EPOLLIN)
        reactor.count_readable(watched)
        await wait_all_tasks_blocked()
        assert watched.told == ["readable"]
