"""The credit of one link: what its receiver said, what of that the sender may use, and what each believes of it.

A link has a sender and a receiver; either may be the client. The receiver says how many deliveries may come, in flows
(AMQP 1.0, 2.6.7). The sender is told of less, and of the rest bit by bit as it is granted.

The numbers
===========
What counts is never a credit, but the *delivery-limit*: delivery-count + link-credit. Deliveries and flows that cross
on their way change the delivery-count, and so the credit; they do not change the limit. All numbers here are the
*receiver's*. On the wire they are serial numbers of 32 bits (RFC 1982); here they are unwrapped, so that they compare
as what they are: ``wrapped`` and ``unwrapped`` are between.

=========== ===========================================================================================================
limit       delivery-count + link-credit of the receiver's last flow
granted     what the sender may use of it: its own delivery-limit less the offset. At most ``limit``
sent        delivery-count at the sender: deliveries that have come and were not swallowed, and credit that was drained
offset      the sender's delivery-count - the receiver's. What the sender is told is higher by so much
prepaid     of granted - sent, for how many permits are paid
due         permits to be charged, or given back if it is negative; taken by ``take_due``
=========== ===========================================================================================================

Always: ``granted <= limit`` and ``0 <= prepaid <= max(0, granted - sent)``. ``granted + offset`` never sinks, but for a
receiver that lowers its limit below it. What the sender uses beyond its credit is not stopped here: it is charged, and
its receiver ends the link if it is beyond ``limit``, too.

Transitions
===========
``trim``: prepaid that exceeds granted - sent goes to ``due``, negative: nobody can use it any more.

================== ======================== ===========================================================================
call               when                     then
================== ======================== ===========================================================================
flow_of_receiver   limit' >= granted        ``limit = limit'``
limit' = dc+credit limit' < granted         ``limit = granted = limit'``; trim
grant n                                     ``k = min(n, limit - granted)``; ``granted += k, prepaid += k, due -= n-k``
grant_all                                   ``granted = limit``; nothing is paid
both               a drain is unanswered    nothing: see Draining
came n                                      ``sent += n``; of them ``min(n, prepaid)`` are paid, the others go to due;
                                            what is beyond granted is granted, up to the limit
swallowed n        their first frames came  ``sent -= n, offset += n, prepaid += n``: the sender may use n more
flow_of_sender     dc <= sent               nothing: it says what is known
dc, less offset    dc > sent                it threw credit away: ``sent = dc``; trim
both drain         dc = granted < limit,    it had nothing more: ``offset -= limit - granted``,
                   dc > sent before         ``sent = granted = limit``
both drain         sent < dc < granted, or  it had not heard of all that is granted, or answers late:
                   it is doubtful           ``offset += dc - sent, granted -= dc - sent``; sent stays
idle               a second has passed      what of prepaid was not needed in all of it goes to due, negative
close                                       all of prepaid likewise
================== ======================== ===========================================================================

Draining
========
A receiver that drains wants the sender to use up all of its credit, or to throw it away. The sender is told to drain
what is granted. What it answers goes on when

- it is at the limit: that is the answer;
- it is at what is granted, and it threw credit away: it has nothing more, so the receiver is told that it is at the
  limit. From there on the receiver's numbers are ahead: the offset sinks.

In all other cases it used up what it had, or answers to what it was told before, so there may be more: that answer goes
no further, and what it threw away can be granted anew. It is told to drain again with each grant. So nothing more is
wanted or granted before it is where it was told to drain to: else each grant could cross the answer to the one before,
for ever.

Some senders, as Artemis, answer a drain late, throw away what they have got by then, and do not answer where all was
used up. So where a sender throws credit away and was told to drain more often than it answered since the receiver's
last flow, that is *doubtful*: there may be more, and it is granted anew. The answer to that one counts.

A delivery counts from its first frame on, be it aborted later. Senders count at the first frame or at the last: so no
answer that is given between seems to throw credit away. One that is swallowed does not count from its first frame on:
its receiver does not know of it, and hears the same count wherever its sender counts.

What is unused
==============
Credit that a link has is lost to others that would use it now. So a link gets no more than its ``window`` at a time: a
few at first; twice as many when it used as many and had none left, or got at once all that it asked for, so that nobody
else waits for that; half when it did not need all of it for a second. So it has no more than it uses in about a second.
Credit cannot be taken back. But what was paid for it can be, and is, when it was not needed for a second: it is
charged later, if the credit is used after all. As that is a debt for which others wait, a connection may have only so
much of it: what is beyond that stays paid.
"""

