"""A connection between two scripted peers, in random schedules.

Whatever comes in whatever order: each byte is relayed once and in order, none after the end; nothing hangs; every
buffer is given back, and every ticket is resolved or dropped. The driver's promises to sessions are checked on the way.
No socket, no clock and no task is real, so that there is time for many schedules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from random import Random
from select import EPOLLIN, EPOLLOUT
from typing import Any

import pytest

from limiter.counting.seconds import NOBODY, Sender
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, ConnectionInfo, Hold, Refuse, Request, Side, Ticket, Verdict
from proxy.flow.credit import DEFAULT_CREDIT, Stage
from proxy.net import connection as connection_module
from proxy.net.connection import LOOK_S, NEXT, Connection, Doing, EndedStages, Peer
from proxy.net.limit_commands import LimitCommands
from proxy.net.reactor import Timer, Watched
from proxy.protocols.base import NO_BOUND, Buffer, Close, Session
from proxy.stats.timing import Timings

INFO = ConnectionInfo(1, "main", "main", "192.0.2.1:40000", "192.0.2.1")
RESOURCE = Resource("line_topic", "a")
REFUSE = Refuse(RESOURCE, "rule", 7)
PLENTY = 1 << 30
#: What the client's bytes ask for, by their value modulo this; the rest is relayed.
KINDS = 8
REFUSED, HELD, UNFINISHED = 0, 1, 2
CLOSES, FAULTY = 250, 251
#: Schedules that are tried in one go.
SOME = 5_000
ORDERLY = {"client_closed", "broker_closed", "enough", "drained"}


class Cancelled(BaseException):
    """Ends a task."""


class Pause:
    """What a task waits for, until the schedule goes on with it."""

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class Task:
    """Runs a coroutine step by step, when the schedule says so."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], failed: Callable[[Exception], None]) -> None:
        self._coroutine = coroutine
        self._failed = failed
        self._cancelled = False
        self._began = self._woken = False

    def cancel(self) -> None:
        self._cancelled = True

    def go_on(self) -> bool:
        """Go on for one step; returns whether it is over.

        Who is cancelled between what wakes it and its turn does not notice, as with trio.
        """
        try:
            if self._cancelled and self._began and not self._woken:
                self._coroutine.throw(Cancelled())
            elif self._began and not self._woken:
                self._woken = True
            else:
                self._began, self._woken = True, False
                self._coroutine.send(None)
        except (StopIteration, Cancelled):
            return True
        except Exception as error:  # noqa: BLE001 - as Connection does
            self._failed(error)
            return True
        return False


class Poll:
    """Stands in for the epoll: it need not be told, since the schedule looks at what is wanted."""

    def register(self, fd: int, events: int) -> None: ...

    def modify(self, fd: int, events: int) -> None: ...

    def unregister(self, fd: int) -> None: ...


