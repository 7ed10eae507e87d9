"""A connection with the rate limiter and a spool on a disk in memory, driven like a real one."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from spool_disk import FakeDisk

from limiter.counting.accounts import Accounts
from limiter.counting.rejections import OUTCOMES, Outcome, RejectionVerdict
from limiter.deciding.limits import Limits
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from playbook.frames import read_header
from playbook.lending import Loan
from playbook.playbook import ADDRESS
from proxy.common.buffers import GatherRoom
from proxy.deciding.batch import Batch, ConnectionInfo, Request, Side, Ticket
from proxy.deciding.counting import Tally
from proxy.deciding.judge import Judge
from proxy.deciding.pipeline import HandlerServices, Pipeline
from proxy.deciding.rate_limit import PLUGIN, RateLimit, RateLimitOptions
from proxy.flow.credit import Stage
from proxy.net.tickets import Tickets
from proxy.protocols.base import SessionContext, WireCounters
from proxy.protocols.rocketmq import PROTOCOL
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.session import RocketMQSession
from proxy.spool.queue import Lost
from proxy.spool.spool import Hooks, Spool, SpoolSettings

NS_PER_S = 1_000_000_000


class Shared:
    """State shared by all connections."""

    def __init__(self, *rules: Rule, options: RateLimitOptions | None = None, **settings: float) -> None:
        self.now_ns = 1_000 * NS_PER_S
        self.accounts = Accounts()
        self.limits = Limits(RuleSet(rules), accounts=self.accounts)
        self.handler = PLUGIN.build(options or RateLimitOptions(), HandlerServices(self.limits, lambda: self.now_ns))
        self.tally = Tally(self.accounts)
        self.connections: list[Connection] = []
        self.room = GatherRoom()
        self.open_spool(**settings)

    def open_spool(self, **settings: Any) -> None:
        nobody: Callable[..., None] = lambda *_: None  # noqa: E731
        wanted = SpoolSettings(**({"memory_bytes": 1 << 20} | settings))
        self.disk = FakeDisk()
        self.spool = Spool(wanted, Hooks(nobody, nobody, nobody), self.disk, now_ns=self.now_ns)

    def settle(self) -> None:
        """Do all work that is due."""
        while True:
            self.disk.finish_all()
            woken = [connection for connection in self.connections if connection.woken]
            due_ns = self.limits.holding.next_due_ns()
            if not woken and (due_ns is None or due_ns > self.now_ns):
                return
            for connection in woken:
                connection.tick()
            self.limits.holding.release(self.now_ns)

    def pass_s(self, seconds: float) -> None:
        """Let time pass with all due work."""
        end_ns = self.now_ns + round(seconds * NS_PER_S)
        self.settle()
        while True:
            dues = [self.limits.holding.next_due_ns(), *(each.session.next_tick_ns() for each in self.connections)]
            due_ns = min([due_ns for due_ns in dues if due_ns is not None], default=None)
            if due_ns is None or due_ns > end_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            self.spool.tick(self.now_ns)
            for connection in self.connections:
                tick_ns = connection.session.next_tick_ns()
                connection.woken |= tick_ns is not None and tick_ns <= self.now_ns
            self.settle()
        self.now_ns = end_ns
        self.spool.tick(end_ns)
        self.settle()

    def count(self, what: Outcome, dimension: int = 0) -> int:
        """Return the number of requests, or messages (1), with an outcome."""
        return sum(amounts[OUTCOMES.index(what)][dimension] for _, amounts in filter(None, self.accounts.each()))

    def outcome(self, what: RejectionVerdict, rule: str) -> int:
        """Return the number of requests with an action of a rule."""
        return self.accounts.rules.get(rule, {}).get(what, (0, 0))[0]


class Connection:
    def __init__(
        self,
        shared: Shared,
        number: int = 1,
        *,
        on_trial: bool = True,
        lends: bool = False,
        listener: str = "main",
        **options: Any,
    ) -> None:
        self.shared = shared
        self.woken = False
        self.given = dict.fromkeys(Side, b"")
        self.slow = False
        self.writes_watched = False
        self.lost = 0
        self.stage, self.writer = Stage("connection"), Stage("writer")
        info = ConnectionInfo(number, listener, listener, f"{ADDRESS}:40000", ADDRESS, spools=True)
        self.tickets = Tickets(shared.tally, lambda: shared.now_ns, shared.tally.sender(ADDRESS))
        counters, resources = WireCounters(), shared.limits.resources
        context = SessionContext(
            info,
            counters,
            self._wake,
            False,
            lambda _: False,
            RocketMQOptions(**options),
            give_up=self.tickets.give_up,
            pass_on=self.tickets.pass_on,
            lose=self._lose,
            room=shared.room,
            hub=PROTOCOL.open_hub(),
            resources=resources,
            spool=shared.spool,
            stage=self.stage,
            writer=self.writer,
            watch_writes=self._on_frame,
        )
        session = PROTOCOL.open_session(context)
        assert isinstance(session, RocketMQSession)
        self.session = session
        self._loan = None
        if lends and resources is not None and isinstance(shared.handler, RateLimit):
            pipeline = Pipeline([], HandlerServices(shared.limits, lambda: shared.now_ns))
            judge = Judge(pipeline, shared.handler, shared.tally, resources, info, self.tickets.sender)
            self._loan = Loan(session, judge, counters, context.signals, self._give)
        if not on_trial:
            session._requests._trial = 0
        shared.connections.append(self)

    def _wake(self) -> None:
        self.woken = True

    def _on_frame(self, on: bool) -> None:  # noqa: FBT001
        self.writes_watched = on

    def _lose(self, requests: Sequence[Request]) -> None:
        self.lost += len(requests)
        self.tickets.lose(requests)

    def client(self, data: bytes) -> None:
        """Receive a chunk, which is decided at once."""
        if self._loan is not None:
            now_ns = self.shared.now_ns
            data = self._loan.read(Side.CLIENT, data, now_ns, self.shared.accounts.at(now_ns))
        chunk = bytearray(data)
        left = len(chunk)
        while left:
            batch = self.session.receive(Side.CLIENT, memoryview(chunk)[-left:], self.shared.now_ns)
            if batch is not None:
                self.decide(batch)
            self.write()
            left = self.session.left_bytes(Side.CLIENT)
        chunk[:] = b"\xee" * len(chunk)
        self.shared.settle()

    def _give(self, side: Side, data: bytes) -> None:
        self.given[side] += data

    def broker(self, data: bytes) -> None:
        self.session.receive(Side.BROKER, memoryview(data), self.shared.now_ns)
        self.write()

    def decide(self, batch: Batch) -> None:
        shared = self.shared
        batch.add_verdicts(shared.handler.on_requests(batch, shared.now_ns))  # type: ignore[arg-type] # not awaited
        shared.tally.count(batch, shared.now_ns, self.tickets.sender)
        tickets = self.tickets.take(batch) if batch.verdicts else {}
        self.session.decided(batch, shared.now_ns)
        for ticket, request in tickets.items():
            ticket.attach(partial(self._resolved, request))

    def _resolved(self, request: Request, ticket: Ticket) -> None:
        if self.tickets.claim(request):
            refuse = None if request.refusal == "impossible" else ticket.refuse
            self.shared.tally.resolved(request, refuse, self.shared.now_ns, self.tickets.sender)
            self.session.resolved(request, refuse, self.shared.now_ns)
            self.write()

    def tick(self) -> None:
        """Call the session, which was woken."""
        self.woken = False
        batch = self.session.tick(self.shared.now_ns)
        if batch is not None:
            self.decide(batch)
        self.write()

    def write(self) -> None:
        """Write the output for both peers."""
        for side in Side:
            if side is Side.BROKER and self.slow:
                continue
            taken = b"".join(self.session.take(side))
            self.given[side] += taken
            if taken and self.writes_watched:
                self.session.written(side, self.shared.now_ns)

    def gone(self) -> bool:
        """End the client's stream. Return whether something is kept."""
        keeps = self.session.has_undelivered(Side.CLIENT)
        if keeps:
            self.tickets.drop(Side.CLIENT, refusable=True)
        else:
            self.tickets.drop(Side.CLIENT)
            self.session.end(Side.CLIENT, self.shared.now_ns)
        self.write()
        self.shared.settle()
        return keeps

    def lose(self, count: int) -> None:
        """Damage this many entries at the head of its only line on disk."""
        assert self.session._lines is not None
        (line,) = self.session._lines._lines.values()
        entries = [line.queue.pop() for _ in range(count)]
        handles = tuple(entry.handle for entry in entries if entry.is_refusable)
        assert line.queue.on_lost is not None
        line.queue.on_lost(Lost(line.queue, count, handles, "damaged"))
        self.shared.settle()

    def close(self) -> None:
        self.tickets.drop()
        self.session.close()
        self.shared.connections.remove(self)

    @property
    def sent(self) -> list[int]:
        """The opaques sent to the broker, in order."""
        return [_number(header["opaque"]) for header in headers(self.given[Side.BROKER])]

    @property
    def refused(self) -> list[int]:
        """The opaques of refusals to the client, in order."""
        return [_number(header["opaque"]) for header in headers(self.given[Side.CLIENT]) if header["code"] == 2]


def frames_of(stream: bytes) -> Iterator[bytes]:
    """Split a stream into its frames. The last may be incomplete."""
    while stream:
        end = 4 + int.from_bytes(stream[:4])
        yield stream[:end]
        stream = stream[end:]


def headers(stream: bytes) -> list[dict[str, object]]:
    """Return the headers of a stream of complete frames."""
    return [read_header(each) for each in frames_of(stream)]


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
