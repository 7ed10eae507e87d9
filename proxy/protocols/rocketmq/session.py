"""The session of a RocketMQ connection."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from limiter.compiled import COMPILED
from limiter.rules.resource import Resource
from proxy.control import LimitCommandReply
from proxy.deciding.batch import Batch, Refuse, Request, Response, Side
from proxy.deciding.judge import Judge
from proxy.flow.credit import Stage
from proxy.protocols.base import NO_BOUND, Buffer, CommandRequest, Description, Session, SessionContext
from proxy.protocols.options import relays_unread
from proxy.protocols.rocketmq import refusals
from proxy.protocols.rocketmq.answers import AnswerStream, Pending
from proxy.protocols.rocketmq.client_info import ClientInfo
from proxy.protocols.rocketmq.compiled import lend, open_requests
from proxy.protocols.rocketmq.held import HeldFrame
from proxy.protocols.rocketmq.limit_commands import LimitCommandReader
from proxy.protocols.rocketmq.lines import Lines, SpooledRequest
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.refusals import Forbidden, busy_answer
from proxy.protocols.rocketmq.requests import Frame, Refused, RequestStream
from proxy.protocols.rocketmq.transactions import Transactions
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, KIND_RETRY_GROUP, KIND_SUBSCRIPTION, KIND_TOPIC
from proxy.protocols.rocketmq.wire.header import STRICT, Header, classify
from proxy.protocols.rocketmq.wire.message_id import ANOTHER_EACH_TIME
from proxy.spool.segments import Piece

if TYPE_CHECKING:
    from sluice_native import Lent, Requests

_OF_SENDS: Final = frozenset({KIND_TOPIC, KIND_RETRY_GROUP})


Begun = tuple[ClientInfo, "Requests"]


def begin(options: RocketMQOptions, judge: Judge, limits_kind: Callable[[str], bool]) -> "tuple[Lent, Begun] | None":
    compiled = None if limits_kind(KIND_SUBSCRIPTION) else open_requests(options.scan, judge.resources)
    if compiled is None:
        return None
    about = ClientInfo()
    judge.learn = partial(_learn, about)
    return lend(judge, compiled, options.max_frame_bytes, limits_kind, is_new=True), (about, compiled)


def _learn(about: ClientInfo, raw: bytes, header_type: int) -> tuple[str, bool] | None:
    header = classify(raw, header_type)
    if header.reading != STRICT:
        return None
    about.identify(header)
    return about.language, about.language in ANOTHER_EACH_TIME


class RocketMQSession(Session):
    __slots__ = (
        *("_alarm", "_answers", "_begun", "_broker_ended", "_client_gone", "_connection", "_counters", "_give_up"),
        *("_lent_at_frame", "_limit_commands", "_limiting", "_limits_kind", "_lines", "_looked_ns", "_lose"),
        *("_max_frame_bytes", "_may_replay", "_now_ns", "_out", "_owed", "_own_bytes", "_refused", "_requests"),
        *("_stage", "_throttled", "_tls", "_unread", "_waiting", "_waits_for_spool", "_wake"),
    )

    lends = COMPILED is not None

    def __init__(self, context: SessionContext) -> None:
        options: RocketMQOptions = context.options
        self._connection = context.connection
        self._counters = context.counters
        self._tls = options.tls
        self._limiting = context.limiting
        self._limits_kind = context.limits_kind
        self._max_frame_bytes = options.max_frame_bytes
        self._alarm: Forbidden | None = None
        self._stage = context.stage
        self._wake = context.wake
        self._give_up, self._lose = context.give_up, context.lose
        # The compiled extension is not used if a handler wants responses, because it does not store their fields.
        begun: Begun | tuple[None, None] = context.begun or (None, None)
        about, compiled = begun
        if compiled is None and not context.wants_responses:
            compiled = open_requests(options.scan, context.resources)
        transactions: Transactions = context.hub
        self._owed = Pending(compiled)
        self._limit_commands = LimitCommandReader(context.connection.address, options, context.ask)
        self._requests = RequestStream(
            context,
            self._owed,
            transactions,
            self._take_limit_command,
            compiled=compiled,
        )
        if about is not None:
            self._requests.about = about
        spool = context.spool
        self._lines = None
        if spool is not None:
            self._lines = self._requests.lines = Lines(
                context,
                spool,
                on_forward=self._resume,
                refuse=self._refuse_spooled,
                undo=transactions.undo,
            )
        self._may_replay = spool is not None and not context.connection.exempt
        self._signals = context.signals
        self._answers = AnswerStream(self._owed, transactions, self._signals, wants_responses=context.wants_responses)
        self._out: dict[Side, list[Buffer]] = {Side.CLIENT: [], Side.BROKER: []}
        self._refused = 0
        # Sluice's answers that wait for the end of the broker's current frame.
        self._waiting: list[bytes] = []
        self._own_bytes = 0
        self._begun = False
        self._lent_at_frame = -1
        self._unread = False
        self._broker_ended = False
        self._client_gone = self._throttled = self._waits_for_spool = False
        self._looked_ns = 0
        self._now_ns = 0

    @property
    def language(self) -> str:
        return self._requests.about.language

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        self._now_ns = now_ns
        if not self._begun and side is Side.CLIENT:
            self._begun = True
            self._unread = relays_unread(chunk[0], self._tls)
        if self._unread:
            self._out[side.other].append(chunk)
            return None
        if side is Side.BROKER:
            return self._receive_answers(chunk, now_ns)
        stream, before = self._requests, self._requests.frames
        requests = stream.feed(chunk, now_ns, self._out[Side.BROKER])
        self._counters.frames[side] += stream.frames - before
        if self._may_replay and stream.frames:
            # A client that has sent a frame is not a port probe.
            self._may_replay = False
            if self._lines is not None:
                self._lines.replay(now_ns)
        if requests:
            ids = None if stream.about.language in ANOTHER_EACH_TIME else stream
            batch = Batch(self._connection, side, requests, ids=ids)
            if stream.refusals and (stream.lost or self._limiting()):
                batch.add_verdicts(stream.refusals)
            if self._alarm is not None:
                sends = [at for at, request in enumerate(requests) if request.resources[0].kind in _OF_SENDS]
                if sends:
                    batch.add_verdicts(dict.fromkeys(sends, self._alarm))
                    self._stage.block(now_ns, on=True)
            if self._lines:
                batch.add_verdicts(self._lines.later(requests))
            return batch
        self._pass_on(None)
        return None

    def lend(self, judge: Judge) -> "Lent | None":
        if (
            not self._begun
            or self._unread
            or self._alarm is not None
            or self._lines
            or self._throttled
            or self._waiting
            or self._client_gone
            or self._broker_ended
            or self._limit_commands.open
            or self._limits_kind(KIND_SUBSCRIPTION)
        ):
            return None
        client, broker = self._requests.lend(), self._answers.lend()
        owed = None if client is None or broker is None else self._owed.lend()
        if client is None or broker is None or owed is None:
            return None
        self._lent_at_frame = self._requests.frames
        compiled, left = client
        polls, timed = owed
        judge.ids = None if self.language in ANOTHER_EACH_TIME else judge.all_ids
        return lend(
            *(judge, compiled, self._max_frame_bytes, self._limits_kind),
            client=left,
            broker=broker,
            polls=polls,
            timed=timed,
            kept=self._requests.take_back(),
        )

    def returned(self, state: Any) -> bool:
        (left_bytes, swallows), broker_left_bytes, waiting, (polls, is_ambiguous), timed = state
        self._requests.returned(left_bytes, swallows=swallows)
        self._answers.returned(broker_left_bytes)
        self._signals.answers += self._owed.returned(polls, timed, is_ambiguous=is_ambiguous)
        if waiting:
            self._own_bytes += len(waiting)
            self._waiting.append(waiting)
        return self._requests.frames == self._lent_at_frame

    def count_lent(self, requests: int, refused: int) -> None:
        self._begun = self._begun or requests > 0
        self._may_replay = self._may_replay and not requests
        self._requests.frames += requests
        self._refused += refused

    def left_bytes(self, side: Side) -> int:
        return self._requests.left_bytes if side is Side.CLIENT else 0

    def _receive_answers(self, chunk: memoryview, now_ns: int) -> Batch | None:
        stream, before = self._answers, self._answers.frames
        if stream.feed(chunk, self._waiting, self._out[Side.CLIENT]):
            self._waiting = []
        self._counters.frames[Side.BROKER] += stream.frames - before
        round_trip_ns = self._owed.timed(now_ns)
        if round_trip_ns is not None:
            self._counters.round_trip.observe(round_trip_ns)
            self._signals.round_trips_ns.append(round_trip_ns)
        if stream.close is not None:
            self._broker_ended = True
            raise stream.close
        if stream.charges:
            charges, stream.charges = stream.charges, []
            return Batch(self._connection, Side.BROKER, (), charges)
        return None

    def alarm(self, reason: str, now_ns: int) -> None:
        # Commits and rollbacks pass. Until a transaction ends, the broker stores more copies of its half message.
        del now_ns
        alarmed = bool(reason) and not self._connection.exempt
        self._alarm = refusals.alarm(self._connection.scope, reason) if alarmed else None

    def decided(self, batch: Batch, now_ns: int) -> None:
        if self._lines is not None and self._lines.is_own(batch):
            self._lines.asked(batch, now_ns)
        # Batches from the broker's side contain only charges.
        elif batch.side is Side.CLIENT:
            self._pass_on(batch)
            if batch.requests and self._owed.may_time(now_ns):
                # If only some requests pass, they are the first ones. Refused requests are not pending.
                first = batch.requests[0].handle
                if isinstance(first, Frame):
                    self._owed.time(first.header.opaque, now_ns)
        if batch.verdicts or self._throttled:
            self._throttle(now_ns)

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        held = request.handle
        if isinstance(held, SpooledRequest):
            if self._lines is not None:
                self._lines.resolved(request, held, refuse, now_ns)
        elif not isinstance(held, HeldFrame) or held.dropped:
            return
        elif refuse is not None and held.request is not None and request.refusal == "silent" and held.data:
            # A oneway request is decided again when its frame is complete.
            held.is_held = False
        elif refuse is None and held.data:
            self._requests.release(request, held, self._out[Side.BROKER])
        else:
            # If the data is missing, it was evicted from memory.
            self._requests.give_up(held)
            self._refuse([(held.header, refuse or refusals.no_room(request.resources[0]))])
        self._throttle(now_ns)

    def next_tick_ns(self) -> int | None:
        return None if self._lines is None else self._lines.due_ns

    def tick(self, now_ns: int) -> Batch | None:
        if self._lines is None:
            return None
        batch = self._lines.ask(now_ns)
        self._throttle(now_ns)
        return batch

    def _throttle(self, now_ns: int) -> None:
        lines, self._looked_ns = self._lines, now_ns
        if lines is not None and lines.is_full() is not self._waits_for_spool:
            self._waits_for_spool = not self._waits_for_spool
            if self._waits_for_spool:
                self._stage.stall(lines.store, now_ns, on=True)
            else:
                self._stage.part(lines.store, now_ns)
        throttled = self._requests.held.count > 0 or bool(self._lines)
        if throttled is not self._throttled:
            self._throttled = throttled
            self._stage.throttle(now_ns, on=throttled)

    def written(self, side: Side, now_ns: int) -> None:
        is_behind = self._requests.held.waiting or self._out[Side.BROKER]
        if self._lines is not None and side is Side.BROKER and not is_behind:
            self._lines.written(now_ns)

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        return (0, 0) if self._lines is None else self._lines.purge(resource, now_ns)

    def waiting(self) -> Iterable[tuple[Resource, int]]:
        return () if self._lines is None else self._lines.waiting()

    def stages(self) -> Iterable[Stage]:
        return () if self._lines is None else self._lines.stages()

    def has_undelivered(self, side: Side) -> bool:
        lines, held = self._lines, self._requests.held

        if side is Side.BROKER or self._broker_ended or self._requests.is_cut:
            return False
        if not self._client_gone:
            self._client_gone = True
            coming = held.coming
            if coming is not None:
                if coming.request is not None:
                    (self._give_up if coming.is_held else self._lose)([coming.request])
                self._requests.give_up(coming)
            if lines is not None:
                lines.client_gone(self._now_ns)
            if held.oneways or (lines is not None and lines.has_undelivered()):
                # The connection to the broker stays open, but the broker must reassign the client's queues.
                self._out[Side.BROKER] += self._requests.about.unregister()
                self._wake()
        return held.oneways > 0 or (lines is not None and lines.has_undelivered())

    def _resume(self, spooled: SpooledRequest, data: Sequence[Piece]) -> None:
        self._requests.resume(spooled, data, self._out[Side.BROKER])

    def _refuse_spooled(self, kind: str, opaque: int, refuse: Refuse) -> None:
        if not self._client_gone:
            self._refused += 1
            self._answer([busy_answer(refuse, opaque, kind)])

    def _pass_on(self, batch: Batch | None) -> None:
        stream = self._requests
        refused = stream.pass_on(batch, self._out[Side.BROKER])
        if refused:
            self._refuse(refused)
        if stream.close is not None:
            raise stream.close

    def _refuse(self, refused: Refused) -> None:
        self._refused += len(refused)
        answered = [(header, refuse) for header, refuse in refused if not header.flag & FLAG_ONEWAY]
        self._answer([busy_answer(refuse, header.opaque, header.kind) for header, refuse in answered])

    def _answer(self, own: Sequence[bytes]) -> None:
        if self._broker_ended:
            return  # nothing can follow the end of the stream
        self._own_bytes += sum(map(len, own))
        (self._out[Side.CLIENT] if self._answers.between_frames() else self._waiting).extend(own)

    def _take_limit_command(self, header: Header, raw: bytes, header_type: int) -> bool:
        answer = self._limit_commands.take(header, raw, header_type)
        if answer:
            self._answer([answer])
        return answer is not None

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        del now_ns
        answer = self._limit_commands.reply(ask, reply)
        if answer:
            self._answer([answer])

    def describe(self, now_ns: int) -> Description:
        del now_ns
        stream = self._requests
        shown, more = stream.shown_names()
        return Description(stream.about.describe(), stream.frames, self._refused, shown, more)

    def take_responses(self) -> Sequence[Response]:
        responses, self._answers.responses = self._answers.responses, []
        return responses

    def end(self, side: Side, now_ns: int) -> None:
        if side is Side.CLIENT:
            if self._lines is not None:
                self._lines.close(now_ns)
            self._requests.end(self._out[Side.BROKER])
        else:
            self._broker_ended = True
            self._own_bytes -= sum(map(len, self._waiting))
            self._waiting.clear()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._throttle(self._looked_ns)
        self._requests.give_back()
        self._lines = None

    def take(self, side: Side) -> Sequence[Buffer]:
        out = self._out[side]
        if out:
            self._out[side] = []
            if side is Side.CLIENT:
                self._own_bytes = sum(map(len, self._waiting))
        return out

    def backlog_bytes(self, side: Side) -> int:
        return self._own_bytes if side is Side.CLIENT else self._requests.held.waiting_bytes

    def paused(self, side: Side) -> bool:
        # A frame that has been forwarded in part must be completed.
        if side is Side.BROKER or self._lines is None or self._requests.is_cut:
            return False
        return self._lines.is_full()

    def in_flight(self) -> int:
        spooled = 0 if self._lines is None else self._lines.count
        return len(self._owed) + self._requests.held.count + self._limit_commands.open + spooled

    def unanswered(self) -> int:
        return self._owed.unanswered()

    def unanswered_in_batches(self) -> int:
        return self._owed.unanswered_in_batches()

    def between_frames(self, side: Side) -> bool:
        if self._unread:
            return False
        return (self._requests if side is Side.CLIENT else self._answers).between_frames()

    def within_frame(self, side: Side) -> bool:
        return not self._unread and not self.between_frames(side)

    def missing_bytes(self, side: Side) -> int:
        if self._unread or side is Side.BROKER:
            return NO_BOUND
        return self._requests.missing_bytes()