from typing import Final, NamedTuple

FIRST_WINDOW: Final = 2
MOST_WINDOW: Final = 1 << 16
IDLE_NS: Final = 1_000_000_000
_SERIAL: Final = 1 << 32
_HALF: Final = 1 << 31
MOST_CREDIT: Final = _SERIAL - 1


def wrapped(number: int) -> int:
    """Return a number as it is on the wire, in 32 bits."""
    return number & MOST_CREDIT


def unwrapped(serial: int, near: int) -> int:
    """Return the number that is on the wire as ``serial`` and closest to ``near`` (RFC 1982, 3.2)."""
    return near + ((serial - near + _HALF) & MOST_CREDIT) - _HALF


class LinkFlow(NamedTuple):
    """What a flow says of a link, as it is on the wire.

    Attributes:
        delivery_count: None while the receiver does not know it (2.6.7).
        credit: link-credit.
        drain: the receiver wants the credit used up, or the sender is about to.
    """

    delivery_count: int | None
    credit: int
    drain: bool


class Credit:
    """The credit of one link, from its attach to its detach.

    What comes from the sender is told in the order of the wire, and so is what comes from the receiver.

    Attributes:
        limit: the receiver's delivery-limit, unwrapped; see the module for this and the next three.
        granted: what the sender may use of it.
        sent: where the sender is.
        offset: what is added to the receiver's numbers for the sender.
        window: how much credit the sender may have that it does not use, in deliveries.
        draining: the receiver wants its credit used up.
        shaped: at some time the sender was told something else than the receiver said. Until then its flows go on as
            they are.
        available: what the sender last said that it has to send; None if it did not.
        swallowing: a delivery that was ``swallowed`` has not come to its end. Its sender may not have counted it yet.
    """

    __slots__ = (
        "_attached",
        "_drains",
        "_drains_to",
        "_due",
        "_highest",
        "_initial",
        "_low",
        "_prepaid",
        "_said",
        "_second_ends_ns",
        "_told",
        "_used",
        "available",
        "draining",
        "granted",
        "limit",
        "offset",
        "sent",
        "shaped",
        "swallowing",
        "window",
    )

    def __init__(self, initial_delivery_count: int | None = None) -> None:
        """Begin a link.

        Args:
            initial_delivery_count: of the sender's attach; None while only the receiver's was seen.
        """
        self._attached = initial_delivery_count is not None
        self._initial = initial_delivery_count or 0
        self.limit = self.granted = self.sent = self._initial
        self.offset = 0
        self.window = FIRST_WINDOW
        self.draining = False
        self.shaped = False
        self.swallowing = False
        self.available: int | None = None
        #: The delivery-count that the receiver said last, unwrapped; None if it left it out.
        self._said: int | None = None
        self._prepaid = 0
        self._due = 0
        #: The delivery-limit that the sender was told last, in its own numbers, and the highest.
        self._told = self._highest = self._initial
        #: Where the sender was told to drain to, in its own numbers; None if it was not told to.
        self._drains_to: int | None = None
        #: How often it was told so since the receiver's last flow, less its answers.
        self._drains = 0
        #: Deliveries since the window was changed.
        self._used = 0
        #: The least that was prepaid in this second, and when that ends.
        self._low = 0
        self._second_ends_ns: int | None = None

    def attached(self, initial_delivery_count: int) -> None:
        """Take the sender's attach, where the receiver's came first. Flows of the receiver may have come before it."""
        if self._attached:
            return
        self._attached = True
        if self._said is not None:
            # The receiver named a number that it could not know yet. It stands, and is compared with this one.
            self.sent = self._initial = unwrapped(initial_delivery_count, self._said)
            self._trim()
            return
        # What it said without a number counts from this one on.
        self._initial += initial_delivery_count
        self.sent += initial_delivery_count
        self.granted += initial_delivery_count
        self.limit += initial_delivery_count
        self._told += initial_delivery_count
        self._highest += initial_delivery_count
        if self._drains_to is not None:
            self._drains_to += initial_delivery_count

    # What the receiver says, and what the sender is told.

    def flow_of_receiver(self, delivery_count: int | None, credit: int | None, drain: bool) -> None:  # noqa: FBT001
        """Take the receiver's flow, as it is on the wire; a link-credit that is left out is none.

        When it was asked for what is ``wanted`` now, ``to_sender`` is what goes on of it.
        """
        if delivery_count is None:
            # The sender takes it for the number that it began with (2.6.7).
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
        """Return what the sender is told from now on, instead of the receiver's flow, or by a flow of Sluice's own."""
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
        # As the receiver would say it if it had all that came.
        counted = min(self.sent, self.granted)
        return LinkFlow(wrapped(counted + self.offset), min(self.granted - counted, MOST_CREDIT), self.draining)

    @property
    def to_tell(self) -> bool:
        """Whether the sender may use more than it was told: then it is to be sent a flow with ``to_sender``."""
        return self.granted + self.offset > self._told

    # What of it is granted.

    def wanted(self) -> int:
        """Return for how many permits to ask now, where the link's credit is limited; 0 is none.

        Not for each delivery: the sender may use up half of its window first.
        """
        left = self.limit - self.granted
        if left <= 0:
            # Before all else: it is asked for each chunk, and each call in it would be a good part of that.
            return 0
        unused, window = max(0, self.granted - self.sent), self.window
        if 2 * unused > window or (self.draining and self._awaits_answer):
            return 0
        return min(left, window - unused)

    def grant(self, permits: int, now_ns: int, *, plenty: bool = False) -> bool:
        """Let the sender use what was paid for; what the receiver does not want any more is given back.

        Args:
            permits: how many.
            now_ns: the time.
            plenty: these are all that it asked for, and it did not wait for them.

        Returns:
            Whether there is something ``to_tell``.
        """
        if plenty:
            self._widen()
        granted = max(0, min(permits, self.limit - self.granted))
        self._due -= permits - granted
        self.granted += granted
        self._prepaid += granted
        self._trim()
        if self._second_ends_ns is None and self._prepaid:
            self._second_ends_ns = now_ns + IDLE_NS
            self._low = self._prepaid
        return self.to_tell

    def grant_some(self, most: int) -> bool:
        """Let the sender use some of what the receiver said, unpaid: what its deliveries cost is not known before.

        It is to be called as ``grant_all``. The sender may use more at a time as long as ``narrow`` is not called.

        Args:
            most: it is to have no more that it has not used.

        Returns:
            Whether there is something ``to_tell``.
        """
        wanted = min(self.wanted(), most - max(0, self.granted - self.sent))
        if wanted > 0:
            self._widen()
            self.granted += wanted
        return self.to_tell

    def narrow(self) -> None:
        """Have the sender use less at a time: what it has used was not to be had at once."""
        self.window = max(FIRST_WINDOW, self.window // 2)
        self._used = 0

    def grant_all(self) -> bool:
        """Let the sender use all that the receiver said, unpaid: nothing limits the link.

        It is to be called again when deliveries came, or the sender's flow, as long as less is granted.

        Returns:
            Whether there is something ``to_tell``.
        """
        if not self.shaped or not self._awaits_answer:
            self.granted = self.limit
        return self.to_tell

    @property
    def _awaits_answer(self) -> bool:
        """Whether the sender was told to drain, and is not where it is to be then."""
        drains_to = self._drains_to
        return self.draining and drains_to is not None and self.sent + self.offset < drains_to

    # What the sender does.

    def came(self, deliveries: int = 1) -> None:
        """Count deliveries at their first frame; those too that are swallowed or aborted later."""
        self.sent += deliveries
        prepaid = self._prepaid - deliveries
        if prepaid < 0:
            self._due -= prepaid
            prepaid = 0
        self._prepaid = prepaid
        self._low = min(self._low, prepaid)
        self._used += deliveries
        if self.sent >= self.granted:
            if self.granted < self.limit:
                self._widen()
            self._follow()

    def swallowed(self, deliveries: int = 1) -> None:
        """Take back deliveries that came and do not go on, at their first frame.

        The sender gets their credit again: there is something ``to_tell``.
        """
        # From here on its numbers differ, even before it is told of that.
        self.shaped = True
        self.sent -= deliveries
        self.offset += deliveries
        self._prepaid += deliveries
        self._trim()

    def beyond(self, deliveries: int) -> int:
        """Return how many of some that are to come are beyond all that the sender was ever told."""
        return max(0, self.sent + self.offset + deliveries - self._highest)

    def flow_of_sender(
        self,
        delivery_count: int | None,
        credit: int | None,
        available: int | None,
        drain: bool,  # noqa: FBT001
    ) -> LinkFlow | None:
        """Take the sender's flow, as it is on the wire.

        Returns:
            What the receiver is told of the link instead; None if that would mislead it.
        """
        self.available = available
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
                # It does not know yet that the receiver does not want that any more.
                drain = False
            elif threw_away and counted >= self.granted and not doubtful:
                self.offset -= self.limit - counted
                counted = self.sent = self.granted = self.limit
            else:
                if threw_away:
                    # The receiver does not hear of it, so it can be granted anew.
                    self.sent = before
                    self.granted -= counted - before
                    self.offset += counted - before
                return None
        return LinkFlow(wrapped(counted), min(max(0, self.limit - counted), MOST_CREDIT), drain)

    # What it costs.

    @property
    def due(self) -> int:
        """What ``take_due`` would hand out."""
        return self._due

    def take_due(self) -> int:
        """Hand out, once, how many permits are to be charged beyond those asked for; negative is given back."""
        due = self._due
        self._due = 0
        return due

    @property
    def prepaid(self) -> int:
        """For how many deliveries still to come is paid."""
        return self._prepaid

    @property
    def idle_ns(self) -> int | None:
        """When ``idle`` is to be called; None while nothing can come of it."""
        return self._second_ends_ns

    def idle(self, now_ns: int, most: int = MOST_CREDIT) -> None:
        """Give back what was paid and not needed for a second, if that is over.

        Args:
            now_ns: the time.
            most: no more than that; the rest stays paid, and is not looked at again before more is granted.
        """
        ends_ns = self._second_ends_ns
        if ends_ns is None or now_ns < ends_ns:
            return
        low = min(self._low, most)
        looks_again = low == self._low
        if self._low > 0:
            self._prepaid -= low
            self._due -= low
            self.narrow()
        self._low = self._prepaid
        self._second_ends_ns = now_ns + IDLE_NS if self._prepaid and looks_again else None

    def close(self) -> int:
        """End the link; return what is due then, as ``take_due`` does: all that was not used is given back."""
        self._due -= self._prepaid
        self._prepaid = self._low = 0
        self._second_ends_ns = None
        return self.take_due()

    def _widen(self) -> None:
        """Let the sender have more at a time, if it used that much since the last time."""
        if self._used >= self.window:
            self.window = min(2 * self.window, MOST_WINDOW)
            self._used = 0

    def _follow(self) -> None:
        """Grant what is used already."""
        if self.sent > self.granted:
            self.granted = max(self.granted, min(self.sent, self.limit))

    def _trim(self) -> None:
        """Give back what was paid for credit that nobody has any more."""
        excess = self._prepaid - max(0, self.granted - self.sent)
        if excess > 0:
            self._prepaid -= excess
            self._due -= excess
            self._low = min(self._low, self._prepaid)
