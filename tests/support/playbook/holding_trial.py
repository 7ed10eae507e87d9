"""A trial in which requests are also held, and resolved at random times. See ``trial``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from playbook import frames
from playbook.trial import Trial, gaps, random_pieces, read_stream
from proxy.deciding.batch import Batch, Hold, Refuse, Request, Side, Ticket, Verdict
from proxy.protocols.base import Close
from proxy.protocols.rocketmq.requests import Frame
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY

Choice = Literal["pass", "refuse", "hold"]


@dataclass
class HoldingTrial(Trial):
    refuses: Callable[[int], bool] = lambda _: False
    chooses: Callable[[int], Choice] = lambda _: "pass"
    pending: dict[int, Request] = field(default_factory=dict)
    released: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    charged_messages: int = 0

    def play_and_resolve(self, to_broker: bytes, to_client: bytes, random: Random, longest: int) -> None:
        """Play both directions at once. Resolve held requests now and then, and the rest in the end."""
        left = {
            Side.CLIENT: random_pieces(to_broker, random, longest),
            Side.BROKER: random_pieces(to_client, random, longest),
        }
        while left and self.closed is None:
            if self.pending and random.random() < 0.3:
                self.resolve(random)
            side = random.choice(list(left))
            if side is Side.CLIENT and self._undecided is not None:
                self.decide()
                continue
            self.resume(side, left)
            if self._undecided is not None and random.random() < 0.5:
                self.decide()
        if self._undecided is not None:
            self.decide()
        while self.pending and self.closed is None:
            self.resolve(random)

    def decide(self) -> None:
        """Give the verdicts on the waiting batch."""
        assert self._undecided is not None
        (batch, chunk), self._undecided = self._undecided, None
        first = len(self.all_requests)
        for index, request in enumerate(batch.requests):
            if index in batch.verdicts:
                self.refused.append(first + index)
                continue
            verdict = self._verdict(request, first + index)
            if verdict is not None:
                batch.add_verdicts({index: verdict})
        self.all_requests += batch.requests
        self._charge(batch)
        self._told(lambda: self.session.decided(batch, 0))
        chunk[:] = bytes([0xEE]) * len(chunk)

    def _verdict(self, request: Request, number: int) -> Verdict | None:
        choice = self.chooses(number)
        assert isinstance(request.handle, Frame)
        if choice == "hold":
            self.pending[number] = request
            return Hold(request.resources[0], "some rule", Ticket(lambda: None))
        if choice == "refuse":
            self.refused.append(number)
            return Refuse(request.resources[0], "some rule", 1)
        return None

    def resolve(self, random: Random) -> None:
        number = random.choice(list(self.pending))
        request = self.pending.pop(number)
        refuse = Refuse(request.resources[0], "some rule", 1) if random.random() < 0.4 else None
        (self.released if refuse is None else self.refused).append(number)

        def tell() -> None:
            self.session.resolved(request, refuse, 0)

        self._told(tell)

    def _charge(self, batch: Batch) -> None:
        self.charged_messages += sum(charge.messages for charge in batch.charges)

    def _told(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Close as close:
            self._close(close)
        self._take()
        self._check_held()

    def _check_held(self) -> None:
        held = self.session._requests.held
        assert held.count == len(self.pending)
        waiting = sum(map(len, held.waiting))
        assert waiting == self.session.backlog_bytes(Side.BROKER)
        bound = sum(request.size_bytes for request in self.pending.values())
        assert held.size_bytes - waiting <= bound
        assert self.session.in_flight() >= held.count

    def check_resolved(self, messages: Callable[[bytes], int]) -> None:
        """Compare the data of both peers with the model, once everything is sent and resolved."""
        data = bytes(self.sent[Side.CLIENT])
        seen, broken = read_stream(data)
        assert not broken
        assert not self.pending
        limitable = [frame for frame in seen if frame.limitable]
        assert len(limitable) == len(self.all_requests)
        numbers = {frame.start: number for number, frame in enumerate(limitable)}
        stopped = {*self.released, *self.refused}
        passed = [data[frame.start : frame.stop] for frame in seen if numbers.get(frame.start) not in stopped]
        released = [data[limitable[number].start : limitable[number].stop] for number in self.released]
        given = list(frames.split(bytes(self.received[Side.BROKER])))
        assert _is_interleaved(given, passed, released), "the broker was not given what passed and was released"
        headers = [limitable[number].header for number in self.refused]
        expected = [header.opaque for header in headers if header is not None and not header.flag & FLAG_ONEWAY]
        assert [int(own.rpartition(b'"opaque":')[2].rstrip(b"}")) for own in self.own] == expected
        assert self._own_at <= gaps(bytes(self.sent[Side.BROKER]))
        held = self.session._requests.held
        assert (held.count, held.size_bytes, held.coming, held.waiting) == (0, 0, None, [])
        refused = set(self.refused)
        asked = sum(request.messages for number, request in enumerate(self.all_requests) if number not in refused)
        holds = sum(
            messages(data[frame.start : frame.stop]) for frame in limitable if numbers[frame.start] not in refused
        )
        assert asked + self.charged_messages == holds


def _is_interleaved(whole: Sequence[bytes], one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """Return whether a sequence is made of two others, each in its own order."""
    if len(whole) != len(one) + len(other):
        return False
    taken = {0}  # possible numbers taken from ``one``
    for count, item in enumerate(whole):
        taken = {at + 1 for at in taken if at < len(one) and one[at] == item} | {
            at for at in taken if count - at < len(other) and other[count - at] == item
        }
    return len(one) in taken
