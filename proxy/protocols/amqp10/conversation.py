"""One session of a connection (AMQP 1.0, 2.5): its channels, handles, links and numbers, as both peers use them.

Sessions and links have two halves, one for each peer, which begins, attaches, detaches and ends its own:

=========== ================== ===================================================================================
half        its peer sends     then
=========== ================== ===================================================================================
session     begin              its channel is the session's: a new one's, or the one it names (``remote-channel``)
            end                its channel is free. All links have ended
link        attach             its handle is the link's: a new one's, or of the first that the other peer has attached
                               with the same name and direction, and that waits for an answer
            detach             its handle is free. The link has ended; deliveries sent before are forwarded
=========== ================== ===================================================================================

So ends and detaches may cross, and a name may be attached again before the other peer has detached it. A link that
another session of the same client steals is one that the broker detaches.

``take_`` methods read frames and return what becomes of them, a ``Step``, which counts when it is applied.

**Kept back** are a session's frames behind a delivery that cannot be decided before more of it has come.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from proxy.deciding.batch import Side
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.links import ASKED, PASSES, SWALLOWED, UNDECIDED, Delivery, Link, Shared
from proxy.protocols.amqp10.parts import HalfPart, Outlet, Piece, SessionPart, Step
from proxy.protocols.amqp10.stream import Stream
from proxy.protocols.amqp10.wire import Frame, Malformed, Performative
from proxy.protocols.base import Buffer, Close

MAX_LINKS: Final = 16384  # of all sessions of a connection
_MAX_NAME_BYTES: Final = 64  # longer names are known by a digest


Key = tuple[bytes, Side]


@dataclass(eq=False, slots=True)
class Half(HalfPart):
    """One peer's half of a session."""

    first_id: int = 0  # of its transfers, by its begin
    told: bool = False  # its begin was forwarded, and its end was not
    ended: bool = False
    handles: dict[int, Link] = field(default_factory=dict)
    awaited: dict[Key, deque[Link]] = field(default_factory=dict)  # links that only the other peer has attached
    senders: int = 0  # how many links it sends on
    deciders: int = 0  # on how many of these all deliveries are decided
    deciding: int = 0  # how many of its deliveries are looked at and not forwarded completely
    undecided: dict[Delivery, None] = field(default_factory=dict)  # its deliveries that wait for more of them
    kept_bytes: int = 0  # since the first of these, at most most_kept_bytes
    kept_transfers: int = 0
    most_kept_bytes: int = 0


