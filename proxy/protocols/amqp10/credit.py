"""The credit of one link. The receiver gives it (AMQP 1.0, 2.6.7), and Sluice grants a part of it to the sender.

A flow's *delivery-limit* is its delivery-count plus its link-credit. Deliveries that cross the flow do not change it.
All numbers are the *receiver's*, unwrapped. On the wire, they are 32-bit serial numbers (RFC 1982).

- limit: the receiver's last delivery-limit
- granted: the sender's delivery-limit, minus the offset
- sent: the sender's delivery-count, minus the offset. It includes drained credit, but not swallowed deliveries
- offset: the sender's delivery-count, minus the receiver's
- prepaid: the part of ``granted - sent`` that is paid for
- due: permits to charge, or to refund if negative

Invariants: ``granted <= limit`` and ``0 <= prepaid <= max(0, granted - sent)``. ``granted + offset`` decreases only if
the receiver lowers its limit below ``granted``. Deliveries beyond ``granted`` are charged. Beyond ``limit``, the
receiver ends the link.

A receiver that *drains* wants the sender to use or discard all of its credit. Sluice asks the sender to drain the
granted part. If the sender has then reached the limit, its answer is forwarded. If it has discarded credit and reached
``granted``, it has no more messages. Its answer is then forwarded as if it had reached the limit, and the offset
decreases. Any other answer is dropped. The discarded credit can be granted again, and each grant asks the sender to
drain again. Nothing is granted before an answer, because grants and answers could cross forever.

Some senders, such as Artemis, answer multiple drains with one flow, and do not answer if they have used all credit. An
answer that discards credit is therefore *doubtful* if more than one drain is unanswered since the receiver's last flow.
The credit is then granted again, and the next answer counts.

Granted credit is not revoked, and permits for unused credit stay paid (``docs/amqp10.md`` explains why). A link gets at
most ``window`` credit at a time. After the link has used that much, the window doubles as soon as the link runs out of
credit or gets all that it requests without waiting. A link that has used nothing since the last grant requests nothing.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT
from proxy.protocols.base import Advance

FIRST_WINDOW: Final = 2
MAX_WINDOW: Final = 1 << 16
_SERIAL: Final = 1 << 32
_HALF: Final = 1 << 31
MAX_CREDIT: Final = _SERIAL - 1
PAID_NS: Final = 10 * NS_PER_S
_MAX_CLIENTS: Final = 4096


def wrapped(number: int) -> int:
    return number & MAX_CREDIT


def unwrapped(serial: int, near: int) -> int:
    """Return the number closest to ``near`` that wraps to ``serial`` (RFC 1982, 3.2)."""
    return near + ((serial - near + _HALF) & MAX_CREDIT) - _HALF


class Unpaid:
    """Tracks the unpaid credit of a client's links (see ``docs/amqp10.md``).

    It is bounded by the tightest limit and accrues at that limit's rate. Messages that are decided or not limited
    return their credit and raise the bound, up to the limit's maximum debt.
    """

    def __init__(self, now_ns: int) -> None:
        self._advance = Advance(0, 0, 0)
        self._stored = self._capacity = 0  # in micro-permits
        self._at_ns = now_ns
        self._paid_until_ns = now_ns
        # The resources of the last message that could not be refused, for PAID_NS.
        self.paid_for: tuple[Resource, ...] = ()

    def limit(self, advance: Advance) -> None:
        if advance != self._advance:
            used = self._capacity - self._stored
            self._advance, self._capacity = advance, advance.burst * UPERMITS_PER_PERMIT
            self._stored = self._capacity - used

    def left(self, now_ns: int) -> int:
        accrued = self._advance.rate * max(0, now_ns - self._at_ns) // NS_PER_S
        self._at_ns = max(self._at_ns, now_ns)
        self._stored = min(self._capacity, self._stored + accrued)
        self.pays(now_ns)
        return max(0, self._stored) // UPERMITS_PER_PERMIT

    def pays(self, now_ns: int) -> bool:
        if now_ns >= self._paid_until_ns:
            self.paid_for = ()
        return bool(self.paid_for)

    def take(self, messages: int) -> None:
        """Record that links got credit for ``messages`` messages, or lost it unused if the number is negative."""
        self._stored = min(self._capacity, self._stored - messages * UPERMITS_PER_PERMIT)

    def note_prepaid(self, messages: int = 1) -> None:
        most = self._advance.most * UPERMITS_PER_PERMIT
        self._capacity = min(max(self._capacity, most), self._capacity + messages * UPERMITS_PER_PERMIT)
        self.take(-messages)

    def note_overdraft(self, paid_for: tuple[Resource, ...], now_ns: int) -> None:
        """Record a message that could not be refused and was charged to ``paid_for``."""
        self._capacity = self._advance.burst * UPERMITS_PER_PERMIT
        self._stored = min(self._capacity, self._stored)
        self.paid_for = paid_for
        self._paid_until_ns = now_ns + PAID_NS


class UnpaidOfClients:
    """The unpaid credit of all clients, kept even after they disconnect."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, tuple[Resource, ...]], Unpaid] = OrderedDict()

    def of(self, address: str, resources: tuple[Resource, ...], now_ns: int) -> Unpaid:
        """Return the account for a client's links to ``resources``.

        Pass no resources for links on which each message carries its own address.
        """
        key = address, resources
        unpaid = self._known.get(key)
        if unpaid is None:
            if len(self._known) >= _MAX_CLIENTS:
                self._known.popitem(last=False)
            unpaid = self._known[key] = Unpaid(now_ns)
        self._known.move_to_end(key)
        return unpaid


