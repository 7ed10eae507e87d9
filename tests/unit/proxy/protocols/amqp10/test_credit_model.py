"""Both peers of a link compute its credit by the specification, and Sluice's view of them must be right.

Sender and receiver follow 2.6.7 of AMQP 1.0, without knowledge of Sluice, and talk through a stand-in for the session.
Frames take any time, so flows and deliveries cross. Numbers begin near 2^32.
"""

import os
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.amqp10.credit import Credit

ALL = 0xFFFFFFFF
SEEDS = 150 * max(1, int(os.environ.get("FUZZ_FACTOR", "1")))


def signed(serial: int) -> int:
    serial &= ALL
    return serial - (1 << 32) if serial >> 31 else serial


class Attach(NamedTuple):
    initial_delivery_count: int


class Flow(NamedTuple):
    delivery_count: int | None
    link_credit: int
    drain: bool
    available: int | None = None


class Transfer(NamedTuple):
    """A frame of a delivery. ``swallowed`` is for the stand-in."""

    first: bool
    last: bool


Message = Attach | Flow | Transfer


class SpecSender:
    """The sender's half of 2.6.7.

    ``counts_early``: the delivery-count grows with the first frame of a delivery, not with its last. ``answers_all``:
    it also reports a drain when all credit is used up.
    """

    def __init__(self, initial: int, out: "deque[Message]", *, counts_early: bool, answers_all: bool) -> None:
        self.initial = self.delivery_count = initial
        self.credit = 0
        self.drain = False
        self.available = 0
        self.partial = False
        self.out = out
        self.counts_early = counts_early
        self.answers_all = answers_all
        out.append(Attach(initial))

    def take(self, flow: Flow) -> None:
        counted = self.initial if flow.delivery_count is None else flow.delivery_count
        # link-credit_snd := delivery-count_rcv + link-credit_rcv - delivery-count_snd
        self.credit = signed(counted + flow.link_credit - self.delivery_count)
        self.drain = flow.drain

    def tell(self) -> None:
        self.out.append(Flow(self.delivery_count, max(0, self.credit), self.drain, self.available))

    def _count(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & ALL
        self.credit -= 1

    def send(self, *, ends: bool) -> bool:
        """Send a frame, if there is a delivery and credit for it."""
        if not self.partial and (self.available == 0 or self.credit <= 0):
            return False
        first = not self.partial
        self.partial = not ends
        self.available -= first
        self.out.append(Transfer(first, ends))
        if first if self.counts_early else ends:
            self._count()
        if self.drain and self.credit == 0 and self.answers_all and not self.partial:
            self.tell()
        return True

    def throw_away(self) -> None:
        """Advance the delivery-count by the rest of the credit."""
        if self.drain and self.credit > 0 and not self.partial and not self.available:
            self.delivery_count = (self.delivery_count + self.credit) & ALL
            self.credit = 0
            self.tell()


class SpecReceiver:
    """The receiver's half of 2.6.7. It counts as its sender does."""

    def __init__(self, out: "deque[Message]", *, counts_early: bool) -> None:
        self.counts_early = counts_early
        self.delivery_count: int | None = None
        self.credit = 0
        self.drain = False
        self.out = out
        self.deliveries = 0
        self.partial = False
        # Deliveries beyond the credit, which are valid if the receiver took back credit that was already used.
        self.lowered = 0
        self.heard: list[Flow] = []

    def say(self, credit: int, *, drain: bool) -> None:
        if self.credit > credit:
            self.lowered += self.credit - credit
        self.credit = credit
        self.drain = drain
        self.out.append(Flow(self.delivery_count, credit, drain))

    def take(self, message: Message) -> None:
        match message:
            case Attach(initial):
                assert self.delivery_count is None
                self.delivery_count = initial
            case Transfer(first, last):
                assert self.delivery_count is not None
                self.deliveries += last
                self.partial = not last
                if first if self.counts_early else last:
                    self.delivery_count = (self.delivery_count + 1) & ALL
                    self._use(1)
            case Flow(delivery_count, _, _):
                assert self.delivery_count is not None
                assert delivery_count is not None
                self.heard.append(message)
                # The delivery-limit stays, because discarded credit is gone.
                advanced = signed(delivery_count - self.delivery_count)
                # A delivery in progress may not count yet.
                assert advanced >= -self.partial
                if advanced > 0:
                    self.delivery_count = delivery_count
                    self._use(advanced)

    def _use(self, count: int) -> None:
        self.credit -= count
        if self.credit < 0:
            self.lowered += self.credit
            self.credit = 0
            assert self.lowered >= 0, "more came than there was credit for"


class Link:
    """A link through a stand-in for the session, with a stand-in for the limiter.

    Each possible event is a method with a number up to MOST.
    """

    def __init__(self, initial: int, *, counts_early: bool, answers_all: bool, attached: bool) -> None:
        self.from_sender, self.to_sender = deque[Message](), deque[Message]()
        self.from_receiver, self.to_receiver = deque[Message](), deque[Message]()
        self.sender = SpecSender(initial, self.from_sender, counts_early=counts_early, answers_all=answers_all)
        self.receiver = SpecReceiver(self.from_receiver, counts_early=counts_early)
        self.limited = True
        self.refuses = False
        self.credit = Credit()
        # Forwarded deliveries, and whether the current one is swallowed.
        self.forwarded = 0
        self.swallowing = False
        # Permits taken from the limiter, and charged in addition.
        self.taken = 0
        self.charged = 0
        # The last delivery-limit sent to the sender, in its numbers, and whether the receiver lowered its own.
        self.told: int | None = None
        self.lowered = False
        if attached:
            self.sluice_takes_from_sender(1)
            self.receiver_takes(1)

    # The peers.

    def receiver_says(self, credit: int) -> None:
        """Send a flow with the same or more credit. Most receivers never lower it."""
        self.receiver.say(max(credit, self.receiver.credit), drain=False)

    def receiver_drains(self, credit: int) -> None:
        self.receiver.say(max(credit, self.receiver.credit), drain=True)

    def receiver_lowers(self, credit: int) -> None:
        if credit < self.receiver.credit:
            self.lowered = True
            self.receiver.say(credit, drain=False)

    def more_is_there(self, count: int) -> None:
        self.sender.available += count

    def sender_sends(self, count: int) -> None:
        for _ in range(count):
            if not self.sender.send(ends=True):
                return

    def sender_begins(self, _: int) -> None:
        if not self.sender.partial:
            self.sender.send(ends=False)

    def sender_tells(self, _: int) -> None:
        self.sender.tell()

    def sender_drains(self, _: int) -> None:
        self.sender.throw_away()

    # In flight.

    def sender_takes(self, count: int) -> None:
        for _ in range(min(count, len(self.to_sender))):
            flow = self.to_sender.popleft()
            assert isinstance(flow, Flow)
            self.sender.take(flow)
            if not self.lowered:
                assert self.sender.credit >= 0

    def receiver_takes(self, count: int) -> None:
        for _ in range(min(count, len(self.to_receiver))):
            self.receiver.take(self.to_receiver.popleft())

    def sluice_takes_from_sender(self, count: int) -> None:
        for _ in range(min(count, len(self.from_sender))):
            self._take_from_sender(self.from_sender.popleft(), refuse=self.refuses)

    def _take_from_sender(self, message: Message, *, refuse: bool) -> None:
        credit = self.credit
        match message:
            case Attach(initial):
                credit.attached(initial)
                self.to_receiver.append(message)
            case Transfer(first, last):
                if first:
                    credit.note_received()
                    assert credit.beyond(0) == 0 or self.lowered
                    self.swallowing = refuse
                    if refuse:
                        credit.swallowed()
                        self._tell()
                    else:
                        self.forwarded += 1
                credit.swallowing = self.swallowing and not last
                if not self.swallowing:
                    self.to_receiver.append(Transfer(first, last))
            case Flow(delivery_count, link_credit, drain, available):
                was_shaped, offset, sent = credit.shaped, credit.offset, credit.sent
                told = credit.flow_of_sender(delivery_count, link_credit, drain)
                # Credit is never discarded within a delivery.
                assert credit.sent == sent or not credit.swallowing
                if credit.offset < offset:
                    assert available == 0, "the receiver was told of a drain, and more is there"
                if told is None:
                    assert was_shaped
                    assert drain
                else:
                    said = Flow(told.delivery_count, told.credit, told.drain, available)
                    assert was_shaped or said == message
                    self.to_receiver.append(said)
        self._free()

    def sluice_takes_from_receiver(self, permits: int) -> None:
        if self.from_receiver:
            flow = self.from_receiver.popleft()
            assert isinstance(flow, Flow)
            self.credit.flow_of_receiver(flow.delivery_count, flow.link_credit, flow.drain)
            if self.limited:
                permits = min(permits, self.credit.wanted())
                self.taken += permits
                self.credit.grant(permits)
            else:
                self.credit.grant_all()
            self._tell(flow)

    # The limiter.

    def _free(self) -> None:
        if not self.limited:
            self.credit.grant_all()
        if self.credit.needs_flow:
            self._tell()

    def sluice_is_granted(self, permits: int) -> None:
        self._grant(min(permits, self.credit.wanted()))

    def sluice_is_granted_late(self, permits: int) -> None:
        """A late grant, when less may be wanted."""
        self._grant(permits)

    def _grant(self, permits: int) -> None:
        if self.limited and permits:
            self.taken += permits
            if self.credit.grant(permits):
                self._tell()

    def _tell(self, instead_of: Flow | None = None) -> None:
        credit = self.credit
        told = Flow(*credit.to_sender())
        assert not credit.needs_flow
        if instead_of is not None and not credit.shaped:
            assert told == instead_of
        self.to_sender.append(told)
        counted = self.sender.initial if told.delivery_count is None else told.delivery_count
        limit = (counted + told.link_credit) & ALL
        if self.told is not None and not self.lowered:
            assert signed(limit - self.told) >= 0, "granted was lowered"
        self.told = limit

    def rules_change(self, _: int) -> None:
        self.limited = not self.limited
        self._free()

    def refusals_begin_or_end(self, _: int) -> None:
        self.refuses = not self.refuses

    # Invariants.

    def check(self) -> None:
        credit = self.credit
        self.charged += credit.take_due()
        assert credit.granted <= credit.limit
        assert 0 <= credit.prepaid <= max(0, credit.granted - credit.sent)
        # Each forwarded delivery is paid for once, and permits paid in addition can still arrive.
        assert self.taken + self.charged == self.forwarded + credit.prepaid

    def all_arrives(self, _: int = 0) -> None:
        """Deliver everything in flight, and compare all views."""
        while self.from_sender or self.from_receiver or self.to_sender or self.to_receiver:
            self.sluice_takes_from_sender(MOST)
            self.sluice_takes_from_receiver(0)
            self.sender_takes(MOST)
            self.receiver_takes(MOST)
        credit, sender, receiver = self.credit, self.sender, self.receiver
        if receiver.delivery_count is None:
            return
        in_hand = sender.partial and not sender.counts_early
        assert (credit.sent + credit.offset - in_hand - sender.delivery_count) & ALL == 0
        assert sender.credit - in_hand == credit.granted - credit.sent
        forwarded_in_hand = sender.partial and not self.swallowing
        uncounted = forwarded_in_hand and not sender.counts_early
        assert (credit.sent - uncounted - receiver.delivery_count) & ALL == 0
        assert signed(receiver.delivery_count + receiver.credit - credit.limit) == 0 or self.lowered
        assert receiver.deliveries == self.forwarded - forwarded_in_hand

    def all_is_used_or_drained(self, credit: int = 1) -> None:
        """Grant everything wanted: the receiver sees the end of its drain."""
        self.receiver.say(max(credit, 1, self.receiver.credit), drain=True)
        refused, self.refuses = self.refuses, False
        while True:
            self.all_arrives()
            if self.sender.partial:
                self.sender.send(ends=True)
                continue
            self.sender_sends(self.sender.available)
            self.sender.throw_away()
            if not self.from_sender:
                if not self.limited or not self.credit.wanted():
                    break
                self.sluice_is_granted(MOST)
        if not self.lowered:
            assert self.receiver.credit == 0, "it drained, and was not told"
            assert self.credit.granted == self.credit.limit == self.credit.sent
        self.refuses = refused

    def end(self) -> None:
        self.all_is_used_or_drained()
        self.check()
        self.charged += self.credit.repay()
        assert self.credit.prepaid == 0
        assert self.taken + self.charged == self.forwarded


Action = Callable[[Link, int], None]

MOST = 9
SELDOM: list[Action] = [
    Link.rules_change,
    Link.refusals_begin_or_end,
    Link.all_arrives,
    Link.all_is_used_or_drained,
    Link.sluice_is_granted_late,
    Link.sender_tells,
]
OFTEN: list[Action] = [
    Link.receiver_says,
    Link.receiver_drains,
    Link.more_is_there,
    Link.sender_begins,
    Link.sender_drains,
    Link.sender_sends,
    Link.sender_takes,
    Link.receiver_takes,
    Link.sluice_takes_from_sender,
    Link.sluice_takes_from_receiver,
    Link.sluice_is_granted,
]
INITIAL = [0, 3, (1 << 31) - 4, 1 << 31, ALL - 12, ALL - 1, ALL]
flags = st.booleans()


@given(
    st.sampled_from(INITIAL),
    flags,
    flags,
    flags,
    st.lists(
        st.tuples(st.sampled_from([*SELDOM, Link.receiver_lowers, *3 * OFTEN]), st.integers(0, MOST)), max_size=150
    ),
)
def test_each_sides_credit_is_as_expected(
    initial: int,
    counts_early: bool,  # noqa: FBT001 - drawn
    answers_all: bool,  # noqa: FBT001
    attached: bool,  # noqa: FBT001
    actions: list[tuple[Action, int]],
) -> None:
    link = Link(initial, counts_early=counts_early, answers_all=answers_all, attached=attached)
    for action, number in actions:
        action(link, number)
        link.check()
    link.end()


@pytest.mark.parametrize("lowers", [False, True])
def test_each_sides_credit_is_as_expected_in_long_runs(lowers: bool) -> None:  # noqa: FBT001
    actions = [*SELDOM, *([Link.receiver_lowers] if lowers else []), *4 * OFTEN]
    for seed in range(SEEDS):
        random = Random(seed)
        link = Link(
            random.choice(INITIAL),
            counts_early=random.random() < 0.5,
            answers_all=random.random() < 0.5,
            attached=random.random() < 0.5,
        )
        try:
            for _ in range(300):
                random.choice(actions)(link, random.randint(0, MOST))
                link.check()
            link.end()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