class Conversation:
    """One session; ``shared`` is common to all links of the connection."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.halves: dict[Side, Half] = {side: Half() for side in Side}
        self.links: dict[Link, None] = {}

    def begin(self, side: Side, channel: int, performative: Performative) -> Step:
        half = self.halves[side]
        half.channel = channel
        next_outgoing_id, incoming_window, outgoing_window = map(performative.uint, (1, 2, 3))
        if next_outgoing_id is None or incoming_window is None or outgoing_window is None:
            raise Malformed("a begin without next-outgoing-id or windows")
        numbers = next_outgoing_id, incoming_window, outgoing_window

        def begun() -> None:
            half.told = True
            half.first_id = numbers[0]
            half.transfers.begun(numbers[0], numbers[2])
            self.halves[side.other].transfers.flow_of_receiver(None, numbers[1])

        return Mark(self, side, begun)

    def end(self, side: Side) -> Step:
        half = self.halves[side]
        half.ended = True
        self.pass_undecided(side)
        links, half.handles = half.handles, {}
        for link in links.values():
            if link.sender is side:
                self._set_delivery(link, None)

        def ended() -> None:
            half.told = False
            self.end_links()

        return Mark(self, side, ended)

    def end_links(self) -> None:
        links, self.links = self.links, {}
        for link in links:
            self._end_link(link)
        self.halves[Side.CLIENT].ids.watched = None  # its answer does not come any more

    def attach(self, side: Side, performative: Performative) -> tuple[Link, Step]:
        attached = wire.read_attach(performative)
        half = self.halves[side]
        if attached.handle in half.handles:
            raise Malformed(f"an attach with handle {attached.handle}, which is in use")
        sender = side.other if attached.receiver else side
        name = attached.name
        key = (name if len(name) <= _MAX_NAME_BYTES else blake2b(name, digest_size=32).digest() + b"\0", sender)
        waiting = half.awaited.get(key)
        if waiting:
            link = waiting.popleft()
            if not waiting:
                del half.awaited[key]
        else:
            shared = self._shared
            if shared.links >= MAX_LINKS:
                raise Close("too_many_links", f"the {side.value} attached more than {MAX_LINKS} links")
            shared.links += 1
            link = Link(self, attached, side, shared)
            self.links[link] = None
            self.halves[sender].senders += 1
            other = self.halves[side.other]
            if not other.ended:
                other.awaited.setdefault(key, deque()).append(link)
        link.handles[side] = attached.handle
        half.handles[attached.handle] = link
        before = link.decides
        link.take_attach(side, attached)
        self._count_decider(link, before=before)

        def told() -> None:
            link.told.add(side)
            if sender is side:
                link.credit.attached(attached.initial_delivery_count or 0)

        return link, Mark(self, side, told)

    def _count_decider(self, link: Link, *, before: bool) -> None:
        if link.decides is not before:
            self.halves[link.sender].deciders += 1 if link.decides else -1

    def ask_terms(self) -> None:
        for link in self.links:
            self._ask_terms(link, link.ask_terms)

    def turn(self, link: Link) -> None:
        """Have a link turn (see ``links``)."""
        self._ask_terms(link, link.turn)

    def _ask_terms(self, link: Link, ask: Callable[[], None]) -> None:
        before = link.decides
        ask()
        self._count_decider(link, before=before)

    def detach(self, side: Side, performative: Performative) -> Step:
        half = self.halves[side]
        handle = performative.uint(0)
        link = None if handle is None else half.handles.pop(handle, None)
        if link is None:
            raise Malformed(f"a detach of handle {handle}, which is not attached")
        if link.sender is side and link.delivery is not None:
            self._pass_undecided(half, [link.delivery])
            self._set_delivery(link, None)

        def detached() -> None:
            link.told.discard(side)
            link.handles[side] = None
            self.links.pop(link, None)
            self._end_link(link)

        return Mark(self, side, detached)

    def _end_link(self, link: Link) -> None:
        if link.gone:
            return
        if link.decides:
            self.halves[link.sender].deciders -= 1
        link.end()
        self._shared.links -= 1
        half = self.halves[link.sender]
        half.senders -= 1
        if not half.senders:
            half.ids.forget_unsettled()
        elif link.sender is Side.CLIENT:
            half.ids.watched = None  # a watched delivery of this link gets no answer any more

    def flow(self, side: Side, performative: Performative) -> Step:
        """Take a flow of either peer. Its credit counts at once, so that more can be asked for."""
        if None in map(performative.uint, (1, 2, 3)):
            raise Malformed("a flow without next-outgoing-id or windows")
        handle = performative.uint(4)
        link = None if handle is None else self.halves[side].handles.get(handle)
        # A malformed one must have no effect, so all of it is read first.
        step = FlowStep(self, side, link, performative)
        if link is not None and link.sender is not side:
            link.flow_of_receiver(performative.uint(5), performative.uint(6), performative.boolean(8))
        return step

    def tell(self, link: Link, outlet: Outlet) -> None:
        receiver = outlet.side
        half = self.halves[receiver]
        handle = link.handles[receiver]
        if link.flows and not link.credit.shaped and link.credit.granted == link.credit.limit:
            # The receiver's own flow tells it soon.
            return
        if handle is None or receiver not in link.told or not half.told:
            return
        self._tell_flow(outlet, (handle, *link.credit.to_sender()))

    def count_short(self, side: Side) -> None:
        self._shared.short[self, side] = None

    def tell_window(self, outlet: Outlet) -> bool:
        """Tell the sender how much of its window was swallowed, unless it can send without. Return whether it knows."""
        half, other = self.halves[outlet.side], self.halves[outlet.side.other]
        if not other.transfers.to_tell or not half.told:
            return True
        if other.transfers.left():
            # A flow of a link is likely to tell it.
            return False
        self._tell_flow(outlet)
        return True

    def _tell_flow(self, outlet: Outlet, link: tuple[int, int | None, int, bool] | None = None) -> None:
        half, other = self.halves[outlet.side], self.halves[outlet.side.other]
        assert half.channel is not None  # noqa: S101 - it has begun
        incoming_id = other.transfers.incoming_id()
        if incoming_id is None and other.told:
            incoming_id = other.first_id  # the receiver has not told it yet, but knows it
        sends, window = half.transfers, other.transfers.incoming_window
        frame = wire.flow_frame(
            half.channel, incoming_id, window, sends.outgoing_id(), sends.outgoing_window, link=link
        )
        outlet.insert(frame)

    def tell_rejected(self, number: int, why: str, outlet: Outlet) -> None:
        half = self.halves[outlet.side]
        if half.channel is not None and half.told:
            outlet.insert(wire.rejection_frame(half.channel, number, wire.RESOURCE_LIMIT_EXCEEDED, why))

    def is_plain(self, side: Side) -> bool:
        half = self.halves[side]
        return not half.deciders and not half.deciding and half.ids.plain and not half.kept

    def is_plain_disposition(self, side: Side, *, receiver: bool) -> bool:
        half = self.halves[side]
        # Numbers change only for later deliveries of the other peer.
        ids = self.halves[side.other].ids if receiver else half.ids
        if not ids.plain or half.kept or half.deciding:
            return False
        return receiver or not half.deciders

    def transfer(
        self, stream: Stream, frame: Frame, performative: Performative, begins: int, data: Buffer
    ) -> "tuple[Delivery | None, Step | None]":
        """Take a transfer, as far as it has come.

        Returns:
            The delivery, if ``payload`` must be called with the rest, and what becomes of the frame.
        """
        side = stream.side
        half = self.halves[side]
        handle, number = performative.uint(0), performative.uint(1)
        link = None if handle is None else half.handles.get(handle)
        if link is None or link.sender is not side:
            raise Malformed(f"a transfer with handle {handle}, on which it does not send")
        settled = performative.boolean(4) or link.gone  # nobody answers deliveries on a link that has ended
        # RabbitMQ delivers an aborted delivery as far as it came, so it counts like any other.
        aborted = performative.boolean(9)
        is_last = aborted or not performative.boolean(5)
        delivery = link.delivery
        is_first = delivery is None
        size_bytes, payload = frame.size, data[begins:]
        if delivery is None:
            if number is None:
                raise Malformed("a delivery without a delivery-id")
            link.begins()
            copies = link.copies and link.may_name_copies(payload, is_last=is_last and len(data) == size_bytes)
            plain = not copies and (link.most_bytes is None or size_bytes <= link.most_bytes)
            if is_last and plain and self.is_plain(side):
                # The usual case.
                link.completed(size_bytes)
                stream.run.add_transfer(self, link, number, settled=settled)
                if aborted:
                    stream.run.add_aborted(self, number)
                return None, None
            delivery = Delivery(link, number, settled=settled, renumbered=number)
            if link.looks_at(delivery, names_copies=copies):
                self._look_at(half, delivery)
        elif number is not None and number != delivery.number:
            raise Malformed(f"delivery {number} on a link within delivery {delivery.number}")
        plain = self.is_plain(side)
        delivery.settled = delivery.settled or settled
        delivery.size_bytes += size_bytes
        delivery.complete = is_last
        self._set_delivery(link, None if is_last else delivery)
        before = delivery.fate
        self._decide(half, delivery, payload, is_last=is_last and len(data) == size_bytes)
        self._kept(half, len(data), 1)
        if is_last and before == PASSES:
            link.finish(delivery)
        if plain:
            stream.run.add_transfer(self, link if is_first else None, delivery.number, settled=settled)
            if aborted:
                stream.run.add_aborted(self, delivery.number)
            return None, None
        most_bytes = stream.most_frame_bytes
        return delivery, TransferStep(
            self, delivery, frame, performative, begins, most_bytes=most_bytes, is_first=is_first
        )

    def payload(self, side: Side, delivery: Delivery, payload: Buffer, *, is_last: bool) -> Step:
        half = self.halves[side]
        self._decide(half, delivery, payload, is_last=is_last and delivery.complete)
        self._kept(half, len(payload))
        return PayloadStep(self, side, delivery)

    def time(self, number: int) -> None:
        shared = self._shared
        if shared.timed is None:
            ids = self.halves[Side.CLIENT].ids
            ids.watch(number)
            shared.timed = ids, shared.now_ns

    def _set_delivery(self, link: Link, delivery: Delivery | None) -> None:
        if link.sender is Side.CLIENT:
            self._shared.under_way += (delivery is not None) - (link.delivery is not None)
        link.delivery = delivery

    def _look_at(self, half: Half, delivery: Delivery) -> None:
        delivery.fate = UNDECIDED
        delivery.looked_at = True
        half.undecided[delivery] = None
        half.deciding += 1
        half.most_kept_bytes = max(half.most_kept_bytes, delivery.link.keeps_bytes)
        self._shared.keeping[self] = None

    def _decide(self, half: Half, delivery: Delivery, payload: Buffer, *, is_last: bool) -> None:
        if delivery.fate == UNDECIDED:
            delivery.link.decide(delivery, payload, is_last=is_last, must=False)
            if delivery.fate != UNDECIDED:
                del half.undecided[delivery]
                self._keep_no_more(half)
                self._shared.unblocked[delivery.link.sender][self] = None
        elif delivery.learns:
            delivery.link.learn(delivery, payload, is_last=is_last)
        elif delivery.fate == ASKED and delivery.request is not None:
            # Until it is decided, the request follows what is known.
            delivery.request.size_bytes = delivery.asked_bytes = delivery.size_bytes

    def _kept(self, half: Half, size_bytes: int, transfers: int = 0) -> None:
        if not half.undecided:
            return
        half.kept_transfers += transfers
        half.kept_bytes += size_bytes
        if not self._shared.keep(size_bytes) or half.kept_bytes > half.most_kept_bytes:
            self._decide_now(half)

    def _keep_no_more(self, half: Half) -> None:
        if not half.undecided:
            self._shared.keep(-half.kept_bytes)
            half.kept_bytes = half.kept_transfers = half.most_kept_bytes = 0
            if not any(each.undecided for each in self.halves.values()):
                self._shared.keeping.pop(self, None)

    def decide_now(self) -> None:
        for half in self.halves.values():
            self._decide_now(half)

    def _decide_now(self, half: Half) -> None:
        undecided, half.undecided = half.undecided, {}
        for delivery in undecided:
            delivery.link.decide(delivery, b"", is_last=False, must=True)
            self._shared.unblocked[delivery.link.sender][self] = None
        self._keep_no_more(half)

    def look_at_window(self, side: Side) -> None:
        """Have deliveries decided of which no more can come before what is kept back is forwarded."""
        half = self.halves[side]
        if half.undecided and half.transfers.left() <= half.kept_transfers:
            self._shared.forced[self] = None

    def pass_undecided(self, side: Side) -> None:
        half = self.halves[side]
        self._pass_undecided(half, list(half.undecided))

    def _pass_undecided(self, half: Half, deliveries: list[Delivery]) -> None:
        """Forward deliveries that will never be complete, and so never be messages."""
        for delivery in deliveries:
            if delivery.fate == UNDECIDED:
                del half.undecided[delivery]
                delivery.fate = PASSES
                self._shared.unblocked[delivery.link.sender][self] = None
        self._keep_no_more(half)

    def keep(self, piece: Piece) -> None:
        copy = bytes(piece.buffer[piece.start : piece.stop])
        self.halves[piece.step.side].kept.append(Piece(copy, 0, len(copy), piece.step, piece.is_last))

    def reject(self, delivery: Delivery) -> None:
        shared, link = self._shared, delivery.link
        shared.to_tell[link] = None
        link.falls_due()
        if not delivery.settled:
            shared.rejected.append(delivery)

    def forget(self) -> None:
        for half in self.halves.values():
            half.handles.clear()
            half.awaited.clear()
            half.kept.clear()
            half.undecided.clear()
        self.links.clear()


class Mark(Step):
    """A frame that is forwarded unchanged, or with other bytes in its place, and what follows from that."""

    __slots__ = ("_instead", "_then")

    def __init__(
        self,
        session: Conversation | None,
        side: Side,
        then: Callable[[], None] = lambda: None,
        *,
        instead: bytes | None = None,
    ) -> None:
        self.session = session
        self.side = side
        self._then = then
        self._instead = instead

    def apply(self, piece: Piece) -> bytes | None:
        del piece
        self._then()
        return self._instead


class FlowStep(Step):
    """A flow, of a session or of one of its links."""

    __slots__ = ("_drains", "_link", "_numbers", "_performative")

    def __init__(self, session: Conversation, side: Side, link: Link | None, performative: Performative) -> None:
        self.session: Conversation = session
        self.side = side
        self._link = link
        self._performative = performative
        # By the fields' numbers.
        self._numbers = [performative.uint(number) for number in range(8)]
        self._drains = performative.boolean(8)
        if link is not None:
            link.flows += 1

    def apply(self, piece: Piece) -> bytes | None:
        del piece
        side, link = self.side, self._link
        if link is not None:
            link.flows -= 1
        changes = translate_flow(self.session, side, link, self._numbers, drains=self._drains)
        if not changes:
            return None
        channel = self.session.halves[side].channel
        assert channel is not None  # noqa: S101 - it has begun
        return wire.frame(channel, self._performative.replaced(changes))


def translate_flow(
    session: Conversation, side: Side, link: Link | None, numbers: Sequence[int | None], *, drains: bool
) -> dict[int, bytes]:
    """Take a flow of a session, or of one of its links, as it is forwarded. Return which fields change."""
    half, other = session.halves[side], session.halves[side.other]
    incoming_id, incoming_window, outgoing_id, outgoing_window, _, delivery_count, credit, available = numbers
    to_incoming_id = other.transfers.flow_of_receiver(incoming_id, incoming_window or 0)
    if other.undecided:
        session.look_at_window(side.other)
    to_outgoing_id = half.transfers.flow_of_sender(outgoing_id or 0, outgoing_window or 0)
    changes: dict[int, bytes] = {}
    if to_incoming_id != incoming_id:
        changes[0] = wire.optional_uint(to_incoming_id)
    if to_outgoing_id != outgoing_id:
        changes[2] = wire.uint(to_outgoing_id)
    if link is None or (link.gone and not link.was_limited):
        # A link that has ended is granted nothing any more, though nothing limits it.
        return changes
    if link.sender is not side:
        told = link.credit.to_sender()
        # Several flows may have been read since, so the first may ask for more than is granted now.
        if not link.was_limited:
            return changes
    else:
        answer = link.flow_of_sender(delivery_count, credit, available, drains)
        if answer is None:
            # It still tells the session's window (2.5.6), and may ask for an answer.
            return changes | dict.fromkeys(range(4, 9), wire.NULL)
        if not link.credit.shaped:
            return changes
        told = answer
    if told.delivery_count != delivery_count:
        changes[5] = wire.optional_uint(told.delivery_count)
    if told.credit != (credit or 0):
        changes[6] = wire.uint(told.credit)
    if told.drain is not drains:
        changes[8] = wire.boolean(told.drain)
    return changes


class TransferStep(Step):
    """A transfer of a session with deliveries that are looked at or were swallowed."""

    __slots__ = ("_begins", "_delivery", "_frame", "_is_first", "_is_last", "_most_bytes", "_performative")

    def __init__(
        self,
        session: Conversation,
        delivery: Delivery,
        frame: Frame,
        performative: Performative,
        begins: int,
        *,
        most_bytes: int,
        is_first: bool,
    ) -> None:
        self.session: Conversation = session
        self.side = delivery.link.sender
        self._delivery = delivery
        self._frame = frame
        self._performative = performative
        self._begins = begins
        self._most_bytes = most_bytes
        self._is_first = is_first
        self._is_last = delivery.complete

    @property
    def is_blocked(self) -> bool:
        return self._delivery.fate in {UNDECIDED, ASKED}

    def apply(self, piece: Piece) -> bytes | None:
        delivery, session = self._delivery, self.session
        half = session.halves[self.side]
        link, ids = delivery.link, half.ids
        if self._is_first:
            delivery.paid_for = link.credit_for
            link.came(1)
        if self._is_last and delivery.looked_at:
            half.deciding -= 1
        if delivery.fate == SWALLOWED:
            half.transfers.swallowed()
            session.count_short(self.side)
            if self._is_first:
                ids.swallow(delivery.number)
                link.swallowed()
            link.credit.swallowing = not self._is_last
            if self._is_last:
                session.reject(delivery)
            return b""
        half.transfers.came()
        number = self._performative.uint(1)
        if self._is_first:
            # Once it is settled nobody else remembers the number.
            delivery.renumbered = ids.came(delivery.number, settled=delivery.settled)
        if self._performative.boolean(9):
            ids.aborted(delivery.number)
        elif self._is_last and not delivery.settled and self.side is Side.CLIENT:
            session.time(delivery.number)
        if number is None:
            return None
        renumbered = delivery.renumbered
        if renumbered == number:
            return None
        frame, payload = self._frame, bytes(piece.buffer[piece.start + self._begins : piece.stop])
        payload_bytes = frame.size - self._begins
        start, transfers = wire.transfer_start(
            frame.channel, self._performative, renumbered, payload_bytes, self._most_bytes
        )
        half.transfers.added(transfers - 1)
        return start + payload


class PayloadStep(Step):
    """More of a long transfer."""

    __slots__ = ("_delivery",)

    def __init__(self, session: Conversation, side: Side, delivery: Delivery) -> None:
        self.session = session
        self.side = side
        self._delivery = delivery

    @property
    def is_blocked(self) -> bool:
        return self._delivery.fate in {UNDECIDED, ASKED}

    def apply(self, piece: Piece) -> bytes | None:
        del piece
        return b"" if self._delivery.fate == SWALLOWED else None


class DispositionStep(Step):
    """A disposition of a session in which deliveries were, or may be, swallowed."""

    __slots__ = ("_channel", "_most_bytes", "_performative", "_range", "_receiver", "_settles")

    def __init__(
        self,
        session: SessionPart[Link],
        side: Side,
        channel: int,
        performative: Performative,
        range_: tuple[int, int],
        *,
        most_bytes: int,
    ) -> None:
        self._most_bytes = most_bytes
        self.session: SessionPart[Link] = session
        self.side = side
        self._channel = channel
        self._performative = performative
        self._range = range_
        self._receiver, self._settles = performative.boolean(0), performative.boolean(3)

    def apply(self, piece: Piece) -> bytes | None:
        del piece
        session = self.session
        first, last = self._range
        performative = self._performative
        ranges = self._ranges()
        if self._settles:
            if self._receiver:
                ids = session.halves[self.side.other].ids
                for each in ranges:
                    ids.settled(*each)
            else:
                session.halves[self.side].ids.settled(first, last)
        if ranges == [self._range]:
            return None
        return b"".join(
            wire.disposition_of(self._channel, performative, begin, stop, self._most_bytes) for begin, stop in ranges
        )

    def _ranges(self) -> list[tuple[int, int]]:
        """Return its deliveries in the other peer's numbers, cut where deliveries were swallowed."""
        halves, side = self.session.halves, self.side
        if self._receiver:
            # As many ranges as it takes: each has a delivery that the broker answers.
            return halves[side.other].ids.back_ranges(*self._range)
        return halves[side].ids.forward_ranges(*self._range)
