"""The credit of one link: what its receiver gave, what the sender may use of it, and what each believes.

Either peer may be the client. The receiver gives credit in flows (AMQP 1.0, 2.6.7). The sender is told of less, and of
the rest bit by bit as it is granted.

The numbers
===========
The figure that counts is the *delivery-limit*, delivery-count + link-credit: deliveries and flows that cross change
count and credit, but not the limit. All numbers here are the *receiver's*. On the wire they are 32-bit serial numbers
(RFC 1982); here they are unwrapped (``wrapped`` and ``unwrapped`` convert).

=========== ===========================================================================================================
limit       delivery-count + link-credit of the receiver's last flow
granted     what the sender may use of it: its own delivery-limit less the offset. At most ``limit``
sent        delivery-count at the sender: deliveries that came and were not swallowed, and credit that was drained
offset      the sender's delivery-count - the receiver's
prepaid     how many permits are paid of granted - sent
due         permits to be charged, or given back if it is negative; taken by ``take_due``
=========== ===========================================================================================================

Always: ``granted <= limit`` and ``0 <= prepaid <= max(0, granted - sent)``. ``granted + offset`` sinks only if the
receiver lowers its limit below it. Use beyond the credit is charged; beyond ``limit`` the receiver ends the link.

Permits of ``prepaid`` beyond granted - sent can be used by nobody any more: they go to ``due``, negative.

Draining
========
A receiver that drains wants the sender to use all of its credit, or to throw it away. The sender is told to drain what
is granted. Its answer is forwarded when

- it is at the limit;
- it is at what is granted, and it threw credit away: it has nothing more, so the receiver is told that it is at the
  limit. From there on the receiver's numbers are ahead: the offset sinks.

Otherwise there may be more: the answer goes no further, what was thrown away can be granted again, and the sender is
told to drain again with each grant. Nothing more is wanted or granted before it is where it was told to drain to, or
grants and answers could cross for ever.

Some senders, like Artemis, answer a drain late, throw away what they have got by then, and do not answer if all was
used. So when a sender throws credit away, and was told to drain more often than it answered since the receiver's last
flow, that is *doubtful*: it is granted again, and the answer to that counts.

A delivery counts from its first frame on, aborted or not; senders count at the first frame or at the last. A swallowed
delivery does not count from its first frame on, so its receiver hears the same count either way.

Unused credit
=============
Credit cannot be taken back, as some clients cannot count below zero. So what was paid for it stays paid: given back,
the idle credit of many links could be used at once, far above the limit. A link gets no more than its ``window`` at a
time: a few at first, and twice as many when it has used as many and had none left, or got at once all that it asked
for.
A link that used nothing since the last grant does not ask for more.
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
# How long a client's links pay for the resource of its last harmful message.
PAID_NS: Final = 10 * NS_PER_S
_MAX_CLIENTS: Final = 4096


def wrapped(number: int) -> int:
    return number & MAX_CREDIT


def unwrapped(serial: int, near: int) -> int:
    """Return the number that is ``serial`` on the wire and closest to ``near`` (RFC 1982, 3.2)."""
    return near + ((serial - near + _HALF) & MAX_CREDIT) - _HALF


class Unpaid:
    """The credit of one client's links whose messages have unknown costs.

    A message may tell its own address, or be settled where others are refused. All such credit may hit one limit at
    once, so it is bounded by the tightest limit and accrues at its rate. It returns with each message that did no harm:
    decided by itself, or not limited. Then up to that limit's debt may be out as well.
    """

    def __init__(self, now_ns: int) -> None:
        self._advance = Advance(0, 0, 0)
        #: In micro-permits.
        self._stored = self._capacity = 0
        self._at_ns = now_ns
        self._paid_until_ns = now_ns
        # Resources of the client's last harmful message. For a while, credit is paid as for these.
        self.paid_for: tuple[Resource, ...] = ()

    def limit(self, advance: Advance) -> None:
        if advance != self._advance:
            used = self._capacity - self._stored
            self._advance, self._capacity = advance, advance.burst * UPERMITS_PER_PERMIT
            self._stored = self._capacity - used

    def left(self, now_ns: int) -> int:
        """Return how much more links may have."""
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
        """Take note that links got more. Negative is credit that they lost unused."""
        self._stored = min(self._capacity, self._stored - messages * UPERMITS_PER_PERMIT)

    def did_no_harm(self, messages: int = 1) -> None:
        """Take note of messages that are paid otherwise, if at all."""
        most = self._advance.most * UPERMITS_PER_PERMIT
        self._capacity = min(max(self._capacity, most), self._capacity + messages * UPERMITS_PER_PERMIT)
        self.take(-messages)

    def did_harm(self, paid_for: tuple[Resource, ...], now_ns: int) -> None:
        """Take note of a message that was charged to these resources and could not be refused."""
        self._capacity = self._advance.burst * UPERMITS_PER_PERMIT
        self._stored = min(self._capacity, self._stored)
        self.paid_for = paid_for
        self._paid_until_ns = now_ns + PAID_NS


class UnpaidOfClients:
    """The unpaid credit of all clients of one broker, for past and present connections."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, tuple[Resource, ...]], Unpaid] = OrderedDict()

    def of(self, address: str, resources: tuple[Resource, ...], now_ns: int) -> Unpaid:
        """Return that of a client, by its address. ``resources``: of the links; empty if each message tells them."""
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
    """What all sessions of one broker share."""

    clients: UnpaidOfClients = field(default_factory=UnpaidOfClients)