class ModelReactor:
    """The reactor, of which every step is the schedule's."""

    def __init__(self) -> None:
        self.epolls = (Poll(),) * 3
        self.watched: dict[int, Watched] = {}
        self.timers: Any = {}
        self.now_s = 0.0
        self._soon: list[Callable[[], None]] = []
        self._unread: set[int] = set()

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        return Timer(self.now_s + delay_s, call, self.timers)

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def unread(self, fd: int, *, unread: bool) -> None:
        """Have a wire served that has read ahead, as the real one does: the epoll does not know of that."""
        (self._unread.add if unread else self._unread.discard)(fd)
        if unread:
            self.read_on(fd)

    def read_on(self, fd: int) -> None:
        self.soon(partial(self._read_on, fd))

    def _read_on(self, fd: int) -> None:
        watched = self.watched.get(fd)
        if watched is not None and watched.events & EPOLLIN and fd in self._unread:
            try:
                watched.readable()
            except Exception as error:  # noqa: BLE001 - as the reactor does
                watched.failed(error)

    def do_soon(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in [timer for timer in self.timers if timer.due_s <= self.now_s]:
            timer.cancel()
            timer.call()
        self.do_soon()


class Pool:
    """Lends buffers, and spoils what is given back at once."""

    def __init__(self, random: Random) -> None:
        self.lent: list[memoryview] = []
        self._random = random

    def borrow(self, *, large: bool = False) -> memoryview:
        self.lent.append(memoryview(bytearray(self._random.choice((2, 8, 32)) * (1 + large))))
        return self.lent[-1]

    def give_back(self, buffer: memoryview) -> None:
        (at,) = (at for at, lent in enumerate(self.lent) if lent is buffer)
        self.lent.pop(at)[:] = b"\xff" * len(buffer)


class ModelWire:
    """A socket in the hands of the schedule: what its receive window has no room for waits in the peer's kernel.

    That forgets it if anything is written once the peer has left.
    """

    WINDOW_BYTES = 16
    MAX_AHEAD_BYTES = 64

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.incoming, self._behind, self.ahead = bytearray(), bytearray(), bytearray()
        self.has_ended = self.is_broken = self.has_left = self.ended = False
        self.is_full = False
        self._reactor: ModelReactor
        self.destroyed_bytes = 0
        self.is_paused: Callable[[], bool] = lambda: False
        self.room = 0
        self.written = bytearray()
        self.end_sent = False

    def reset(self) -> None:
        """Have the peer's kernel forget all that has not come."""
        self.destroyed_bytes += len(self._behind)
        self._behind.clear()
        self.is_broken = True

    def take(self, data: bytes) -> None:
        """Take what the peer sends."""
        self._behind += data
        self.arrive()

    def arrive(self) -> bool:
        """Have the window filled; returns whether anything has come."""
        count = min(len(self._behind), max(0, self.WINDOW_BYTES - len(self.incoming)))
        self.incoming += self._behind[:count]
        del self._behind[:count]
        return count > 0

    def read_ahead(self, of_all: object, reactor: ModelReactor, *, a_little: bool = False) -> int | None:
        count = len(self.incoming)
        if self.is_full or (self.ended and not count):
            return None
        self.ahead += self.incoming
        self.incoming.clear()
        self.is_full = len(self.ahead) > self.MAX_AHEAD_BYTES
        self._reactor = reactor
        if count:
            reactor.unread(self._fd, unread=True)
        if not count and (self.is_broken or (self.has_ended and not self._behind)):
            self.ended = True
            if self.is_broken:
                raise ConnectionResetError(104, "Connection reset by peer")
            return None
        return count

    def fileno(self) -> int:
        return self._fd

    @property
    def ready(self) -> int:
        if self.is_broken:
            return EPOLLIN | EPOLLOUT
        readable = self.incoming or (self.has_ended and not self._behind)
        return (EPOLLIN if readable else 0) | (EPOLLOUT if self.room else 0)

    def unread_bytes(self) -> int:
        return len(self.ahead) + len(self.incoming)

    def receive_into(self, buffer: memoryview) -> int | None:
        source = self.ahead or self.incoming
        if not source:
            if self.is_broken:
                raise ConnectionResetError(104, "Connection reset by peer")
            return 0 if self.has_ended and not self._behind else None
        count = min(len(buffer), len(source))
        buffer[:count] = source[:count]
        del source[:count]
        if source is self.ahead:
            self.is_full = self.is_full and bool(source)
            self._reactor.unread(self._fd, unread=bool(source))
        return count

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        assert not self.end_sent, "written after the end"
        if self.is_broken:
            raise BrokenPipeError(32, "Broken pipe")
        if self.has_left:
            paused = self.incoming and self.is_paused()
            assert not (paused and self._behind) or self.is_full, "written to a client that had left"
            self.reset()
            return ()
        for first, buffer in enumerate(buffers):
            sent = min(len(buffer), self.room)
            self.written += buffer[:sent]
            self.room -= sent
            if sent < len(buffer):
                return [memoryview(buffer)[sent:], *buffers[first + 1 :]]
        return ()

    def end(self) -> None:
        if self.is_broken:
            raise BrokenPipeError(32, "Broken pipe")
        assert not self.end_sent
        self.end_sent = True


class ModelSession(Session):
    """Relays bytes; those of the client may be refused, held, the beginning of a frame, a Close or a fault."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._out: dict[Side, list[Buffer]] = {side: [] for side in Side}
        self._partial = self._again = b""
        self._left = dict.fromkeys(Side, 0)
        self.undecided: set[Side] = set()
        self._ended: set[Side] = set()
        self._turns = random.random() < 0.2
        self.closed = False
        self.held = 0
        #: All that was ever queued, and received.
        self.queued = {side: bytearray() for side in Side}
        self.received = {side: bytearray() for side in Side}

    def _queue(self, side: Side, data: Buffer) -> None:
        assert not self.closed
        self._out[side].append(data)
        self.queued[side] += data

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        assert chunk
        assert not self.closed
        assert side not in self._ended
        assert side not in self.undecided
        assert self._left[side] or not self.paused(side)
        again, self._again = (self._again, b"") if side is Side.CLIENT else (b"", self._again)
        assert chunk[: len(again)] == again
        looked_at = len(chunk)
        if looked_at > len(again) + 1 and self._random.random() < 0.3:
            looked_at = self._random.randrange(len(again) + 1, looked_at)
        self._left[side] = len(chunk) - looked_at
        chunk = chunk[:looked_at]
        self.received[side] += chunk[len(again) :]
        if side is Side.BROKER:
            self._queue(Side.CLIENT, chunk)
            return self._batch(side, [], [Charge((RESOURCE,), 1)]) if self._random.random() < 0.3 else None
        if CLOSES in chunk:
            raise Close("enough", "the model says so")
        if FAULTY in chunk:
            raise ZeroDivisionError
        handles: list[Buffer] = [self._partial] if self._partial else []
        self._partial = bytes(chunk[-1:]) if chunk[-1] % KINDS == UNFINISHED else b""
        handles += [chunk[at : at + 1] for at in range(len(chunk) - len(self._partial))]
        requests = [Request((RESOURCE,), 1, 1, "", "answered", None, handle) for handle in handles]
        return self._batch(side, requests) if requests else None

    def _batch(self, side: Side, requests: list[Request], charges: Sequence[Charge] = ()) -> Batch:
        self.undecided.add(side)
        return Batch(INFO, side, requests, charges)

    def decided(self, batch: Batch, now_ns: int) -> None:
        self.undecided.remove(batch.side)
        for index, request in enumerate(batch.requests):
            verdict = batch.verdicts.get(index)
            if isinstance(verdict, Hold):
                self.held += 1
                request.handle = bytes(request.handle)  # type: ignore[call-overload]  # it is bytes
            else:
                self._go_on(request, verdict)

    def _go_on(self, request: Request, verdict: Verdict | None) -> None:
        assert isinstance(request.handle, bytes | memoryview)
        if verdict is None:
            self._queue(Side.BROKER, request.handle)
        else:
            self._queue(Side.CLIENT, b"refused " + bytes(request.handle))

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        assert isinstance(request.handle, bytes)
        assert Side.CLIENT not in self._ended
        self.held -= 1
        self._go_on(request, refuse)

    def end(self, side: Side, now_ns: int) -> None:
        assert not self.closed
        assert side not in self._ended | self.undecided
        assert not self._left[side]
        self._ended.add(side)
        if side is Side.CLIENT:
            self.held = 0
            self._queue(Side.BROKER, self._partial)

    def close(self) -> None:
        assert not self.closed
        self.closed = True

    def take(self, side: Side) -> Sequence[Buffer]:
        out, self._out[side] = self._out[side], []
        return out

    def backlog_bytes(self, side: Side) -> int:
        return 0

    def paused(self, side: Side) -> bool:
        return side is Side.CLIENT and self.held > 2

    def in_flight(self) -> int:
        return self.held

    def between_frames(self, side: Side) -> bool:
        return not self._left[side] and (side is Side.BROKER or not self._partial)

    def left_bytes(self, side: Side) -> int:
        return self._left[side]

    def held_back(self, side: Side) -> int:
        return len(self._partial) if side is Side.CLIENT else 0

    def take_back(self, side: Side) -> bytes:
        self._again, self._partial = self._partial, b""
        return self._again

    def most_bytes(self, side: Side) -> int:
        return self._random.choice((1, 3, NO_BOUND))

    def takes_turns(self, side: Side) -> bool:
        return self._turns and self._random.random() < 0.5


class ModelPipeline:
    """Decides by the byte, sometimes later; and holds."""

    wants_responses = False

    def __init__(self, random: Random) -> None:
        self._random = random
        self.open: list[Ticket] = []

    def decide_now(self, batch: Batch) -> Coroutine[Any, Any, None] | None:
        if self.open and self._random.random() < 0.2:
            self.resolve_one()
        # Looked at now: when the connection is over, its buffer is another's.
        kinds = [request.handle[0] % KINDS for request in batch.requests]  # type: ignore[index]  # they are buffers
        if self._random.random() < 0.3:
            return self._later(batch, kinds)
        self._decide(batch, kinds)
        return None

    async def _later(self, batch: Batch, kinds: list[int]) -> None:
        await Pause()
        self._decide(batch, kinds)

    def _decide(self, batch: Batch, kinds: list[int]) -> None:
        verdicts: dict[int, Verdict] = {}
        for index, kind in enumerate(kinds):
            if kind == REFUSED:
                verdicts[index] = REFUSE
            elif kind == HELD:
                ticket = Ticket(lambda: None)
                self.open.append(ticket)
                verdicts[index] = Hold(RESOURCE, "rule", ticket)
        batch.add_verdicts(verdicts)

    def resolve_one(self) -> None:
        ticket = self.open.pop(self._random.randrange(len(self.open)))
        if not ticket.dropped:
            ticket.resolve(self._random.choice((None, REFUSE)))


class ModelTally:
    """Counts nothing."""

    def sender(self, *_: Any) -> Sender:
        return NOBODY

    def count(self, *_: Any) -> None: ...

    def resolved(self, *_: Any) -> None: ...

    def dropped(self, *_: Any) -> None: ...


class ModelServices:
    """What a connection needs, as ``Services``."""

    timings = Timings()
    tally = ModelTally()
    credit = DEFAULT_CREDIT

    def __init__(self, random: Random) -> None:
        self.reactor = ModelReactor()
        self.pipeline = ModelPipeline(random)
        self.buffers = Pool(random)
        self.bytes_read = dict.fromkeys(Side, 0)
        self.commands = LimitCommands()
        self.ended = EndedStages()
        self.decoding, self.limiter = Stage("channel"), Stage("resource")
        self.ahead = self.spool = None
        self.faults: list[Exception] = []

    def now_ns(self) -> int:
        return round(self.reactor.now_s * 1e9)

    def log_failed(self, info: ConnectionInfo, error: Exception) -> None:
        self.faults.append(error)

    def count_lost(self, *_: Any) -> None: ...


class ModelPeer(Peer):
    """Keeps to the table of what may come next."""

    _doing = Doing.READING

    @property
    def doing(self) -> Doing:  # type: ignore[override]  # looked on
        return self._doing

    @doing.setter
    def doing(self, next_one: Doing) -> None:
        assert next_one is self._doing or next_one in NEXT[self._doing], f"{next_one} after {self._doing}"
        self._doing = next_one


class ModelConnection(Connection):
    """A connection whose tasks are the schedule's."""

    tasks: list[Task]

    def _part(self, reason: str, detail: str) -> None:
        assert reason != "drained" or not self.session.undecided  # type: ignore[attr-defined]  # it is the model's
        super()._part(reason, detail)

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        made = Task(task(*args), self.failed)  # type: ignore[arg-type]  # they are coroutines
        self.tasks.append(made)
        self._scopes.add(made)  # type: ignore[arg-type]  # it can be cancelled
        if self.over:
            made.cancel()


class Schedule:
    """One connection, and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.services = ModelServices(random)
        self.session = ModelSession(random)
        self.wires = {side: ModelWire(fd) for fd, side in enumerate(Side)}
        self.sent = {side: bytearray() for side in Side}
        self.ends: list[str] = []
        self.disturbed = False
        # Few schedules have a Close or a fault in them, so that the others come far.
        self._bytes = [*range(250), *random.choice(((), (), (), (CLOSES,) * 5, (FAULTY,) * 5))]
        self.connection = ModelConnection(
            *(INFO, self.wires[Side.CLIENT], self.wires[Side.BROKER], self.services),  # type: ignore[arg-type]
            lambda _: self.session,
            broker_left=self._broker_left,
            on_over=self._over,
            half_closes=random.random() < 0.5,
        )
        self.wires[Side.CLIENT].is_paused = self.is_paused
        self.connection.tasks = []
        self.connection.start()

    async def _broker_left(self) -> None:
        await Pause()

    def _over(self, reason: str, detail: str) -> None:
        self.ends.append(reason)
        client = self.wires[Side.CLIENT]
        broker = self.wires[Side.BROKER]
        if reason == "client_error" and not broker.is_broken and not broker.has_ended:
            assert not client.incoming, "what came before the reset was not read"
            assert not client.ahead
        if reason in ORDERLY and not self.disturbed:
            for side, wire in self.wires.items():
                assert wire.end_sent, f"the {side.value} was not sent the end"

    def send(self, side: Side) -> None:
        wire = self.wires[side]
        if not wire.has_ended and not wire.is_broken:
            data = bytes(self.random.choices(self._bytes, k=self.random.randrange(1, 40)))
            wire.take(data)
            self.sent[side] += data

    def end(self, side: Side) -> None:
        self.wires[side].has_ended = True

    def leave(self) -> None:
        """Have the client's process end; what its kernel has is still sent."""
        client = self.wires[Side.CLIENT]
        if not client.has_ended and not self.connection.over and not self.connection.peers[Side.CLIENT].busy:
            client.has_ended = client.has_left = self.disturbed = True

    def is_paused(self) -> bool:
        """Say whether the client's session does not want it read, though its kernel may hold more."""
        connection = self.connection
        if connection.over or connection.parting is not None or connection.draining:
            return False
        client = connection.peers[Side.CLIENT]
        return connection.session.paused(Side.CLIENT) and (client._large or not client.events & EPOLLIN)

    def reset(self, side: Side) -> None:
        self.disturbed = True
        self.wires[side].reset()

    def give_room(self, side: Side) -> None:
        self.wires[side].room += self.random.randrange(1, 30)

    def serve(self, side: Side) -> bool:
        """Serve one socket as the reactor does; returns whether anything was to be done."""
        watched = self.services.reactor.watched.get(self.wires[side].fileno())
        ready = self.wires[side].ready & watched.events if watched is not None else 0
        if watched is None or not ready:
            return False
        try:
            if ready & EPOLLOUT:
                watched.writable()
            if ready & watched.events & EPOLLIN:
                watched.readable()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            watched.failed(error)
        self.services.reactor.do_soon()
        return True

    def run_task(self) -> bool:
        tasks = self.connection.tasks
        if not tasks:
            return False
        task = self.random.choice(tasks)
        if task.go_on():
            tasks.remove(task)
            self.connection._scopes.discard(task)  # type: ignore[arg-type]  # see ModelConnection
        self.services.reactor.do_soon()
        return True

    def resolve(self) -> bool:
        if not self.services.pipeline.open or self.connection.over:
            return False
        self.services.pipeline.resolve_one()
        self.services.reactor.do_soon()
        return True

    def drain(self) -> None:
        if not self.connection.over:
            self.connection.drain()
            self.services.reactor.do_soon()

    def finish(self) -> None:
        self.disturbed = True
        if not self.connection.over:
            self.connection.finish("closed_by_operator", "the model says so")
            self.services.reactor.do_soon()

    def pass_time(self) -> None:
        self.disturbed |= bool(self.services.reactor.timers)
        # Peers are nearer than that.
        while self.wires[Side.CLIENT].arrive() and self.serve(Side.CLIENT):
            pass
        self.services.reactor.pass_time(self.random.choice((0.5, 1, 60)))

    def step(self) -> None:
        """Let one thing happen."""
        chosen = self.random.random()
        side = self.random.choice(tuple(Side))
        self._step(chosen, side)
        self.check()

    def _step(self, chosen: float, side: Side) -> None:
        if chosen < 0.2:
            self.send(side)
        elif chosen < 0.35:
            self.give_room(side)
        elif chosen < 0.7:
            self.serve(side)
        elif chosen < 0.85:
            self.run_task()
        elif chosen < 0.92:
            self.resolve()
        else:
            seldom = self.random.randrange(200)
            if seldom < 60:
                self.end(side)
            elif seldom < 64:
                self.reset(side)
            elif seldom < 74:
                self.drain()
            elif seldom < 90:
                self.finish()
            elif seldom < 94:
                self.pass_time()
            elif seldom < 110:
                self.leave()
            else:
                self.wires[side].arrive()

    def settle(self) -> None:
        """Let everything happen that can, with peers that read and handlers that answer."""
        for wire in self.wires.values():
            wire.room = PLENTY
        for _ in range(1000):
            arrived = [wire.arrive() for wire in self.wires.values()]
            if not any([*arrived, *map(self.serve, Side), self.run_task(), self.resolve(), self.look()]):
                return
        pytest.fail("something goes on for ever")

    def look(self) -> bool:
        """Let the time pass for which a write waits; what the client has left comes sooner."""
        connection = self.connection
        if connection.over or connection.peers[Side.CLIENT]._look is None:
            return False
        self.services.reactor.pass_time(LOOK_S)
        return True

    def check(self) -> None:
        """Check what holds at any time."""
        for side, wire in self.wires.items():
            written, queued = wire.written, self.session.queued[side]
            assert queued.startswith(written), f"not what was queued for the {side.value}: {written!r} of {queued!r}"
            received = self.session.received[side]
            assert self.sent[side].startswith(received)
        connection = self.connection
        if not connection.over:
            # Who is parted from may wait for nothing any more while its writer is busy.
            stalls = connection.peers[Side.CLIENT].doing in {Doing.WRITING, Doing.TURN, Doing.DECIDING}
            assert connection.stage.out_of_credit == stalls

    def run(self) -> None:
        for _ in range(self.random.randrange(5, 80)):
            self.step()
        if self.random.random() < 0.5:
            # Both have said all that they have to say, and do not read on at once.
            for side in Side:
                self.end(side)
            for _ in range(30):
                self.random.choice((partial(self.serve, self.random.choice(tuple(Side))), self.run_task))()
        self.settle()
        self.check()
        connection, services = self.connection, self.services
        if connection.parting is None and not connection.draining:
            for side, wire in self.wires.items():
                assert not wire.incoming, f"the {side.value} is not read any more"
                sent = self.sent[side]
                assert self.session.received[side] == sent[: len(sent) - wire.destroyed_bytes]
                other = self.wires[side.other]
                ended = wire.has_ended or other.end_sent or other.has_left or other.is_broken
                assert ended or other.written == self.session.queued[side.other]
        for side in Side:
            self.end(side)
        self.settle()
        self.check()
        assert len(self.ends) == 1, f"it hangs: {[peer.doing for peer in connection.peers.values()]}"
        assert self.session.closed
        assert not services.buffers.lent
        assert not services.reactor.timers
        assert not services.reactor.watched
        assert all(ticket.dropped for ticket in services.pipeline.open), "nobody waits for a ticket that is not dropped"
        assert all(isinstance(fault, ZeroDivisionError) for fault in services.faults), services.faults


def run(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    async def turn() -> None:
        await Pause()

    monkeypatch.setattr(connection_module, "connection_turn", turn)
    monkeypatch.setattr(connection_module, "Peer", ModelPeer)
    for seed in seeds:
        try:
            Schedule(seed).run()
        except Exception as error:
            error.add_note(f"in schedule {seed}")
            raise


# In parts, since several run at once.
@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.long] * (first > SOME)) for first in range(0, 100_000, SOME)],
)
def test_holds_in_any_schedule(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run(range(first, first + SOME), monkeypatch)