@dataclass(slots=True)
class Hub:
    clients: UnpaidOfClients = field(default_factory=UnpaidOfClients)


class LinkFlow(NamedTuple):
    delivery_count: int | None  # None while unknown to the receiver (2.6.7)
    credit: int
    drain: bool


class PlainCredit(NamedTuple):
    """A link's credit as the compiled extension stores it. The first three fields are serial numbers."""

    sent: int
    granted: int
    limit: int
    window: int | None
    used: int
    untouched: bool
    shaped: bool


Numbers = tuple[int, int, int | None, int, bool, bool]
"""The fields of ``PlainCredit`` except ``limit``."""


class Credit:
    """The credit of one link. Methods must be called in the order of the frames on the wire."""

    def __init__(self, initial_delivery_count: int | None = None) -> None:
        self._attached = initial_delivery_count is not None
        self._initial = initial_delivery_count or 0
        self.limit = self.granted = self.sent = self._initial
        self.offset = 0
        self.window = FIRST_WINDOW
        self.draining = False
        # Whether the sender was ever told less than the receiver gave. Before that, flows are forwarded unchanged.
        self.shaped = False
        # Whether a swallowed delivery is incomplete. Its sender may not have counted it yet.
        self.swallowing = False
        self._said: int | None = None
        self.prepaid = 0
        self.due = 0
        # The last and the highest delivery-limit announced to the sender, as the sender counts.
        self._told = self._highest = self._initial
        self._drains_to: int | None = None  # the limit to which the sender drains, as the sender counts
        self._drains = 0  # number of unanswered drains since the receiver's last flow
        self._used = 0
        self._untouched = False

    def attached(self, initial_delivery_count: int) -> None:
        if self._attached:
            return
        self._attached = True
        if self._said is not None:
            self.sent = self._initial = unwrapped(initial_delivery_count, self._said)
            self._trim()
            return
        # Earlier flows had no delivery-count, so counting started at 0.
        self._initial += initial_delivery_count
        self.sent += initial_delivery_count
        self.granted += initial_delivery_count
        self.limit += initial_delivery_count
        self._told += initial_delivery_count
        self._highest += initial_delivery_count
        if self._drains_to is not None:
            self._drains_to += initial_delivery_count

    def flow_of_receiver(self, delivery_count: int | None, credit: int | None, drain: bool) -> None:  # noqa: FBT001
        """Handle a flow from the receiver. The caller then requests ``wanted()`` permits and sends ``to_sender()``."""
        if delivery_count is None:
            # The sender assumes its initial delivery-count (2.6.7).
            self._said = None
            counted = self._initial
        else:
            counted = self._said = unwrapped(delivery_count, self.sent)
            if not self._attached:
                self._initial = self.sent = counted
                self.granted = max(self.granted, counted)
        self.limit = counted + (credit or 0)
        self.draining = drain
        self._drains = 0
        if self.limit < self.granted:
            self.granted = self.limit
            self._trim()

    def to_sender(self) -> LinkFlow:
        self._told = self.granted + self.offset
        self._highest = max(self._highest, self._told)
        if self.draining:
            self._drains_to = self._told
            self._drains += 1
        else:
            self._drains_to = None
        said = self._said
        if self.granted == self.limit and not self.offset and (not self.shaped or self.sent == said):
            counted = self._initial if said is None else said
            return LinkFlow(None if said is None else wrapped(said), self.limit - counted, self.draining)
        self.shaped = True
        if not self._attached:
            counted = self._initial
            return LinkFlow(None if said is None else wrapped(said), self.granted - counted, self.draining)
        counted = min(self.sent, self.granted)
        return LinkFlow(wrapped(counted + self.offset), min(self.granted - counted, MAX_CREDIT), self.draining)

    @property
    def needs_flow(self) -> bool:
        return self.granted + self.offset > self._told

    def wanted(self) -> int:
        """Return how many permits to request. Until the sender has used half of its window, this is 0."""
        left, unused, window = self.limit - self.granted, max(0, self.granted - self.sent), self.window
        if 2 * unused > window or (unused and self._untouched) or (self.draining and self._awaits_answer):
            return 0
        return max(0, min(left, window - unused))

    @property
    def known(self) -> int:
        """The number of deliveries that the announced credit still allows."""
        return max(0, self._highest - self.sent - self.offset)

    @property
    def plenty(self) -> int:
        """The number of deliveries that may arrive before more credit is ``wanted``."""
        if self.granted == self.limit:
            return self.known
        return 0 if self.draining else max(0, (2 * (self.granted - self.sent) - self.window - 1) // 2)

    def grant(self, permits: int, *, plenty: bool = False) -> bool:
        """Grant credit for paid permits, and refund permits beyond the receiver's limit. Return ``needs_flow``.

        Set ``plenty`` if the link got everything that it requested without waiting.
        """
        if plenty:
            self._widen()
        granted = max(0, min(permits, self.limit - self.granted))
        self.due -= permits - granted
        self.granted += granted
        self.prepaid += granted
        self._untouched = granted > 0
        self._trim()
        return self.needs_flow

    def grant_some(self, most: int) -> int:
        granted = max(0, min(self.wanted(), most))
        if granted:
            self._widen()
            self._untouched = True
            self.granted += granted
        return granted

    def grant_all(self) -> bool:
        """Grant an unlimited link all of the receiver's credit without payment. Return ``needs_flow``.

        A link that drains may get nothing. In that case, call this again after the sender's next delivery or flow.
        """
        if not self.shaped or not self._awaits_answer:
            self.granted = self.limit
        return self.needs_flow

    @property
    def _awaits_answer(self) -> bool:
        drains_to = self._drains_to
        return self.draining and drains_to is not None and self.sent + self.offset < drains_to

    def note_received(self, deliveries: int = 1) -> None:
        """Count deliveries at their first frame, even if they are later swallowed or aborted."""
        self.sent += deliveries
        self.due += max(0, deliveries - self.prepaid)
        self.prepaid = max(0, self.prepaid - deliveries)
        self._untouched = False
        self._used += deliveries
        if self.sent >= self.granted:
            if self.granted < self.limit:
                self._widen()
            self._follow()

    def swallowed(self, deliveries: int = 1) -> None:
        """Subtract deliveries that were counted and then swallowed. The sender can get their credit again."""
        self.shaped = True
        self.sent -= deliveries
        self.offset += deliveries
        self.prepaid += deliveries
        self._trim()

    def beyond(self, deliveries: int) -> int:
        return max(0, self.sent + self.offset + deliveries - self._highest)

    def flow_of_sender(
        self,
        delivery_count: int | None,
        credit: int | None,
        drain: bool,  # noqa: FBT001
    ) -> LinkFlow | None:
        """Handle a flow from the sender. Return the flow for the receiver, or None if it would mislead the receiver."""
        if delivery_count is None:
            return LinkFlow(None, max(0, self.limit - self.sent) if self.shaped else credit or 0, drain)
        before = self.sent
        counted = unwrapped(delivery_count - self.offset, before)
        if self.swallowing:
            counted = max(counted, before)
        threw_away = counted > before
        if threw_away:
            self.sent = counted
            self._follow()
            self._trim()
        if not self.shaped:
            return LinkFlow(delivery_count, credit or 0, drain)
        doubtful = drain and threw_away and self._drains > 1
        if drain:
            self._drains = 0 if doubtful else max(0, self._drains - 1)
        if drain and (counted < self.limit or doubtful):
            if not self.draining:
                drain = False  # the receiver no longer drains
            elif threw_away and counted >= self.granted and not doubtful:
                self.offset -= self.limit - counted
                counted = self.sent = self.granted = self.limit
            else:
                if threw_away:
                    self.sent = before
                    self.granted -= counted - before
                    self.offset += counted - before
                return None
        return LinkFlow(wrapped(counted), min(max(0, self.limit - counted), MAX_CREDIT), drain)

    def take_due(self) -> int:
        """Reset ``due`` to 0. Return how many permits to charge, or to refund if negative."""
        due, self.due = self.due, 0
        return due

    def repay(self) -> int:
        """Refund permits for unused credit. Return the permits that are now due, as ``take_due`` does."""
        self.due -= self.prepaid
        self.prepaid = 0
        return self.take_due()

    def plain(self, *, paid: bool) -> PlainCredit | None:
        """Return the state for the compiled extension. ``paid`` tells whether the link pays for credit.

        Return None if the peers' counts differ, the receiver drains, or credit must be paid for or granted first.
        """
        unused = self.granted - self.sent
        plain = unused == self.prepaid if paid else self.granted == self.limit and unused >= 0
        if not plain or self.offset or self.draining:
            return None
        sent, granted, limit = self.sent & MAX_CREDIT, self.granted & MAX_CREDIT, self.limit & MAX_CREDIT
        window, used = self.window if paid else None, min(self._used, MAX_CREDIT)
        return PlainCredit(sent, granted, limit, window, used, self._untouched, self.shaped)

    def flowed(self, numbers: Numbers, said: tuple[int | None, int | None]) -> int:
        """Apply flows from the receiver that the compiled extension has handled.

        Args:
            numbers: The state after the last flow.
            said: The delivery-count and link-credit in the last flow.

        Returns:
            The number of deliveries before the last flow that Python had not counted yet.
        """
        sent, granted, window, used, untouched, shaped = numbers
        note_received = (sent - self.sent) & MAX_CREDIT
        self.sent += note_received
        self.granted = self.sent + ((granted - sent) & MAX_CREDIT)
        if window is not None:
            self.prepaid, self.window = self.granted - self.sent, window
        self._used, self._untouched = used, untouched
        self.shaped |= shaped
        self.flow_of_receiver(*said, drain=False)
        self.to_sender()
        return note_received

    def _widen(self) -> None:
        if self._used >= self.window:
            self.window = min(2 * self.window, MAX_WINDOW)
            self._used = 0

    def _follow(self) -> None:
        if self.sent > self.granted:
            self.granted = max(self.granted, min(self.sent, self.limit))

    def _trim(self) -> None:
        excess = max(0, self.prepaid - max(0, self.granted - self.sent))
        self.prepaid -= excess
        self.due -= excess
