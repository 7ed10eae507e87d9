"""The links of a connection: what each is limited as, the credit it asks for, and what its deliveries cost.

A link has a sender and a receiver, either of which may be the client. Its receiver's credit reaches its sender as far
as it is granted: see ``credit``. Where rules hold what is over them, permits are asked for before messages come; where
rules refuse, or where a message has to be seen before anybody can say what it is for, each delivery is decided.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from limiter.rules.resource import Resource
from proxy.deciding.batch import Asks, Charge, ConnectionInfo, Paid, Refuse, Request, Side
from proxy.protocols.amqp10.credit import Credit
from proxy.protocols.amqp10.wire import Attached
from proxy.protocols.base import NO_TERMS, SessionContext, Terms
from proxy.stats.snapshot import LinkState

if TYPE_CHECKING:
    from proxy.protocols.amqp10.conversation import Conversation

#: What becomes of a delivery: more of it has to come before it can be decided; it is to be decided; it goes on; or it is
#: swallowed.
UNDECIDED, ASKED, PASSES, SWALLOWED = range(4)
#: Of a name that is shown.
_NAME_CHARS: Final = 64
#: How fast the mean size follows: a new delivery counts for one in so many.
_SIZES: Final = 8


@dataclass(slots=True)
class Shared:
    """What all links of a connection have in common.

    Attributes:
        context: of the session.
        connection: who the client is, as far as it has said so.
        now_ns: of the call in hand.
        to_ask: links that may want credit.
        to_tell: links whose sender is to hear of credit.
        due: links that have something to charge.
        charges: what is to be charged, besides.
        paid: links on which something came, or resources that it came for.
        withheld: no more credit is granted to what clients send.
        rules_version: of the rules that terms were asked by.
    """

    context: SessionContext
    connection: ConnectionInfo
    now_ns: int = 0
    to_ask: "dict[Link, None]" = field(default_factory=dict)
    to_tell: "dict[Link, None]" = field(default_factory=dict)
    due: "dict[Link, None]" = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    paid: dict[tuple[tuple[Resource, ...], bool], Paid] = field(default_factory=dict)
    withheld: bool = False
    rules_version: int = 0

    def take_charges(self) -> list[Charge]:
        """Hand out, once, what is to be charged."""
        due, self.due = self.due, {}
        for link in due:
            link.charge_due()
        charges, self.charges = self.charges, []
        return charges

    def take_paid(self) -> list[Paid]:
        """Hand out, once, what came on credit."""
        paid, self.paid = self.paid, {}
        return list(paid.values())

    def count(self, resources: tuple[Resource, ...], deliveries: int, size_bytes: int, *, consumes: bool) -> None:
        """Count deliveries that nothing decides on any more."""
        key = resources, consumes
        paid = self.paid.get(key)
        if paid is None:
            paid = self.paid[key] = Paid(resources, 0, 0, 0, consumes)
        paid.requests += deliveries
        paid.messages += deliveries
        paid.size_bytes += size_bytes


class Delivery:
    """One delivery that takes several transfers, or that is decided.

    Attributes:
        number: its delivery-id, as its sender counts.
        settled: its sender has settled it; no refusal can be said.
        size_bytes: of its frames so far.
        fate: what becomes of it.
        refuse: why it is swallowed: the rule's verdict, or words of our own.
        resources: what it is for, once that is known.
        asked_bytes: what it was decided as, in bytes; 0 if nothing decides on it.
        begun: its first transfer has been written, or swallowed.
    """

    __slots__ = (
        "asked_bytes",
        "asks",
        "begun",
        "fate",
        "link",
        "number",
        "refuse",
        "resources",
        "settled",
        "size_bytes",
    )

    def __init__(self, link: "Link", number: int | None, *, settled: bool) -> None:
        self.link = link
        self.number = number
        self.settled = settled
        self.size_bytes = 0
        self.fate = PASSES
        self.refuse: Refuse | str = ""
        self.resources: tuple[Resource, ...] = ()
        self.asked_bytes = 0
        self.asks: Asks = "all"
        self.begun = False


class Link:
    """One link.

    Args:
        session: that it belongs to.
        attached: what the peer says that attached first.
        side: that peer.
        shared: with all others of the connection.

    Attributes:
        name: for people.
        sender: which peer sends on it.
        handles: its number, by the peer that uses it; None while that has not attached, or has detached.
        told: the peers whose attach has gone on, and whose detach has not.
        credit: of the receiver.
        resources: what its messages are for; none if each says that, or if it is not limited.
        terms: what the rules say to these.
        delays: credit is asked for.
        decides: some of its deliveries may have to be decided.
        delivery: the one that is under way.
        request: for credit, while it is decided or held.
        used: deliveries so far; likewise ``refused``.
        settles: its sender settles all, so that none can be refused.
    """

    __slots__ = (
        "_bytes",
        "_shared",
        "_since_ns",
        "_size_bytes",
        "credit",
        "decides",
        "delays",
        "delivery",
        "gone",
        "handles",
        "key",
        "name",
        "refused",
        "request",
        "resources",
        "sender",
        "session",
        "settles",
        "terms",
        "told",
        "used",
    )

    def __init__(self, session: "Conversation", attached: Attached, side: Side, shared: Shared) -> None:
        self._shared = shared
        self.session = session
        self.sender = side.other if attached.receiver else side
        self.name = _shown(attached.name)
        self.key = b""
        self.handles: dict[Side, int | None] = dict.fromkeys(Side)
        self.told: set[Side] = set()
        self.gone = False
        self.credit = Credit(None if attached.receiver else attached.initial_delivery_count or 0)
        self.resources: tuple[Resource, ...] = ()
        self.terms: Terms = NO_TERMS
        self.delays = self.decides = self.settles = False
        self.delivery: Delivery | None = None
        self.request: Request | None = None
        self.used = self.refused = 0
        #: For how many bytes a permit is paid, if bytes are limited at all; and the mean size of deliveries of late.
        self._bytes = 0
        self._size_bytes = 0
        self._since_ns = 0

    @property
    def consumes(self) -> bool:
        """Whether the client takes what comes on it."""
        return self.sender is Side.BROKER

    # --- Rules ------------------------------------------------------------------------------------

    def limit_as(self, resources: tuple[Resource, ...]) -> None:
        """Take what its messages are for, and ask what the rules say."""
        self.resources = resources
        self.ask_terms()

    def ask_terms(self) -> None:
        """Ask what the rules in force say. What they do not limit any more gets all the credit there is."""
        shared = self._shared
        terms = NO_TERMS
        if self.resources:
            terms = shared.context.terms(shared.connection, self.resources, self.consumes)
        self.terms = terms
        # What cannot be refused is shaped by all rules.
        shapes = self.consumes or self.settles
        self.delays = terms.delays or (shapes and terms.refuses)
        self.decides = not shapes and (terms.refuses or terms.most_bytes is not None)
        if terms.most_bytes is None:
            self._pay_for(0)
        if not self.delays:
            self.grant_all()

    @property
    def asks(self) -> Asks:
        """Which rules decide on its credit."""
        return "all" if self.consumes or self.settles else "delaying"

    # --- Credit -----------------------------------------------------------------------------------

    def flow_of_receiver(self, delivery_count: int | None, credit: int | None, drain: bool) -> None:  # noqa: FBT001
        """Take what the receiver says, as it is read; what is wanted then is asked for."""
        self.credit.flow_of_receiver(delivery_count, credit, drain)
        self.wants()
        self._shared.due[self] = None

    def wants(self) -> None:
        """Have the link ask for credit if it wants some; where none is to be asked for it gets what there is."""
        if not self.delays:
            self.grant_all()
        elif self.request is None:
            self._shared.to_ask[self] = None

    def grant_all(self) -> None:
        """Let the sender use all that the receiver said, if it does not anyway."""
        if self.request is None and not self._is_withheld() and self.credit.grant_all():
            self._shared.to_tell[self] = None

    def _is_withheld(self) -> bool:
        return self._shared.withheld and self.sender is Side.CLIENT

    def ask(self) -> Request | None:
        """Return a request for credit if some is wanted; it is to be decided, and is open until then."""
        if self.request is not None or self.gone or not self.delays or self._is_withheld():
            return None
        wanted = self.credit.wanted()
        if not wanted:
            return None
        if self.terms.most_bytes is not None:
            self._pay_for(self._size_bytes)
        self.request = Request(
            self.resources,
            1,
            self._bytes,
            "",
            "impossible",
            None,
            self,
            consumes=self.consumes,
            most=wanted,
            asks=self.asks,
        )
        return self.request

    def hold(self) -> None:
        """Take note that the open request waits."""
        self._since_ns = self._shared.now_ns

    def grant(self, request: Request, permits: int) -> None:
        """Take what was granted to its open request."""
        shared = self._shared
        if self.request is request:
            self.request = None
        self._since_ns = 0
        shared.due[self] = None
        if self.gone:
            shared.charges.append(self._charge(-permits, -permits * request.size_bytes))
            return
        if self._bytes != request.size_bytes:
            shared.charges.append(self._charge(0, permits * (self._bytes - request.size_bytes)))
        if self.credit.grant(permits, shared.now_ns):
            shared.to_tell[self] = None
        self.wants()

    def charge_due(self) -> None:
        """Charge what came without being paid, or give back what was not needed."""
        due = self.credit.take_due()
        if due and self.delays:
            self._shared.charges.append(self._charge(due, due * self._bytes))

    def _charge(self, messages: int, size_bytes: int) -> Charge:
        return Charge(self.resources, messages, size_bytes, consumes=self.consumes, asks=self.asks, counts=False)

    def _pay_for(self, size_bytes: int) -> None:
        """Have a permit be paid for so many bytes, those too that are paid already."""
        prepaid = self.credit.prepaid
        if prepaid and self._bytes != size_bytes:
            self._shared.charges.append(self._charge(0, prepaid * (size_bytes - self._bytes)))
        self._bytes = size_bytes

    def idle(self) -> None:
        """Give back what was paid and not needed, if it is time."""
        self.credit.idle(self._shared.now_ns)
        self._shared.due[self] = None

    # --- Deliveries -------------------------------------------------------------------------------

    def completed(self, deliveries: int, size_bytes: int) -> None:
        """Count whole deliveries that nothing decides on."""
        self.used += deliveries
        shared = self._shared
        if self.resources:
            shared.count(self.resources, deliveries, size_bytes, consumes=self.consumes)
            self.correct(deliveries, size_bytes)

    def correct(self, deliveries: int, size_bytes: int) -> None:
        """Charge what deliveries are beyond the size that was paid for."""
        if self.delays and self.terms.most_bytes is not None:
            mean = size_bytes // deliveries
            weight = min(deliveries, _SIZES)
            self._size_bytes += (mean - self._size_bytes) * weight // _SIZES if self._size_bytes else mean
            if size_bytes != deliveries * self._bytes:
                self._shared.charges.append(self._charge(0, size_bytes - deliveries * self._bytes))

    def came(self, deliveries: int) -> None:
        """Count deliveries whose first frame goes on, or is swallowed."""
        self.credit.came(deliveries)
        if self.delays:
            self._shared.due[self] = None
            self.wants()

    # --- Ends -------------------------------------------------------------------------------------

    def end(self) -> None:
        """Give back what was paid, and give up what is asked for: no more is to come."""
        if self.gone:
            return
        self.gone = True
        shared = self._shared
        if self.request is not None:
            shared.context.give_up([self.request])
        due = self.credit.close()
        if due and self.delays:
            shared.charges.append(self._charge(due, due * self._bytes))
        for links in (shared.to_ask, shared.to_tell, shared.due):
            links.pop(self, None)

    # --- For people -------------------------------------------------------------------------------

    def state(self) -> LinkState:
        """Describe it."""
        credit = self.credit
        channel = self.session.halves[Side.CLIENT].channel
        waits_ns = self._shared.now_ns - self._since_ns if self._since_ns else 0
        return LinkState(
            self.name,
            -1 if channel is None else channel,
            self.sender is Side.CLIENT,
            str(self.resources[0]) if self.resources else "",
            max(0, credit.granted - credit.sent),
            max(0, credit.limit - credit.granted),
            self.used,
            self.refused,
            waits_ns // 1_000_000,
        )


def _shown(name: bytes) -> str:
    text = name[: 4 * _NAME_CHARS].decode(errors="replace")
    return "".join(each if each.isprintable() else "?" for each in text)[:_NAME_CHARS]


Told = Callable[[Iterable[Link]], None]
