"""A session (AMQP 1.0, 2.5), and the channels, handles, links and numbers that each peer uses in it.

Each peer begins and ends its half of a session, and attaches and detaches its half of a link. A begin with a
``remote-channel`` answers the begin on that channel. An attach answers the other peer's oldest unanswered attach that
has the same name and direction. Ends and detaches may cross, and a peer may attach a name again before the other peer
has detached it.

Methods that read a frame return a ``Step``. The frame takes effect when the step is applied.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Final

from proxy.deciding.batch import Side
from proxy.protocols.amqp.client_info import shown
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.credit import Credit
from proxy.protocols.amqp10.links import ASKED, PASSES, SWALLOWED, UNDECIDED, Delivery, Half, Link, SessionPart, Shared
from proxy.protocols.amqp10.stream import Step, Stream
from proxy.protocols.amqp10.wire import Frame, Malformed, Performative
from proxy.protocols.base import Buffer, Close

MAX_LINKS: Final = 16384  # per connection
_MAX_NAME_BYTES: Final = 64


class Conversation:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.halves: dict[Side, Half] = {side: Half() for side in Side}
        self.links: dict[Link, None] = {}

    def begin(self, side: Side, channel: int, performative: Performative) -> Step:
        half = self.halves[side]
        half.channel = channel
        next_outgoing_id, incoming_window, outgoing_window = map(performative.uint, (1, 2, 3))
        if next_outgoing_id is None or incoming_window is None or outgoing_window is None:
            raise Malformed("a begin that lacks incoming-window, next-outgoing-id or outgoing-window")
        numbers = next_outgoing_id, incoming_window, outgoing_window

        def begun(data: Buffer) -> Buffer:
            half.announced = True
            half.first_id = numbers[0]
            half.transfers.begun(numbers[0], numbers[2])
            self.halves[side.other].transfers.flow_of_receiver(None, numbers[1])
            return data

        return Step(begun, self)

    def end(self, side: Side) -> Step:
        half = self.halves[side]
        half.ended = True
        self.pass_undecided(side)
        links, half.handles = half.handles, {}
        for link in links.values():
            if link.sender is side:
                self._set_delivery(link, None)

        def ended(data: Buffer) -> Buffer:
            half.announced = False
            self.end_links()
            return data

        return Step(ended, self)

    def end_links(self) -> None:
        links, self.links = self.links, {}
        for link in links:
            self._end_link(link)
        self.halves[Side.CLIENT].ids.watched = None

    def attach(self, side: Side, performative: Performative) -> tuple[Link, Step]:
        attached = wire.read_attach(performative)
        half = self.halves[side]
        if attached.handle in half.handles:
            raise Malformed(f"an attach with handle {attached.handle}, which is already in use")
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
            credit = Credit(None if attached.receiver else attached.initial_delivery_count or 0)
            link = Link(self, shared, sender, credit, shown(name))
            self.links[link] = None
            self.halves[sender].senders += 1
            other = self.halves[side.other]
            if not other.ended:
                other.awaited.setdefault(key, deque()).append(link)
        link.handles[side] = attached.handle
        half.handles[attached.handle] = link
        link.take_attach(side, attached)

        def announced(data: Buffer) -> Buffer:
            link.announced.add(side)
            if sender is side:
                link.credit.attached(attached.initial_delivery_count or 0)
            return data

        return link, Step(announced, self)

    def detach(self, side: Side, performative: Performative) -> Step:
        half = self.halves[side]
        handle = performative.uint(0)
        link = None if handle is None else half.handles.pop(handle, None)
        if link is None:
            raise Malformed(f"a detach with handle {handle}, which no link uses")
        if link.sender is side:
            self.pass_undecided(side, link)
            self._set_delivery(link, None)

        def detached(data: Buffer) -> Buffer:
            link.announced.discard(side)
            link.handles[side] = None
            self.links.pop(link, None)
            self._end_link(link)
            return data

        return Step(detached, self)

    def _end_link(self, link: Link) -> None:
        if link.gone:
            return
        link.end()
        self._shared.links -= 1
        half = self.halves[link.sender]
        half.senders -= 1
        if not half.senders:
            half.ids.forget_unsettled()
        elif link.sender is Side.CLIENT:
            half.ids.watched = None

    def flow(self, side: Side, channel: int, performative: Performative) -> Step:
        """Read a flow. Its credit takes effect immediately, before the step is applied."""
        # Read all fields first, because a malformed flow must have no effect.
        numbers = [performative.uint(number) for number in range(7)]
        drains = performative.boolean(8)
        if None in numbers[1:4]:
            raise Malformed("a flow that lacks incoming-window, next-outgoing-id or outgoing-window")
        link = None if numbers[4] is None else self.halves[side].handles.get(numbers[4])
        if link is not None:
            link.flows += 1
            if link.sender is not side:
                link.flow_of_receiver(numbers[5], numbers[6], drains)

        def flowed(data: Buffer) -> Buffer:
            if link is not None:
                link.flows -= 1
            changes = translate_flow(self, side, link, numbers, drains=drains)
            return wire.frame(channel, performative.replaced(changes)) if changes else data

        return Step(flowed, self)

    def transfer(
        self, stream: Stream, frame: Frame, performative: Performative, begins: int, data: Buffer
    ) -> tuple[Delivery, Step]:
        """Read a transfer. If the frame is incomplete, the caller must pass the rest of it to ``payload``."""
        side = stream.side
        half = self.halves[side]
        handle, number = performative.uint(0), performative.uint(1)
        link = None if handle is None else half.handles.get(handle)
        if link is None or link.sender is not side:
            raise Malformed(f"a transfer with handle {handle}, which no sending link uses")
        settled = performative.boolean(4) or link.gone  # deliveries on an ended link are not answered
        # An aborted delivery counts as complete, because RabbitMQ delivers the part that it has received.
        is_aborted = performative.boolean(9)
        is_last = is_aborted or not performative.boolean(5)
        payload, is_whole = data[begins:], is_last and len(data) == frame.size
        delivery = link.delivery
        is_first = delivery is None
        if delivery is None:
            if number is None:
                raise Malformed("a new delivery that lacks a delivery-id")
            link.begins()
            delivery = Delivery(link, number, settled=settled, renumbered=number)
            if link.looks_at(delivery, payload, is_last=is_whole):
                delivery.fate = UNDECIDED
                half.undecided[delivery] = None
                half.max_kept_bytes = max(half.max_kept_bytes, link.keeps_bytes)
                self._shared.keeping[self] = None
        elif number is not None and number != delivery.number:
            raise Malformed(f"delivery {number} before delivery {delivery.number} on the same link was complete")
        delivery.settled = delivery.settled or settled
        delivery.size_bytes += frame.size
        delivery.complete = is_last
        self._set_delivery(link, None if is_last else delivery)
        before = delivery.fate
        self._decide(half, delivery, payload, is_last=is_whole)
        self._kept(half, len(data), 1)
        if is_last and before == PASSES:
            link.finish(delivery)

        def transferred(data: Buffer) -> Buffer:
            if is_first:
                delivery.paid_for = link.credit_for
                link.note_received(1)
            if delivery.fate == SWALLOWED:
                self._swallow(half, delivery, is_first=is_first, is_last=is_last)
                return b""
            half.transfers.note_received()
            if side is Side.BROKER:
                return data
            if is_first:
                # Keep the number, because ``ids`` forgets it once the delivery is settled.
                delivery.renumbered = half.ids.note_received(delivery.number, settled=delivery.settled)
            if is_aborted:
                half.ids.aborted(delivery.number)
            elif is_last and not delivery.settled:
                self._time(delivery.number)
            if number is None or delivery.renumbered == number:
                return data
            payload_bytes, max_bytes = frame.size - begins, stream.max_frame_bytes
            start, transfers = wire.transfer_start(
                frame.channel, performative, delivery.renumbered, payload_bytes, max_bytes
            )
            half.transfers.added(transfers - 1)
            return start + bytes(data[begins:])

        return delivery, Step(transferred, self, partial(_is_open, delivery))

    def payload(self, side: Side, delivery: Delivery, payload: Buffer, *, is_last: bool) -> Step:
        half = self.halves[side]
        self._decide(half, delivery, payload, is_last=is_last and delivery.complete)
        self._kept(half, len(payload))
        return Step(lambda data: b"" if delivery.fate == SWALLOWED else data, self, partial(_is_open, delivery))

    def disposition(self, stream: Stream, channel: int, performative: Performative) -> Step:
        receiver, first, last = performative.boolean(0), performative.uint(1), performative.uint(2)
        if first is None:
            raise Malformed("a disposition that lacks the first delivery-id")
        range_ = first, first if last is None else last
        settles, max_bytes = performative.boolean(3), stream.max_frame_bytes
        ids = self.halves[stream.side.other if receiver else stream.side].ids

        def disposed(data: Buffer) -> Buffer:
            # Split ranges at swallowed deliveries. Each part contains a forwarded delivery.
            ranges = ids.back_ranges(*range_) if receiver else ids.forward_ranges(*range_)
            for each in (ranges if receiver else [range_]) if settles else ():
                settled = ids.settled(*each)
                if receiver and stream.side is Side.BROKER:
                    # Count released and rejected deliveries, too. They do not mean that the broker is busy.
                    self._shared.context.signals.answers += settled
            if ranges == [range_]:
                return data
            return b"".join(wire.disposition_of(channel, performative, *each, max_bytes) for each in ranges)

        return Step(disposed, self)

    def _time(self, number: int) -> None:
        shared = self._shared
        if shared.timed is None:
            ids = self.halves[Side.CLIENT].ids
            ids.watch(number)
            shared.timed = self, shared.now_ns

    def _swallow(self, half: Half, delivery: Delivery, *, is_first: bool, is_last: bool) -> None:
        shared, link = self._shared, delivery.link
        half.transfers.swallowed()
        shared.short[self, link.sender] = None
        if is_first:
            half.ids.swallow(delivery.number)
            link.swallowed()
        link.credit.swallowing = not is_last
        if is_last:
            shared.needs_flow[link] = None
            link.schedule_charge()
            if not delivery.settled:
                shared.rejected.append(delivery)

    def _set_delivery(self, link: Link, delivery: Delivery | None) -> None:
        if link.sender is Side.CLIENT:
            self._shared.in_flight += (delivery is not None) - (link.delivery is not None)
        link.delivery = delivery

    def _decide(self, half: Half, delivery: Delivery, payload: Buffer, *, is_last: bool) -> None:
        if delivery.fate == UNDECIDED:
            delivery.link.decide(delivery, payload, is_last=is_last, must=False)
            if delivery.fate != UNDECIDED:
                del half.undecided[delivery]
                self._release_kept(half)
        elif delivery.learns:
            delivery.link.learn(delivery, payload, is_last=is_last)
        elif delivery.fate == ASKED and delivery.request is not None:
            delivery.request.size_bytes = delivery.asked_bytes = delivery.size_bytes

    def _kept(self, half: Half, size_bytes: int, transfers: int = 0) -> None:
        if not half.undecided:
            return
        half.kept_transfers += transfers
        half.kept_bytes += size_bytes
        if not self._shared.keep(size_bytes) or half.kept_bytes > half.max_kept_bytes:
            self._decide_now(half)

    def _release_kept(self, half: Half) -> None:
        if not half.undecided:
            self._shared.keep(-half.kept_bytes)
            half.kept_bytes = half.kept_transfers = half.max_kept_bytes = 0
            if not any(each.undecided for each in self.halves.values()):
                self._shared.keeping.pop(self, None)

    def decide_now(self) -> None:
        for half in self.halves.values():
            self._decide_now(half)

    def _decide_now(self, half: Half) -> None:
        undecided, half.undecided = half.undecided, {}
        for delivery in undecided:
            delivery.link.decide(delivery, b"", is_last=False, must=True)
        self._release_kept(half)

    def check_window(self, side: Side) -> None:
        """Force a decision if kept-back frames fill the session window, because no more frames can arrive."""
        half = self.halves[side]
        if half.undecided and half.transfers.left() <= half.kept_transfers:
            self._shared.forced[self] = None

    def pass_undecided(self, side: Side, link: Link | None = None) -> None:
        """Forward a peer's undecided deliveries, or those of one ``link``, because they will never be completed."""
        half = self.halves[side]
        for delivery in [each for each in half.undecided if link is None or each.link is link]:
            del half.undecided[delivery]
            delivery.fate = PASSES
        self._release_kept(half)

    def forget(self) -> None:
        for half in self.halves.values():
            half.handles.clear()
            half.awaited.clear()
            half.undecided.clear()
        for link in self.links:
            # Break this reference cycle, because the garbage collector does not track requests.
            link.request = None
        self.links.clear()


