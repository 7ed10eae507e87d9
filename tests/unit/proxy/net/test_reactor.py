"""One task serves the sockets of all connections, and everybody else has a turn meanwhile."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from select import EPOLLIN, EPOLLOUT

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from proxy.net import reactor as reactor_module
from proxy.net.reactor import Reactor, Watch
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


class Counting:
    """A watch of bytes that counts its calls, and reads what is there unless told otherwise."""

    def __init__(self, reactor: Reactor, wire: Wire, *, reads: bool = True, also: Callable[[], None] = nothing) -> None:
        self.calls = 0
        self._wire = wire
        self._reads = reads
        self._also = also
        self.watch = reactor.watch(wire, self._readable, nothing)

    def _readable(self) -> None:
        self.calls += 1
        if self._reads:
            self._wire.receive_into(memoryview(bytearray(100)))
        self._also()


async def test_calls_for_what_is_wanted_only(reactor: Reactor, pair: MakePair) -> None:
    wire, far = pair()
    counting = Counting(reactor, wire)
    far.send(b"1")
    await wait_all_tasks_blocked()
    assert counting.calls == 0
    counting.watch.want(EPOLLIN)
    await wait_all_tasks_blocked()
    assert counting.calls == 1
    counting.watch.want_no_more(EPOLLIN)
    far.send(b"2")
    await wait_all_tasks_blocked()
    assert counting.calls == 1


async def test_a_socket_that_can_be_written_is_told_once_wanted(reactor: Reactor, pair: MakePair) -> None:
    wire, _ = pair()
    told: list[str] = []

    def writable() -> None:
        told.append("writable")
        watch.want_no_more(EPOLLOUT)

    watch = reactor.watch(wire, nothing, writable)
    watch.want(EPOLLIN)
    watch.want(EPOLLOUT)
    await wait_all_tasks_blocked()
    assert told == ["writable"]
    watch.close()


@pytest.mark.parametrize("event", [EPOLLIN, EPOLLOUT])
async def test_a_reset_is_told_to_who_wants_anything(reactor: Reactor, pair: MakePair, event: int) -> None:
    wire, far = pair()
    told: list[int] = []

    def ready(which: int) -> None:
        told.append(which)
        watch.close()

    watch = reactor.watch(wire, lambda: ready(EPOLLIN), lambda: ready(EPOLLOUT))
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    watch.want(event)
    await wait_all_tasks_blocked()
    assert told == [event]


async def test_a_reset_costs_nothing_while_nothing_is_wanted(reactor: Reactor, pair: MakePair) -> None:
    wire, far = pair()
    counting = Counting(reactor, wire)
    counting.watch.want(EPOLLIN)
    counting.watch.want_no_more(EPOLLIN)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    # It would never return if the reactor were called again and again.
    await wait_all_tasks_blocked()
    assert counting.calls == 0


async def test_who_was_closed_in_the_same_round_is_not_called(reactor: Reactor, pair: MakePair) -> None:
    pairs = [pair() for _ in range(2)]
    watches: list[Counting] = []

    def close_others() -> None:
        for each in watches:
            each.watch.close()

    watches.extend(Counting(reactor, wire, also=close_others) for wire, _ in pairs)
    for each in watches:
        each.watch.want(EPOLLIN)
    for _, far in pairs:
        far.send(b"1")
    await wait_all_tasks_blocked()
    assert sorted(each.calls for each in watches) == [0, 1]


async def test_all_other_tasks_have_their_turn_within_a_round(
    reactor: Reactor, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ns = iter(range(0, 10**12, reactor_module.ROUND_NS // 2))
    monkeypatch.setattr(reactor_module, "perf_counter_ns", lambda: next(clock_ns))
    order: list[str] = []
    pairs = [pair() for _ in range(8)]
    watches = [Counting(reactor, wire, also=lambda: order.append("socket")) for wire, _ in pairs]
    for each in watches:
        each.watch.want(EPOLLIN)
    for _, far in pairs:
        far.send(b"1")
    while order.count("socket") < len(pairs):
        order.append("other")
        await trio.lowlevel.checkpoint()
    served = "".join("s" if each == "socket" else "." for each in order).strip(".")
    # Two in a round; trio may run this test before the reactor in one turn of the loop, and after it in the next.
    assert "s" * 5 not in served


def test_watches_hold_no_descriptor_once_closed(pair: MakePair) -> None:
    reactor = Reactor()
    wire, _ = pair()
    watch: Watch = reactor.watch(wire, nothing, nothing)
    watch.want(EPOLLIN)
    watch.close()
    watch.close()
    assert not reactor._watches
    reactor.close()
