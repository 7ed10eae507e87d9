"""The spooled requests of one connection.

Requests with the same resources and producer group form a line, which has a queue in the spool. The requests at the
front of a line are decided a few at a time. Each of these has a state::

    WAITING → ASKED → GRANTED   forwarded after all earlier requests, when its content is in memory
      ↑  ↑      ↓  ↘     ↑
      |  └──── HELD → REFUSED   answered immediately and forgotten
      └──────────┘              after Later, or if the ticket of a oneway request was refused or dropped

- A HELD request waits for its ticket. With ``spool = true``, only the first request of a line is HELD, and the others
  return to WAITING. New requests for an existing line are queued without a decision.
- A batch contains up to MAX_OF_LINE requests of a line, depending on how many passed the last time. A request that is
  large or decided alone stays in the queue until it may be forwarded.
- A spooled oneway request is never refused, because its sender assumes that it was delivered. It keeps waiting after
  its client has left. When it becomes too old, it is forwarded without a decision.
- Each queue of oneway requests that an earlier process left behind has a separate line. If the client leaves, another
  connection continues with the queue.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal

import msgspec

from limiter.rules.resource import Resource
from proxy.deciding.batch import (
    LATER,
    Batch,
    Charge,
    Hold,
    Later,
    Refusal,
    Refuse,
    Request,
    Side,
    Verdict,
)
from proxy.flow.credit import Stage, credit_for
from proxy.protocols.base import SessionContext
from proxy.protocols.rocketmq.refusals import LOST, PURGED, TOO_OLD, no_room, spool_failure
from proxy.protocols.rocketmq.replayed import mark_replayed
from proxy.protocols.rocketmq.transactions import Ended
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.header import Header
from proxy.spool.queue import Ending, Lost, Queue
from proxy.spool.segments import Entry, Piece
from proxy.spool.spool import QueueName, Spool

MAX_OF_LINE: Final = 64
MAX_ASKED: Final = 256
_SMALL_BYTES: Final = 4096
# How long to wait after a Later before the first request of a line is decided again.
_AGAIN_NS: Final = 10_000_000
_MAX_PURGED: Final = 4096

_ONEWAY: Final = codes.FLAG_ONEWAY
# Commits are not replayed: a new process does not know their half messages.
_REPLAYED: Final = frozenset({codes.KIND_TOPIC, codes.KIND_RETRY_GROUP})
_NUMBER: Final = 0xFFFF_FFFF
_CODE: Final = 0x7FFF_FFFF
_HALF: Final = 1 << 63
_NS: Final = 1_000_000_000

Key = tuple[tuple[Resource, ...], str] | int
"""Resources and producer group, or the number of a queue that an earlier process left behind."""
State = Literal["waiting", "asked", "held", "granted", "refused"]
_WAITING: Final = "waiting"
_ASKED: Final = "asked"
_HELD: Final = "held"
_GRANTED: Final = "granted"
_REFUSED: Final = "refused"


class Line:
    queue: Queue

    def __init__(
        self, key: Key, resources: tuple[Resource, ...], group: str, stage: Stage, *, replays: bool = False
    ) -> None:
        self.key = key
        self.resources = resources
        self.group = group
        self.kind = resources[0].kind
        self.stage = stage
        self.replays = replays
        self.front: deque[SpooledRequest] = deque()
        self.most = 1  # maximum number of requests to decide together
        self.oneways = self._serial = 0
        self.purged = self.purged_oneways = 0  # how many requests at the head of the queue to drop
        self.ended: dict[int, Ended] = {}
        self.closed = False

    @property
    def count(self) -> int:
        return self.queue.count + sum(not spooled.is_in_queue for spooled in self.front)

    def handle_of(self, header: Header, ended: Ended | None) -> int:
        upper = header.code & _CODE
        if self.kind == codes.KIND_TRANSACTION:
            upper = 0
            if ended is not None:
                self._serial = upper = self._serial % _CODE + 1
                self.ended[upper] = ended
        return (_HALF if header.half is not None else 0) | upper << 32 | header.opaque & _NUMBER

    def take_ended(self, handle: int) -> Ended | None:
        return self.ended.pop(handle >> 32 & _CODE, None) if self.ended else None


class SpooledRequest(msgspec.Struct, eq=False):
    line: Line
    handle: int
    messages: int
    size_bytes: int
    since_ns: int
    oneway: bool
    content: Sequence[Piece] | None = None
    state: State = _WAITING
    request: Request | None = None
    lost: bool = False  # damaged on disk and already answered
    ending: Ending | None = None

    @property
    def is_in_queue(self) -> bool:
        return self.content is None

    @property
    def opaque(self) -> int:
        return opaque_of(self.handle)

    @property
    def code(self) -> int:
        if self.line.kind == codes.KIND_TRANSACTION:
            return codes.RequestCode.END_TRANSACTION.value
        return self.handle >> 32 & _CODE

    @property
    def is_half(self) -> bool:
        return self.handle & _HALF != 0


def opaque_of(handle: int) -> int:
    number = handle & _NUMBER
    return number - (1 << 32) if number >> 31 else number


class Lines:
    """Manages a connection's lines.

    ``refuse`` takes a request's kind, its opaque and the refusal. It is never called for oneway requests.
    """

    def __init__(
        self,
        context: SessionContext,
        spool: Spool,
        *,
        on_forward: Callable[[SpooledRequest, Sequence[Piece]], None],
        refuse: Callable[[str, int, Refuse], None],
        undo: Callable[[Ended], None],
    ) -> None:
        self.again_ns: int | None = None
        self.old_ns: int | None = None  # when the next oneway request becomes too old
        self._max_age_ns = round(spool.settings.max_age_s * _NS)
        self._context = context
        self._spool = spool
        self._on_forward = on_forward
        self._refuse = refuse
        self._undo = undo
        self._lines: dict[Key, Line] = {}
        self._replaying = 0
        # Lines that have requests to decide, or whose content has just been read from disk.
        self._askable: dict[Line, None] = {}
        self._starved: dict[Line, None] = {}
        self._unwritten: dict[Line, int] = {}
        self._batch: Batch | None = None
        self._now_ns = 0
        self._client_gone = False
        self._lost: list[tuple[Line, Lost]] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def due_ns(self) -> int | None:
        if self.again_ns is None or self.old_ns is None:
            return self.old_ns if self.again_ns is None else self.again_ns
        return min(self.again_ns, self.old_ns)

    @property
    def count(self) -> int:
        return sum(line.count for line in self._lines.values() if not line.replays) if self._lines else 0

    @property
    def store(self) -> Stage:
        return self._spool.store

    def is_full(self) -> bool:
        """Return whether to stop reading from the client until the spool wakes the session."""
        return len(self._lines) > self._replaying and self._spool.is_stopped

    def waiting(self) -> Iterator[tuple[Resource, int]]:
        return iter([(line.resources[0], line.front[0].since_ns) for line in self._lines.values() if line.front])

    def stages(self) -> Iterator[Stage]:
        return iter([line.stage for line in self._lines.values()])

    def later(self, requests: Sequence[Request]) -> dict[int, Verdict]:
        return {index: LATER for index, request in enumerate(requests) if not request.consumes and self.has(request)}

    def has(self, request: Request) -> bool:
        return (request.resources, request.producer_group) in self._lines

    def put(self, request: Request, header: Header, data: bytes, now_ns: int, *, ended: Ended | None) -> None:
        line = self._line_of(request, now_ns)
        self._append(line, request, header, data, now_ns, ended=ended)
        if not line.front:
            self._let_ask(line)

    def spool_held(self, request: Request, header: Header, data: bytes, now_ns: int, *, ended: Ended | None) -> None:
        line = self._line_of(request, now_ns)
        handle = self._append(line, request, header, data, now_ns, ended=ended)
        self._begin(line, request, handle, now_ns)

    def _begin(self, line: Line, request: Request, handle: int, now_ns: int) -> SpooledRequest:
        oneway = request.refusal != "answered"
        spooled = SpooledRequest(
            line, handle, request.messages, request.size_bytes, now_ns, oneway, state=_HELD, request=request
        )
        request.handle = spooled
        line.front.append(spooled)
        self._check_age(spooled)
        return spooled

    def refuse_no_room(self, request: Request, opaque: int, *, is_held: bool) -> None:
        (self._context.give_up if is_held else self._context.lose)((request,))
        if request.refusal == "answered":
            self._refuse(request.resources[0].kind, opaque, no_room(request.resources[0]))

    def _append(
        self, line: Line, request: Request, header: Header, data: bytes, now_ns: int, *, ended: Ended | None
    ) -> int:
        oneway = header.flag & _ONEWAY != 0
        handle = line.handle_of(header, ended)
        line.queue.append(
            (data,),
            handle,
            now_ns,
            messages=request.messages,
            cost_bytes=request.size_bytes,
            is_refusable=not oneway,
            is_recoverable=oneway and line.kind in _REPLAYED,
        )
        line.oneways += oneway
        connection = self._context.stage
        count = credit_for(len(data))
        connection.send(line.stage, count, now_ns)
        line.stage.ack(connection, count, now_ns)
        return handle

    def replay(self, now_ns: int) -> None:
        listener = self._context.connection.listener

        def wants(name: QueueName) -> bool:
            return name.listener == listener and name.kind in _REPLAYED

        for queue in self._spool.take_recovered(wants):
            name = QueueName.read(queue.name)
            group = name.sender[0] if name.sender else ""
            line = self._open(queue.number, (Resource(name.kind, name.name),), group, now_ns, queue)
            line.oneways = queue.count
            self._let_ask(line)

    def _line_of(self, request: Request, now_ns: int) -> Line:
        key = (request.resources, request.producer_group)
        return self._lines.get(key) or self._open(key, request.resources, request.producer_group, now_ns)

    def _open(
        self, key: Key, resources: tuple[Resource, ...], group: str, now_ns: int, queue: Queue | None = None
    ) -> Line:
        if not self._lines:
            self._context.watch_writes(True)
        self._now_ns = now_ns
        stage = Stage("resource", str(resources[0]), self._context.stage.gives, self._context.wake)
        line = Line(key, resources, group, stage, replays=queue is not None)
        ready = partial(self._ready, line)
        lost = partial(self._lose, line)
        if queue is None:
            name = QueueName(self._context.connection.listener, *resources[0], (group,)).encoded()
            line.queue = self._spool.queue(name, ready, stage=stage, lost=lost)
        else:
            line.queue, queue.ready, queue.on_lost = queue, ready, lost
        self._lines[key] = line
        self._replaying += line.replays
        stage.throttle(now_ns, on=True)
        return line

    def _close(self, line: Line, now_ns: int, *, counted: int = 0, gives_back: bool = False) -> None:
        line.closed = True
        left = line.count - counted - self._give_up(line, returns=gives_back)
        if gives_back and line.queue.count:
            self._spool.give_back(line.queue)
        else:
            self._count_lost(line, left, line.queue.content_bytes, oneways=line.oneways)
            line.queue.close()
        for ended in line.ended.values():
            self._undo(ended)
        line.ended.clear()
        line.front.clear()
        line.stage.close(now_ns)
        for lines in (self._askable, self._starved, self._unwritten):
            lines.pop(line, None)
        if self._lines.pop(line.key, None) is not None:
            self._replaying -= line.replays
            if not self._lines:
                self.old_ns = None
                self._context.watch_writes(False)

    def _give_up(self, line: Line, *, returns: bool = False) -> int:
        """Drop all tickets of a line and return their number. If ``returns``, do not count the requests as dropped."""
        held = [spooled.request for spooled in line.front if spooled.state == _HELD and spooled.request is not None]
        for spooled in line.front:
            spooled.state, spooled.request = _REFUSED, None
        for request in held:
            request.returns = returns
        if held:
            self._context.give_up(held)
        return len(held)

    def _count_lost(self, line: Line, count: int, size_bytes: int, *, oneways: int = 0) -> None:
        refusals: dict[Refusal, int] = {"silent": min(count, oneways), "answered": count - oneways}
        for refusal, times in refusals.items():
            if times > 0:
                request = Request(line.resources, 1, size_bytes // count, line.group, refusal, None, None)
                self._context.lose([request] * times)

    def _let_ask(self, line: Line) -> None:
        if line.closed:
            return
        if not self._askable or self.again_ns is not None:
            self._context.wake()
        self._askable[line] = None

    def _ready(self, line: Line, _: Queue) -> None:
        self._let_ask(line)

    def ask(self, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        self.again_ns = None
        self._answer_lost()
        requests: list[Request] = []
        overdue: dict[int, Verdict] = {}
        charges: list[Charge] = []
        if self.old_ns is not None and now_ns >= self.old_ns:
            self._release_overdue(charges)
        for line in list(self._askable):
            if len(requests) >= MAX_ASKED:
                self._context.wake()
                break
            del self._askable[line]
            if line.purged:
                self._purge(line)
            self._finish(line)
            front = line.front
            if front and front[0].state != _WAITING:
                continue
            if not line.stage.credit(self._context.writer):
                self._starved[line] = None
                continue
            if not front and not line.purged:
                for spooled in self._refill(line, now_ns, charges):
                    overdue[len(requests)] = spool_failure(line.resources[0], TOO_OLD)
                    requests.append(self._request(spooled))
            for asked, spooled in enumerate(front):
                if asked >= line.most or len(requests) >= MAX_ASKED:
                    break
                if spooled.state != _WAITING or spooled.oneway is not front[0].oneway:
                    break
                requests.append(self._request(spooled))
            if not front and not line.queue.count:
                self._close(line, now_ns)
            elif not front and line.queue.head() is not None:
                self._let_ask(line)
        if not requests and not charges:
            return None
        batch = self._batch = Batch(self._context.connection, Side.CLIENT, requests, charges)
        if overdue:
            batch.add_verdicts(overdue)
        return batch

    def _request(self, spooled: SpooledRequest) -> Request:
        line = spooled.line
        spooled.state = _ASKED
        spooled.request = Request(
            line.resources,
            spooled.messages,
            spooled.size_bytes,
            line.group,
            "impossible" if spooled.oneway else "answered",
            None,
            spooled,
            since_ns=spooled.since_ns,
            returns=line.replays,
        )
        return spooled.request

    def _refill(self, line: Line, now_ns: int, charges: list[Charge]) -> list[SpooledRequest]:
        """Add the next spooled requests to ``line.front``. Return those that are too old and must be refused."""
        queue, front = line.queue, line.front
        overdue: list[SpooledRequest] = []
        for _ in range(MAX_OF_LINE):
            entry = queue.head()
            if entry is None:
                break
            if self._client_gone and entry.is_refusable:
                queue.pop()
                self._forget(line, entry.handle)
                self._count_lost(line, 1, entry.cost_bytes)
                continue
            spooled = _spooled_request(line, entry)
            ending = queue.ending(now_ns)
            if ending is not None and entry.is_refusable:
                queue.pop(ending)
                spooled.content = ()
                overdue.append(spooled)
                continue
            if ending is not None:
                if front:
                    break
                charges.append(Charge(line.resources, entry.messages, entry.cost_bytes, line.group))
                spooled.state, spooled.ending = _GRANTED, ending
                front.append(spooled)
                self._finish(line)
                if front:
                    break
                continue
            if line.most == 1 or entry.content is None or entry.size_bytes > _SMALL_BYTES:
                if not front:
                    front.append(spooled)
                break
            queue.pop()
            spooled.content = entry.content
            front.append(spooled)
            if len(front) >= line.most:
                break
        return overdue

    def is_own(self, batch: Batch) -> bool:
        return batch is self._batch

    def asked(self, batch: Batch, now_ns: int) -> None:
        self._batch = None
        self._now_ns = now_ns
        self._answer_lost()
        passed: dict[Line, int] = {}
        given_up: list[Request] = []
        for index, request in enumerate(batch.requests):
            spooled, verdict = request.handle, batch.verdicts.get(index)
            if not isinstance(spooled, SpooledRequest):
                continue
            if spooled.state != _ASKED or spooled.request is not request:
                if isinstance(verdict, Hold):
                    given_up.append(request)
                continue
            passed.setdefault(spooled.line, 0)
            if isinstance(verdict, Hold):
                spooled.state = _HELD
                self._check_age(spooled)
                continue
            spooled.request = None
            if isinstance(verdict, Refuse):
                self._refuse_one(spooled, verdict)
            elif isinstance(verdict, Later):
                spooled.state = _WAITING
            else:
                spooled.state = _GRANTED
                passed[spooled.line] += 1
        if given_up:
            self._context.give_up(given_up)
        for line, count in passed.items():
            if line.closed:
                continue
            line.most = 1 if line.replays else min(MAX_OF_LINE, max(1, 2 * count))
            if line.front and line.front[0].state == _WAITING:
                self._askable[line] = None
                self.again_ns = now_ns + _AGAIN_NS
                self._check_age(line.front[0])
            else:
                self._advance(line)
        if self._askable and self.again_ns is None:
            self._context.wake()

    def resolved(self, request: Request, spooled: SpooledRequest, refuse: Refuse | None, now_ns: int) -> None:
        self._now_ns = now_ns
        self._answer_lost()
        if spooled.request is not request or spooled.state != _HELD:
            return
        spooled.request = None
        if refuse is None:
            spooled.state = _GRANTED
        elif spooled.oneway:
            spooled.state = _WAITING
        else:
            self._refuse_one(spooled, refuse)
        self._advance(spooled.line)

    def _check_age(self, spooled: SpooledRequest) -> None:
        if spooled.oneway and self._max_age_ns:
            old_ns = spooled.since_ns + self._max_age_ns
            if self.old_ns is None or old_ns < self.old_ns:
                self.old_ns = old_ns
                self._context.wake()

    def _release_overdue(self, charges: list[Charge]) -> None:
        self.old_ns = None
        passed: list[Request] = []
        for line in self._lines.values():
            for spooled in line.front:
                if spooled.state not in {_HELD, _WAITING} or not spooled.oneway:
                    continue
                if spooled.since_ns + self._max_age_ns > self._now_ns:
                    self._check_age(spooled)
                    break
                if spooled.request is not None:
                    passed.append(spooled.request)
                charges.append(Charge(line.resources, spooled.messages, spooled.size_bytes, line.group))
                spooled.state, spooled.request, spooled.ending = _GRANTED, None, "too old"
                self._askable[line] = None
        if passed:
            self._context.pass_on(passed)

    def _refuse_one(self, spooled: SpooledRequest, refuse: Refuse) -> None:
        spooled.state = _REFUSED
        line = spooled.line
        self._forget(line, spooled.handle)
        if not spooled.lost and not spooled.oneway:
            self._refuse(line.kind, spooled.opaque, refuse)

    def _forget(self, line: Line, handle: int) -> None:
        ended = line.take_ended(handle)
        if ended is not None:
            self._undo(ended)

    def _advance(self, line: Line) -> None:
        self._finish(line)
        if line.closed:
            return
        if not line.front and not line.queue.count:
            self._close(line, self._now_ns)
        elif not line.front or line.front[0].state == _WAITING:
            self._let_ask(line)

    def _finish(self, line: Line) -> None:
        front = line.front
        while front:
            spooled = front[0]
            if spooled.state == _GRANTED:
                if not self._forward(spooled):
                    return
            elif spooled.state != _REFUSED or not self._remove(spooled):
                return
            front.popleft()
            line.oneways -= spooled.oneway and not spooled.lost

    def _forward(self, spooled: SpooledRequest) -> bool:
        line, content = spooled.line, spooled.content
        if content is None:
            entry = self._head(spooled)
            if entry is None:
                return False
            if spooled.lost:
                return True
            if entry.content is None:
                line.queue.fetch()
                return False
            content = line.queue.pop(spooled.ending).content or ()
        line.take_ended(spooled.handle)
        self._on_forward(spooled, (mark_replayed(b"".join(content)),) if line.replays else content)
        line.stage.send(self._context.writer, 1, self._now_ns)
        self._unwritten[line] = self._unwritten.get(line, 0) + 1
        return True

    def _remove(self, spooled: SpooledRequest) -> bool:
        if spooled.is_in_queue and not spooled.lost:
            if self._head(spooled) is None:
                return False
            if not spooled.lost:
                spooled.line.queue.pop()
        return True

    def _head(self, spooled: SpooledRequest) -> Entry | None:
        """Return a request's spool entry, or None while it is being read. Set ``lost`` if the entry is gone."""
        queue = spooled.line.queue
        entry = queue.head()
        if entry is None:
            if queue.count:
                return None
            spooled.lost = True
        elif (entry.handle, entry.entered_ns) != (spooled.handle, spooled.since_ns):
            spooled.lost = True
        return entry or _NOTHING

    def _lose(self, line: Line, lost: Lost) -> None:
        self._lost.append((line, lost))
        oneways = min(line.oneways, lost.entries - len(lost.handles))
        line.oneways -= oneways
        line.purged = max(0, line.purged - lost.entries)
        line.purged_oneways = max(0, line.purged_oneways - oneways)
        self._let_ask(line)

    def _answer_lost(self) -> None:
        lost, self._lost = self._lost, []
        for line, its in lost:
            spooled = line.front[0] if line.front and line.front[0].is_in_queue and not line.front[0].lost else None
            if spooled is not None and self._head(spooled) is None:
                # The head may be lost too. That is unknown until the next entry has been read.
                self._lost.append((line, its))
                continue
            entries, handles = its.entries, list(its.handles)
            if spooled is not None and spooled.lost:
                if spooled.handle in handles:
                    handles.remove(spooled.handle)
                if not spooled.oneway and spooled.state != _REFUSED:
                    handles.insert(0, spooled.handle)
                # Unless the request is WAITING, its ticket or verdict counts it.
                entries -= spooled.state != _WAITING
                if spooled.state == _HELD and spooled.request is not None:
                    spooled.request.returns = False
                    self._context.give_up((spooled.request,))
                spooled.state, spooled.request = _REFUSED, None
            self._count_lost(line, entries, 0)
            for handle in () if line.replays else handles:
                self._forget(line, handle)
                self._refuse(line.kind, opaque_of(handle), spool_failure(line.resources[0], LOST))

    def written(self, now_ns: int) -> None:
        if not self._unwritten:
            return
        writer = self._context.writer
        for line, count in self._unwritten.items():
            writer.ack(line.stage, count, now_ns)
        self._unwritten.clear()
        for line in list(self._starved):
            if line.stage.credit(writer):
                del self._starved[line]
                self._let_ask(line)

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        self._now_ns = now_ns
        refused = dropped = 0
        for line in list(self._lines.values()):
            if resource not in line.resources:
                continue
            count, oneways = line.count - line.purged, max(0, line.oneways - line.purged_oneways)
            dropped += oneways
            refused += count - oneways
            if line.oneways == line.count:
                self._close(line, now_ns)
                continue
            # Held requests are counted when their tickets are dropped.
            counted = self._give_up(line)
            for spooled in line.front:
                if not spooled.is_in_queue:
                    self._drop(line, spooled.handle, oneway=spooled.oneway, count=1 - counted)
                    counted = 0
            line.front.clear()
            line.purged, line.purged_oneways = line.queue.count, line.oneways
            self._purge(line, counted)
            self._advance(line)
        return refused, dropped

    def _purge(self, line: Line, counted: int = 0) -> None:
        queue = line.queue
        for _ in range(_MAX_PURGED):
            if not line.purged or not queue.count:
                break
            if queue.head() is None:
                return  # ``_ready`` is called when the head has been read
            entry = queue.pop()
            line.purged -= 1
            line.purged_oneways -= not entry.is_refusable
            self._drop(line, entry.handle, oneway=not entry.is_refusable, count=1 - counted)
            counted = 0
        if not queue.count:
            line.purged = 0
        if line.purged:
            self._let_ask(line)
        else:
            line.purged_oneways = 0

    def _drop(self, line: Line, handle: int, *, oneway: bool, count: int) -> None:
        self._forget(line, handle)
        self._count_lost(line, count, 0)
        line.oneways -= oneway
        if not oneway:
            self._refuse(line.kind, opaque_of(handle), spool_failure(line.resources[0], PURGED))

    def client_gone(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._client_gone = True
        for line in list(self._lines.values()):
            if line.replays:
                self._close(line, now_ns, gives_back=True)
                continue
            for spooled in line.front:
                if spooled.oneway:
                    if spooled.state == _HELD and spooled.request is not None and spooled.request.refusal == "silent":
                        spooled.request.returns = True
                        self._context.give_up((spooled.request,))
                        spooled.state, spooled.request = _WAITING, None
                    continue
                if spooled.state == _WAITING:
                    self._count_lost(line, 1, spooled.size_bytes)
                self._forget(line, spooled.handle)
                spooled.state, spooled.request = _REFUSED, None
            line.front = deque(spooled for spooled in line.front if spooled.oneway or spooled.is_in_queue)
            if line.oneways:
                self._advance(line)
            else:
                self._close(line, now_ns, counted=len(line.front))

    def has_undelivered(self) -> bool:
        return any(line.oneways for line in self._lines.values())

    def close(self, now_ns: int | None = None) -> None:
        for line in list(self._lines.values()):
            self._close(line, self._now_ns if now_ns is None else now_ns, gives_back=line.replays)


_NOTHING: Final = Entry(0, 0, 0, 0, 0, 0, False, False, ())


def _spooled_request(line: Line, entry: Entry) -> SpooledRequest:
    return SpooledRequest(
        line, entry.handle, entry.messages, entry.cost_bytes, entry.entered_ns, not entry.is_refusable
    )