def _is_open(delivery: Delivery) -> bool:
    return delivery.fate in {UNDECIDED, ASKED}


def send_flow(link: Link, outlet: Stream) -> None:
    receiver, credit = outlet.side, link.credit
    if link.flows and not credit.shaped and credit.granted == credit.limit:
        return
    handle = link.handles[receiver]
    if handle is not None and receiver in link.announced and link.session.halves[receiver].announced:
        _tell_flow(link.session, outlet, (handle, *credit.to_sender()))


def send_window_flow(session: SessionPart, outlet: Stream) -> bool:
    """Restore the sender's window after swallowed transfers. Do nothing and return False while window is left."""
    half, other = session.halves[outlet.side], session.halves[outlet.side.other]
    if not other.transfers.needs_flow or not half.announced:
        return True
    if other.transfers.left():
        return False
    _tell_flow(session, outlet)
    return True


def _tell_flow(session: SessionPart, outlet: Stream, link: tuple[int, int | None, int, bool] | None = None) -> None:
    half, other = session.halves[outlet.side], session.halves[outlet.side.other]
    assert half.channel is not None  # noqa: S101 - it has begun
    incoming_id = other.transfers.incoming_id()
    if incoming_id is None and other.announced:
        incoming_id = other.first_id  # not announced yet, but known
    sends, window = half.transfers, other.transfers.incoming_window
    outlet.insert(
        wire.flow_frame(half.channel, incoming_id, window, sends.outgoing_id(), sends.outgoing_window, link=link)
    )