class LinkFlow(NamedTuple):
    """A flow of a link, as it is on the wire."""

    delivery_count: int | None  # None while the receiver does not know it (2.6.7)
    credit: int
    drain: bool  # the receiver wants the credit used up, or the sender is about to


class PlainCredit(NamedTuple):
    """What the compiled part takes flows of a receiver by; the first three as they are on the wire."""

    sent: int
    granted: int
    limit: int
    window: int | None  # None if nothing limits the link
    used: int  # deliveries since the window changed
    untouched: bool  # nothing came since the last grant
    shaped: bool


Numbers = tuple[int, int, int | None, int, bool, bool]
"""The figures of a ``PlainCredit``, in that order, but not the limit."""


class Credit:
    """The credit of one link, from its attach to its detach. Calls follow the order of the wire."""

    def __init__(self, initial_delivery_count: int | None = None) -> None:
        """``initial_delivery_count`` is None while only the receiver's attach was seen."""
        self._attached = initial_delivery_count is not None
        self._initial = initial_delivery_count or 0
        # See the module.
        self.limit = self.granted = self.sent = self._initial
        self.offset = 0
        self.window = FIRST_WINDOW
        self.draining = False  # the receiver wants its credit used up
        # The sender was once told something else than the receiver said. Until then flows are forwarded unchanged.
        self.shaped = False
        # A swallowed delivery is still coming. Its sender may not have counted it yet.
        self.swallowing = False
        # The receiver's last delivery-count, unwrapped; None if it left it out.
        self._said: int | None = None
        self.prepaid = 0
        self.due = 0
        # The last delivery-limit that the sender was told, in its own numbers, and the highest.
        self._told = self._highest = self._initial
        self._drains_to: int | None = None  # where the sender was told to drain to, in its own numbers, or None
        self._drains = 0  # how often it was told so since the receiver's last flow, less its answers
        self._used = 0  # deliveries since the window changed
        self._untouched = False  # nothing came since the last grant

    def attached(self, initial_delivery_count: int) -> None:
        """Take the sender's attach, if the receiver's came first. Flows of the receiver may have come before it."""
        if self._attached:
            return
        self._attached = True
        if self._said is not None:
            # The receiver guessed a number, which is compared with this one.
            self.sent = self._initial = unwrapped(initial_delivery_count, self._said)
            self._trim()
            return
        # Flows without a number count from this one on.
        self._initial += initial_delivery_count
        self.sent += initial_delivery_count
        self.granted += initial_delivery_count
        self.limit += initial_delivery_count
        self._told += initial_delivery_count
        self._highest += initial_delivery_count
        if self._drains_to is not None:
            self._drains_to += initial_delivery_count

    def flow_of_receiver(self, delivery_count: int | None, credit: int | None, drain: bool) -> None:  # noqa: FBT001
        """Take the receiver's flow, as it is on the wire.

        Ask for what is ``wanted`` then, and forward ``to_sender``.
        """
        if delivery_count is None:
            # The sender takes it for its initial number (2.6.7).
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
        """Return what the sender is told instead of the receiver's flow, or by a flow of Sluice."""
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
        counted = min(self.sent, self.granted)  # as the receiver would say it if it had everything that came
        return LinkFlow(wrapped(counted + self.offset), min(self.granted - counted, MAX_CREDIT), self.draining)

    @property
    def to_tell(self) -> bool:
        """Whether the sender may use more than it was told: then it needs a flow with ``to_sender``."""
        return self.granted + self.offset > self._told

    def wanted(self) -> int:
        """Return how many permits to ask for now, where the link's credit is limited.

        Not for each delivery: the sender may use half of its window first.
        """
        left, unused, window = self.limit - self.granted, max(0, self.granted - self.sent), self.window
        if 2 * unused > window or (unused and self._untouched) or (self.draining and self._awaits_answer):
            return 0
        return max(0, min(left, window - unused))

    @property
    def known(self) -> int:
        """How many deliveries may come, by what the sender was told."""
        return max(0, self._highest - self.sent - self.offset)

    @property
    def plenty(self) -> int:
        """How many of these may come before more is ``wanted``."""
        if self.granted == self.limit:
            return self.known
        return 0 if self.draining else max(0, (2 * (self.granted - self.sent) - self.window - 1) // 2)

    def grant(self, permits: int, *, plenty: bool = False) -> bool:
        """Let the sender use paid credit. Permits that the receiver no longer wants are given back.

        ``plenty``: these are all that it asked for, and it did not wait. Returns whether there is something
        ``to_tell``.
        """
        if plenty:
            self._widen()
        granted = max(0, min(permits, self.limit - self.granted))
        self.due -= permits - granted
        self.granted += granted
        self.prepaid += granted
        self._untouched = granted > 0
        self._trim()
        return self.to_tell

    def grant_some(self, most: int) -> int:
        """Let the sender use up to ``most`` of the limit, unpaid, as their cost is unknown. Return how many it got.

        Called as ``grant_all``.
        """
        granted = max(0, min(self.wanted(), most))
        if granted:
            self._widen()
            self._untouched = True
            self.granted += granted
        return granted

    def grant_all(self) -> bool:
        """Let the sender use the whole limit, unpaid: nothing limits the link. Return ``to_tell``.

        Call it again when deliveries or the sender's flow came, as long as less is granted.
        """
        if not self.shaped or not self._awaits_answer:
            self.granted = self.limit
        return self.to_tell

    @property
    def _awaits_answer(self) -> bool:
        drains_to = self._drains_to
        return self.draining and drains_to is not None and self.sent + self.offset < drains_to

    def came(self, deliveries: int = 1) -> None:
        """Count deliveries at their first frame, also those that are swallowed or aborted later."""
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
        """Take back swallowed deliveries, at their first frame; the sender gets their credit again (``to_tell``)."""
        self.shaped = True  # from here on its numbers differ, even before it is told
        self.sent -= deliveries
        self.offset += deliveries
        self.prepaid += deliveries
        self._trim()

    def beyond(self, deliveries: int) -> int:
        """Return how many of some deliveries to come exceed everything that the sender was ever told."""
        return max(0, self.sent + self.offset + deliveries - self._highest)

    def flow_of_sender(
        self,
        delivery_count: int | None,
        credit: int | None,
        drain: bool,  # noqa: FBT001
    ) -> LinkFlow | None:
        """Take the sender's flow, as it is on the wire.

        Returns:
            What the receiver is told instead; None if that would mislead it.
        """
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
                drain = False  # it does not know yet that the receiver has lowered its limit
            elif threw_away and counted >= self.granted and not doubtful:
                self.offset -= self.limit - counted
                counted = self.sent = self.granted = self.limit
            else:
                if threw_away:
                    self.sent = before  # the receiver does not hear of it, so it can be granted again
                    self.granted -= counted - before
                    self.offset += counted - before
                return None
        return LinkFlow(wrapped(counted), min(max(0, self.limit - counted), MAX_CREDIT), drain)

    def take_due(self) -> int:
        """Return, once, how many permits to charge beyond those asked for; negative is given back."""
        due, self.due = self.due, 0
        return due

    def repay(self) -> int:
        """Take back what was paid for deliveries that have not come; return what is due then, as ``take_due`` does."""
        self.due -= self.prepaid
        self.prepaid = 0
        return self.take_due()

    def plain(self, *, paid: bool) -> PlainCredit | None:
        """Return what flows go by where all that is granted is ``paid``, or else nothing limits the link.

        None if numbers differ, if the receiver drains, or if something is to be paid or granted first.
        """
        unused = self.granted - self.sent
        plain = unused == self.prepaid if paid else self.granted == self.limit and unused >= 0
        if not plain or self.offset or self.draining:
            return None
        sent, granted, limit = self.sent & MAX_CREDIT, self.granted & MAX_CREDIT, self.limit & MAX_CREDIT
        window, used = self.window if paid else None, min(self._used, MAX_CREDIT)
        return PlainCredit(sent, granted, limit, window, used, self._untouched, self.shaped)

    def flowed(self, numbers: Numbers, said: tuple[int | None, int | None]) -> int:
        """Take flows of the receiver that were granted at once and forwarded.

        Args:
            numbers: as they are after the last one.
            said: its delivery-count and link-credit.

        Returns:
            How many deliveries came before it.
        """
        sent, granted, window, used, untouched, shaped = numbers
        came = (sent - self.sent) & MAX_CREDIT
        self.sent += came
        self.granted = self.sent + ((granted - sent) & MAX_CREDIT)
        if window is not None:
            self.prepaid, self.window = self.granted - self.sent, window
        self._used, self._untouched = used, untouched
        self.shaped |= shaped
        self.flow_of_receiver(*said, drain=False)
        self.to_sender()
        return came

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
