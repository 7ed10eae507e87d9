"""A toy protocol: a request is a line ``TOPIC TEXT``, an answer is any line of the broker.

It uses every part of the session interface once:

- refusals: ``BUSY TOPIC WAIT``
- holding: a held line stays in its request and is forwarded when it is resolved, behind later lines
- timers: a line that begins with ``later`` is forwarded after ``later_ms``
- wake-ups and pausing: while such a line waits, the client is not read
- batches from the broker's side: a broker's line ``push TOPIC TEXT`` is a request, too
- requests to Sluice itself: ``limits`` is answered ``LIMITS TOPIC RATE …``
- a description of the client: ``i-am NAME``
- closing: at an unfinished line longer than ``longest_bytes``, once the lines before it are decided
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from proxy.control import LimitCommandReply
from proxy.deciding.batch import Batch, Hold, Refuse, Request, Response, Side
from proxy.protocols.base import Buffer, Close, CommandRequest, Description, Kind, Protocol, Session, SessionContext
from proxy.stats.snapshot import ClientDescription

KIND = "line_topic"


class LinesOptions(msgspec.Struct, kw_only=True):
    """The ``options`` of the listener's table."""

    later_ms: int = 50
    longest_bytes: int = 1000


class _Line(NamedTuple):
    """The handle of a request: everything needed once it is decided, however late."""

    side: Side
    text: bytes


class LinesSession(Session):
    """One connection's lines."""

    ticks = True

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._options: LinesOptions = context.options
        self._partial = dict.fromkeys(Side, b"")
        self._out: dict[Side, list[Buffer]] = {side: [] for side in Side}
        self._later: list[tuple[int, bytes]] = []
        self._unanswered = 0
        self._held = dict.fromkeys(Side, 0)
        self._responses: list[Response] = []
        self._name = ""
        self._lines = 0
        self._open_asks = 0

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        *lines, self._partial[side] = (self._partial[side] + bytes(chunk)).split(b"\n")
        self._context.counters.frames[side] += len(lines)
        requests: list[Request] = []
        for line in lines:
            word = line.split(b" ")
            self._lines += side is Side.CLIENT
            if side is Side.CLIENT and word[0] == b"i-am":
                self._name = word[1].decode(errors="replace")
                self._out[Side.BROKER].append(line + b"\n")
            elif side is Side.CLIENT and line == b"limits" and self._ask():
                self._open_asks += 1
            elif side is Side.CLIENT and word[0] == b"later":
                self._later.append((now_ns + self._options.later_ms * 1_000_000, line))
                self._context.wake()
            elif side is Side.CLIENT or word[0] == b"push":
                topic = word[0 if side is Side.CLIENT else 1].decode(errors="replace")
                requests.append(
                    Request((Resource(KIND, topic),), 1, len(line) + 1, "", "answered", None, _Line(side, line))
                )
            else:
                self._unanswered -= 1
                self._responses.append(Response(None, (), 0, len(line) + 1))
                self._out[Side.CLIENT].append(line + b"\n")
        if requests:
            return Batch(self._context.connection, side, requests)
        self._close_if_too_long(side)
        return None

    def decided(self, batch: Batch, now_ns: int) -> None:
        del now_ns
        for index, request in enumerate(batch.requests):
            verdict = batch.verdicts.get(index)
            if isinstance(verdict, Hold):
                # The handle is a copy already, so there is nothing to save from the chunk.
                self._held[batch.side] += 1
            else:
                self._resume(request, verdict if isinstance(verdict, Refuse) else None)
        self._close_if_too_long(batch.side)

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        del now_ns
        line = request.handle
        assert isinstance(line, _Line)
        self._held[line.side] -= 1
        self._resume(request, refuse)

    def _ask(self) -> bool:
        asked = self._context.ask(CommandRequest("view_limits"))
        if asked == "full":
            self._out[Side.CLIENT].append(b"LIMITS later\n")
        self._open_asks -= asked == "full"
        return asked != "nobody"

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        del ask, now_ns
        self._open_asks -= 1
        words = [reply.error] if reply.error else [f"{each.name} {each.rate_per_s}" for each in reply.limits]
        self._out[Side.CLIENT].append(" ".join(("LIMITS", *words)).encode() + b"\n")

    def describe(self, now_ns: int) -> Description:
        del now_ns
        return Description(ClientDescription(self._name), self._lines)

    def _resume(self, request: Request, refuse: Refuse | None) -> None:
        line = request.handle
        assert isinstance(line, _Line)
        if refuse is not None:
            self._out[Side.CLIENT].append(f"BUSY {refuse.resource.name} {refuse.wait_us}\n".encode())
        else:
            self._unanswered += line.side is Side.CLIENT
            self._out[line.side.other].append(line.text + b"\n")

    def _close_if_too_long(self, side: Side) -> None:
        if len(self._partial[side]) > self._options.longest_bytes:
            raise Close("long_line", f"a line of more than {self._options.longest_bytes} bytes")

    def take_responses(self) -> Sequence[Response]:
        responses, self._responses = self._responses, []
        return responses

    def end(self, side: Side, now_ns: int) -> None:
        del now_ns
        self._held[side] = 0
        self._out[side.other].append(self._partial[side])

    def take(self, side: Side) -> Sequence[Buffer]:
        out, self._out[side] = self._out[side], []
        return out

    def backlog_bytes(self, side: Side) -> int:
        return sum(map(len, self._out[side]))

    def paused(self, side: Side) -> bool:
        return side is Side.CLIENT and bool(self._later)

    def in_flight(self) -> int:
        return max(0, self._unanswered) + len(self._later) + self._held[Side.CLIENT] + self._open_asks

    def between_frames(self, side: Side) -> bool:
        return not self._partial[side]

    def next_tick_ns(self) -> int | None:
        return self._later[0][0] if self._later else None

    def tick(self, now_ns: int) -> Batch | None:
        while self._later and self._later[0][0] <= now_ns:
            self._unanswered += 1
            self._out[Side.BROKER].append(self._later.pop(0)[1] + b"\n")
        return None


PROTOCOL = Protocol(
    name="lines",
    kinds=(Kind(KIND, "the first word of a line", rate_per_s=1000),),
    default_rules=(Rule(KIND, "free", None, source="built-in"),),
    open_session=LinesSession,
    options=LinesOptions,
)