def send_rejected(delivery: Delivery, outlet: Stream) -> None:
    half = delivery.link.session.halves[outlet.side]
    if half.channel is not None and half.announced:
        outlet.insert(wire.rejection_frame(half.channel, delivery.number, wire.RESOURCE_LIMIT_EXCEEDED, delivery.why))


def translate_flow(
    session: SessionPart, side: Side, link: Link | None, numbers: Sequence[int | None], *, drains: bool
) -> dict[int, bytes]:
    """Record a flow that is about to be forwarded. Return its changed fields, keyed by their numbers."""
    half, other = session.halves[side], session.halves[side.other]
    incoming_id, incoming_window, outgoing_id, outgoing_window, _, delivery_count, credit = numbers
    to_incoming_id = other.transfers.flow_of_receiver(incoming_id, incoming_window or 0)
    if other.undecided:
        session.check_window(side.other)
    to_outgoing_id = half.transfers.flow_of_sender(outgoing_id or 0, outgoing_window or 0)
    changes: dict[int, bytes] = {}
    if to_incoming_id != incoming_id:
        changes[0] = wire.optional_uint(to_incoming_id)
    if to_outgoing_id != outgoing_id:
        changes[2] = wire.uint(to_outgoing_id)
    if link is None or (link.gone and not link.was_limited):
        return changes
    if link.sender is not side:
        announced = link.credit.to_sender()
        # Later flows may have been read already, so this one may give more credit than is granted now.
        if not link.was_limited:
            return changes
    else:
        answer = link.flow_of_sender(delivery_count, credit, drains)
        if answer is None:
            # Remove only the link's fields, because the flow also states the session's window (2.5.6).
            return changes | dict.fromkeys(range(4, 9), wire.NULL)
        if not link.credit.shaped:
            return changes
        announced = answer
    if announced.delivery_count != delivery_count:
        changes[5] = wire.optional_uint(announced.delivery_count)
    if announced.credit != (credit or 0):
        changes[6] = wire.uint(announced.credit)
    if announced.drain is not drains:
        changes[8] = wire.boolean(announced.drain)
    return changes
