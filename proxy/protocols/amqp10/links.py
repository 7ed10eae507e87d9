"""The links of a connection: what each is limited as, the credit it asks for, and what its deliveries cost.

A link has a sender and a receiver, either of which may be the client. Its receiver's credit reaches its sender as far
as it is granted: see ``credit``. Where rules hold what is over them, permits are asked for before messages come; where
rules refuse, or where a message has to be seen before anybody can say what it is for, each delivery is decided.

Settled deliveries cannot be refused. Where one has to be seen before anybody can say what it is for, its link *owes*
what it costs: it asks for that as it would for credit, and waits in the same line, but gets no credit until it is paid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from limiter.rules.resource import Resource
from proxy.common.buffers import SMALL_FRAME_BYTES, Gathering
from proxy.deciding.batch import Asks, Charge, ConnectionInfo, Paid, Refuse, Request, Side
from proxy.protocols.amqp.about import shown
from proxy.protocols.amqp.names import EXCHANGE, QUEUE, ROUTING_KEY, Names
from proxy.protocols.amqp10.address import Address, delivered, published, target_of
from proxy.protocols.amqp10.credit import MOST_WINDOW, Credit, LinkFlow
from proxy.protocols.amqp10.message import MAX_HEAD_BYTES, MessageHead, may_name_copies
from proxy.protocols.amqp10.wire import Attached, CutOff, Malformed
from proxy.protocols.base import NO_TERMS, Buffer, Close, SessionContext, Terms
from proxy.stats.snapshot import LinkState

if TYPE_CHECKING:
    from proxy.protocols.amqp10.conversation import Conversation
    from proxy.protocols.amqp10.renumbering import Renumbering
    from proxy.protocols.amqp10.scanning import NativeScanner

#: What becomes of a delivery: more of it has to come before it can be decided; it is to be decided; it goes on; or it
#: is swallowed.
UNDECIDED, ASKED, PASSES, SWALLOWED = range(4)
_NOWHERE: Final = Address("nothing")
#: In an attach: the sender settles all.
_SETTLED: Final = 1
#: How fast the mean size follows: a new delivery counts for one in so many.
_SIZES: Final = 8
#: For so many different things a link may owe at a time; what is for others is charged at once.
_MOST_OWED: Final = 8
#: How many messages all links of a connection may send by credit that they did not use and that is not charged.
MOST_UNPAID: Final = 512
#: Remembered for what messages are for that say so themselves.
_MOST_TERMS: Final = 1024


@dataclass(slots=True)
class Shared:
    """What all links of a connection have in common.

    Attributes:
        context: of the session.
        connection: who the client is, as far as it has said so.
        names: of what messages are for.
        now_ns: of the call in hand.
        limits: any message of the client may be limited.
        requests: deliveries that are to be decided.
        to_ask: links that may want credit.
        to_tell: links whose sender may have to hear of credit.
        rejected: deliveries that were swallowed, and whose sender is to hear of that.
        due: links that may have something to charge.
        idle: links for which something is paid that may not be needed.
        forced: sessions that can keep no more: what is not decided is to be decided by what is known of it.
        charges: what is to be charged, besides.
        paid: what came on credit.
        keeping: sessions that have deliveries of which more has to come before they can be decided.
        short: sessions whose sender may wait for a window that was used by what was swallowed; by the sender's side.
        orphaned: sessions with a link that the client no longer has, and with deliveries that are not settled.
        unblocked: by side, sessions where something was decided that may have been kept back.
        withheld: no more credit is granted to what clients send.
        let_in: the broker has opened the connection, too.
        plain: it is not RabbitMQ, so addresses are names of queues.
        rules_version: of the rules that terms were asked by.
        unpaid: how many messages its links may send that are not charged; of those that are limited.
        links: how many there are.
        under_way: of the client's links, how many are within a delivery.
        refused: deliveries that were swallowed.
        timed: the numbers among which one delivery of the client is watched, and since when.
        scanners: compiled code that takes runs of plain frames of a peer, if there is any.
    """

    context: SessionContext
    connection: ConnectionInfo
    names: Names = field(default_factory=Names)
    now_ns: int = 0
    limits: bool = False
    requests: list[Request] = field(default_factory=list)
    to_ask: "dict[Link, None]" = field(default_factory=dict)
    to_tell: "dict[Link, None]" = field(default_factory=dict)
    rejected: "list[Delivery]" = field(default_factory=list)
    due: "dict[Link, None]" = field(default_factory=dict)
    idle: "dict[Link, None]" = field(default_factory=dict)
    forced: "dict[Conversation, None]" = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    paid: dict[tuple[tuple[Resource, ...], bool], Paid] = field(default_factory=dict)
    keeping: "dict[Conversation, None]" = field(default_factory=dict)
    short: "dict[tuple[Conversation, Side], None]" = field(default_factory=dict)
    unblocked: "dict[Side, dict[Conversation, None]]" = field(default_factory=dict)
    orphaned: "dict[Conversation, None]" = field(default_factory=dict)
    withheld: bool = False
    let_in: bool = False
    plain: bool = False
    rules_version: int = 0
    unpaid: int = 0
    links: int = 0
    under_way: int = 0
    refused: int = 0
    timed: "tuple[Renumbering, int] | None" = None
    scanners: "dict[Side, NativeScanner]" = field(default_factory=dict)
    _kept_bytes: int = 0
    _gathering: Gathering | None = None
    #: What rules say to what messages are for, as long as they are the same.
    _terms: dict[tuple[Resource, ...], Terms] = field(default_factory=dict)

    def terms(self, resources: tuple[Resource, ...]) -> Terms:
        """Return what the rules say to messages of the client for some resources."""
        terms = self._terms.get(resources)
        if terms is None:
            if len(self._terms) >= _MOST_TERMS:
                self._terms.clear()
            terms = self._terms[resources] = self.context.terms(self.connection, resources, False)
        return terms

    def look_at_rules(self) -> None:
        """Take note that rules have changed, or that it is known who the client is."""
        self._terms.clear()
        context = self.context
        self.names.with_keys = context.limits_kind(ROUTING_KEY)
        self.limits = False
        if not self.connection.exempt and context.limiting():
            anyhow = self.terms((Resource(QUEUE, ""),)).limits
            self.limits = anyhow or any(map(context.limits_kind, (QUEUE, EXCHANGE, ROUTING_KEY)))

    def keep(self, size_bytes: int) -> bool:
        """Take room for frames that are kept back, or give some back; return whether there is room."""
        self._kept_bytes += size_bytes
        room = self.context.room
        if self._kept_bytes <= SMALL_FRAME_BYTES:
            if self._gathering is not None:
                room.give_back(self._gathering)
                self._gathering = None
            return True
        if self._gathering is None:
            self._gathering = Gathering(self.connection.address, self._lose)
        return room.grow(self._gathering, self._kept_bytes, self.now_ns)

    def _lose(self) -> None:
        """Take note that others have the room now."""
        self.forced |= self.keeping
        self.context.wake()

    def forget(self) -> None:
        """Give back the room, and forget all links."""
        if self._gathering is not None:
            self.context.room.give_back(self._gathering)
            self._gathering = None
        for known in (self.to_ask, self.to_tell, self.due, self.idle, self.forced, self.short, self.paid, self.keeping):
            known.clear()
        self.orphaned.clear()
        for kept in (self.requests, self.rejected, self.charges):
            kept.clear()

    def charge_due(self) -> None:
        """Have links charge what is due."""
        due, self.due = self.due, {}
        for link in due:
            link.charge_due()

    @property
    def has_more(self) -> bool:
        """Whether there may be something to charge, or to count."""
        return bool(self.paid or self.due or self.charges)

    def take_charges(self) -> Sequence[Charge]:
        """Hand out, once, what is to be charged."""
        if self.due:
            self.charge_due()
        if not self.charges:
            return ()
        charges, self.charges = self.charges, []
        return charges

    def take_paid(self) -> Sequence[Paid]:
        """Hand out, once, what came on credit."""
        if not self.paid:
            return ()
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
        link: on which it comes.
        number: its delivery-id, as its sender counts.
        renumbered: likewise as its receiver counts, once its first frame has gone on.
        settled: its sender has settled it; no refusal can be said.
        size_bytes: of its frames so far.
        complete: all of them have been read.
        fate: what becomes of it.
        why: for its sender, if it is swallowed.
        resources: what it is for, where it says so itself; of one that names copies, these.
        head: what it says of that; None once nobody asks any more.
        request: while it is decided.
        asked: for what it was decided.
        asked_bytes: as how many; 0 if nothing decided on it.
        asks: which rules did.
        looked_at: it was looked at before it went on.
        learns: it goes on, though it is not known where it is to go.
    """

    __slots__ = (
        "asked",
        "asked_bytes",
        "asks",
        "complete",
        "fate",
        "head",
        "learns",
        "link",
        "looked_at",
        "number",
        "renumbered",
        "request",
        "resources",
        "settled",
        "size_bytes",
        "why",
    )

    def __init__(self, link: "Link", number: int, *, settled: bool) -> None:
        self.link = link
        self.number = self.renumbered = number
        self.settled = settled
        self.size_bytes = 0
        self.complete = False
        self.fate = PASSES
        self.why = ""
        self.resources: tuple[Resource, ...] = ()
        self.head: MessageHead | None = None
        self.request: Request | None = None
        self.asked: tuple[Resource, ...] = ()
        self.asked_bytes = 0
        self.asks: Asks = "all"
        self.looked_at = self.learns = False


class Link:
    """One link.

    Args:
        session: that it belongs to.
        attached: what the peer says that attached first.
        side: that peer.
        shared: with all others of the connection.

    Attributes:
        session: as given.
        name: for people.
        node: the address that it was attached to, for people; empty without one.
        sender: which peer sends on it.
        handles: its number, by the peer that uses it; None while that has not attached, or has detached.
        told: the peers whose attach has gone on, and whose detach has not.
        gone: it is at an end.
        credit: of the receiver.
        address: where messages of the client go.
        resources: what its messages are for; none if each says that, or if it is not limited.
        terms: what the rules say to these.
        delays: credit is asked for.
        meters: credit is not asked for, but it gets it bit by bit, as what it may owe is not known before.
        decides: all its deliveries are decided, or looked at.
        most_bytes: larger ones are decided, if it is not None.
        delivery: the one that is under way.
        request: for credit, or for what it owes, while it is decided or held.
        flows: of either peer, that have been read and have not gone on.
        used: deliveries so far.
        refused: of these, those that were swallowed.
    """

    __slots__ = (
        "_begun",
        "_bytes",
        "_is_made",
        "_owed",
        "_pays",
        "_settles",
        "_shared",
        "_since_ns",
        "_size_bytes",
        "_unpaid",
        "address",
        "credit",
        "decides",
        "delays",
        "delivery",
        "flows",
        "gone",
        "handles",
        "meters",
        "most_bytes",
        "name",
        "node",
        "refused",
        "request",
        "resources",
        "sender",
        "session",
        "terms",
        "told",
        "used",
    )

    def __init__(self, session: "Conversation", attached: Attached, side: Side, shared: Shared) -> None:
        self._shared = shared
        self.session = session
        self.sender = side.other if attached.receiver else side
        self.name = shown(attached.name)
        self.node = ""
        self.handles: dict[Side, int | None] = dict.fromkeys(Side)
        self.told: set[Side] = set()
        self.gone = False
        self.credit = Credit(None if attached.receiver else attached.initial_delivery_count or 0)
        self.address = _NOWHERE
        self.resources: tuple[Resource, ...] = ()
        self.terms: Terms = NO_TERMS
        self.delays = self.meters = self.decides = False
        self.most_bytes: int | None = None
        self.delivery: Delivery | None = None
        self.request: Request | None = None
        self.flows = self.used = self.refused = 0
        #: Deliveries that were read and have not come yet.
        self._begun = 0
        #: Its node is one that the broker makes.
        self._is_made = False
        #: Its sender settles all, so that none can be refused.
        self._settles = False
        #: What it owes, by what it was for: messages, and bytes. ``request`` is for the first.
        self._owed: dict[tuple[Resource, ...], tuple[int, int]] = {}
        self._pays = False
        #: For how many bytes a permit is paid, if bytes are limited at all; and the mean size of deliveries of late.
        self._bytes = 0
        self._size_bytes = 0
        self._since_ns = 0
        #: Its part of what the connection has ``unpaid``.
        self._unpaid = 0

    @property
    def consumes(self) -> bool:
        """Whether the client takes what comes on it."""
        return self.sender is Side.BROKER

    # --- Rules ------------------------------------------------------------------------------------

    def take_attach(self, side: Side, attached: Attached) -> None:
        """Take what a peer says of it: the client's word counts, but for a node that the broker makes."""
        terminus = attached.source if self.consumes else attached.target
        if side is Side.BROKER and self.handles[Side.CLIENT] is not None and not self._is_made:
            return
        self._is_made = terminus is not None and terminus.dynamic
        self.node = "" if terminus is None or terminus.address is None else shown(terminus.address)
        if side is Side.CLIENT:
            self._settles = attached.snd_settle_mode == _SETTLED
        if self.consumes:
            self.resources = delivered(self._shared.names, terminus, plain=self._shared.plain)
        else:
            self.address = target_of(terminus, plain=self._shared.plain)
            self.resources = published(self._shared.names, self.address)
        self.ask_terms()

    def ask_terms(self) -> None:
        """Ask what the rules in force say. What they do not limit any more gets all the credit there is."""
        shared = self._shared
        # What came before is not charged to a rule that was not there.
        self.charge_due()
        if self.address.by == "address" and not self.consumes:
            # With keys or without, as rules have it.
            self.resources = published(shared.names, self.address)
        terms = NO_TERMS
        if self.resources:
            terms = shared.context.terms(shared.connection, self.resources, self.consumes)
        self.terms = terms
        says = self._says
        # What cannot be refused is shaped by all rules.
        shapes = self.consumes or self._settles or says
        self.delays = terms.delays or (shapes and terms.refuses)
        self.meters = says and shared.limits
        self.decides = says or (not shapes and terms.refuses)
        self.most_bytes = None if shapes else terms.most_bytes
        if terms.most_bytes is None:
            self._pay_for(0)
        self._count_unpaid()
        self.wants()

    @property
    def was_limited(self) -> bool:
        """Whether its sender gets, or ever got, less than its receiver says."""
        return self.delays or self.meters or self.credit.shaped

    @property
    def asks(self) -> Asks:
        """Which rules decide on its credit."""
        return "all" if self.consumes or self._settles or self._says else "delaying"

    @property
    def _says(self) -> bool:
        """Whether each message says itself what it is for."""
        return self.address.by in {"to", "subject"}

    # --- Credit -----------------------------------------------------------------------------------

    def flow_of_receiver(self, delivery_count: int | None, credit: int | None, drain: bool) -> None:  # noqa: FBT001
        """Take what the receiver says, as it is read; what is wanted then is asked for."""
        self.credit.flow_of_receiver(delivery_count, credit, drain)
        self.falls_due()
        self.wants()

    def flow_of_sender(
        self,
        delivery_count: int | None,
        credit: int | None,
        available: int | None,
        drain: bool,  # noqa: FBT001
    ) -> LinkFlow | None:
        """Take what the sender says, as ``Credit`` does."""
        said = self.credit.flow_of_sender(delivery_count, credit, available, drain)
        self.falls_due()
        self.wants()
        return said

    def wants(self) -> None:
        """Have the link ask for credit if it wants some; where none is to be asked for it gets what there is."""
        if self.gone or self.request is not None or self._is_withheld():
            return
        if self._owed:
            self._shared.to_ask[self] = None
        elif self.delays:
            # Each look at it later costs more than this.
            if self.credit.wanted():
                self._shared.to_ask[self] = None
        elif self._grant_some() if self.meters else self.credit.grant_all():
            self._shared.to_tell[self] = None

    def _grant_some(self) -> bool:
        # One may come on each link in any case, since it is not known which of them will be used.
        told = self.credit.grant_some(MOST_WINDOW if self._shared.unpaid < MOST_UNPAID else 1)
        self._count_unpaid()
        return told

    def _is_withheld(self) -> bool:
        return self._shared.withheld and self.sender is Side.CLIENT

    def ask(self) -> Request | None:
        """Return a request for credit if some is wanted; it is to be decided, and is open until then."""
        if self.request is not None or self.gone or self._is_withheld():
            return None
        if self._owed:
            return self._ask_for_owed()
        wanted = self.credit.wanted() if self.delays else 0
        if not wanted:
            return None
        if self.terms.most_bytes is not None:
            # No more than is charged at once: else more would be given back than was charged.
            self._pay_for(min(self._size_bytes, self.terms.most_bytes))
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

    def _ask_for_owed(self) -> Request:
        resources, (messages, size_bytes) = next(iter(self._owed.items()))
        most_bytes = self._shared.terms(resources).most_bytes
        # More than is admitted at once would never be granted.
        each_bytes = 0 if most_bytes is None else min(size_bytes // messages, most_bytes)
        self._pays = True
        self.request = Request(resources, 1, each_bytes, "", "impossible", None, self, most=min(messages, MOST_WINDOW))
        return self.request

    def _paid(self, request: Request, permits: int) -> None:
        """Take what was granted of what it owes."""
        resources, each_bytes = request.resources, request.size_bytes
        messages, size_bytes = self._owed.pop(resources)
        left, left_bytes = messages - permits, size_bytes - permits * each_bytes
        if left > 0:
            self._owed[resources] = left, left_bytes
        elif left_bytes and self._shared.terms(resources).most_bytes is not None:
            self._shared.charges.append(Charge(resources, 0, left_bytes, counts=False))

    def _owe(self, resources: tuple[Resource, ...], size_bytes: int) -> None:
        """Take note that a delivery goes on that is not paid for."""
        if not resources or not self._shared.terms(resources).limits:
            return
        owed = self._owed
        if self.gone or (resources not in owed and len(owed) >= _MOST_OWED):
            self._shared.charges.append(Charge(resources, 1, size_bytes, counts=False))
            return
        messages, owed_bytes = owed.get(resources, (0, 0))
        owed[resources] = messages + 1, owed_bytes + size_bytes
        self.wants()

    def hold(self, request: Request) -> None:
        """Take note that a request waits; at the end of the link nobody waits for it any more."""
        if self.gone:
            self._shared.context.give_up([request])
        self._since_ns = self._shared.now_ns

    def grant(self, request: Request, permits: int) -> None:
        """Take what was granted to its request."""
        shared = self._shared
        pays = False
        if self.request is request:
            self.request = None
            pays, self._pays = self._pays, False
        plenty = permits == request.most and not self._since_ns
        self._since_ns = 0
        if pays:
            self._paid(request, permits)
            if not plenty:
                self.credit.narrow()
        elif self.gone or self._is_withheld() or request.resources != self.resources or not self.delays:
            # Nobody is to use it, or it is paid for otherwise.
            shared.charges.append(
                Charge(
                    request.resources,
                    -permits,
                    -permits * request.size_bytes,
                    consumes=request.consumes,
                    asks=request.asks,
                    counts=False,
                )
            )
        else:
            if self._bytes != request.size_bytes:
                shared.charges.append(self._charge(0, permits * (self._bytes - request.size_bytes)))
            if self.credit.grant(permits, shared.now_ns, plenty=plenty):
                shared.to_tell[self] = None
            self.falls_due()
        self.wants()

    def falls_due(self) -> None:
        """Have charged what is due, if anything is."""
        if self.credit.due:
            self._shared.due[self] = None
        if self._unpaid:
            self._count_unpaid()

    def _count_unpaid(self) -> None:
        """Count what it has of the connection's ``unpaid``."""
        unpaid = 0
        if (self.delays or self.meters) and not self.gone:
            credit = self.credit
            unpaid = max(0, credit.granted - credit.sent - (credit.prepaid if self.delays else 0))
        self._shared.unpaid += unpaid - self._unpaid
        self._unpaid = unpaid

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
        self.credit.idle(self._shared.now_ns, max(0, MOST_UNPAID - self._shared.unpaid))
        self._count_unpaid()
        self.falls_due()

    # --- Deliveries -------------------------------------------------------------------------------

    def begins(self, deliveries: int) -> None:
        """Take note that deliveries are read; ``came`` follows.

        Raises:
            Close: a client sends more than it was told that it may. Its receiver has given more than that, and would
                take it: a way past all limits. None of them goes on, nor is any charged.
        """
        self._begun += deliveries
        if self.consumes or not self.credit.beyond(self._begun):
            return
        if self.delays or self._owed or (self.decides and self._shared.limits):
            name = self.name or "without a name"
            raise Close("transfer_limit_exceeded", f"the client has sent more on link {name} than it had credit for")

    def came(self, deliveries: int) -> None:
        """Count deliveries whose first frame goes on, or is swallowed."""
        self._begun -= deliveries
        self.credit.came(deliveries)
        if self.delays:
            self.falls_due()
            self.wants()
        elif self.credit.granted < self.credit.limit:
            # It had to drain first what it was told of, or gets it bit by bit.
            self.wants()

    def completed(self, deliveries: int, size_bytes: int) -> None:
        """Count whole deliveries that nothing decided on."""
        self.used += deliveries
        if self.resources:
            self._shared.count(self.resources, deliveries, size_bytes, consumes=self.consumes)
            self._correct(deliveries, size_bytes)

    def _correct(self, deliveries: int, size_bytes: int) -> None:
        """Charge what deliveries are beyond the size that was paid for."""
        if self.delays and self.terms.most_bytes is not None:
            mean = size_bytes // deliveries
            change = (mean - self._size_bytes) * min(deliveries, _SIZES) // _SIZES
            self._size_bytes = self._size_bytes + change if self._size_bytes else mean
            if size_bytes != deliveries * self._bytes:
                self._shared.charges.append(self._charge(0, size_bytes - deliveries * self._bytes))

    def may_name_copies(self, payload: Buffer, *, is_last: bool) -> bool:
        """Say whether a delivery that begins may name copies of itself that are limited.

        Args:
            payload: as far as it has come.
            is_last: that is all of it.
        """
        if not self.copies or not self._shared.limits:
            return False
        if is_last and len(payload) <= MAX_HEAD_BYTES:
            return may_name_copies(payload)
        head = MessageHead()
        try:
            return not head.take(payload, last=False) or bool(head.copies)
        except Malformed:
            # What is no section at all is for the broker to refuse.
            return payload[0] == 0

    def looks_at(self, delivery: Delivery, *, names_copies: bool) -> bool:
        """Say whether a delivery that begins has to be looked at before it goes on."""
        if self._says or names_copies:
            delivery.head = MessageHead()
            return True
        return self.decides or self.most_bytes is not None

    @property
    def keeps_bytes(self) -> int:
        """How much may be kept back of a session for one of its deliveries."""
        return max(SMALL_FRAME_BYTES, self.most_bytes or 0)

    def decide(self, delivery: Delivery, payload: Buffer, *, is_last: bool, must: bool) -> None:
        """Decide a delivery that is looked at, or ask for that, as soon as enough is known.

        Args:
            delivery: of this link.
            payload: what has come of it since the last time.
            is_last: it ends with that.
            must: no more of it can be waited for.
        """
        terms, resources = self.terms, self.resources
        asks: Asks | None = "refusing" if self.decides and terms.refuses else None
        most_bytes = self.most_bytes
        if delivery.head is not None:
            try:
                known = delivery.head.take(payload, last=is_last)
            except Malformed as error:
                self._decide_unknown(delivery, error)
                return
            if not known:
                if must:
                    self._decide_unknown(delivery, None)
                return
            delivery.resources = self._named(delivery.head)
            named = self._shared.terms(delivery.resources) if delivery.resources else NO_TERMS
            if named.delays or named.refuses:
                # A link's own resources are paid for by its credit, unless each of its deliveries is decided.
                resources = (*resources, *delivery.resources) if asks else delivery.resources
                asks = "all"
            most_bytes = min((most for most in (most_bytes, named.most_bytes) if most is not None), default=None)
        size_bytes = delivery.size_bytes
        if most_bytes is not None and size_bytes <= most_bytes and not delivery.complete and not must:
            # It may still be too large.
            return
        if self.most_bytes is not None and size_bytes > self.most_bytes:
            resources, asks = (*self.resources, *delivery.resources), "all"
        if asks is None:
            delivery.fate = PASSES
        else:
            self._ask_for(delivery, resources, asks)
        if delivery.fate == PASSES and delivery.complete:
            self.finish(delivery)

    def _named(self, head: MessageHead) -> tuple[Resource, ...]:
        """Return what a message is for besides what its link is for."""
        resources = published(self._shared.names, self.address, head)
        return tuple(each for each in resources if each not in self.resources) if self.resources else resources

    def _ask_for(self, delivery: Delivery, resources: tuple[Resource, ...], asks: Asks) -> None:
        """Have a delivery be decided; one that is settled passes."""
        if delivery.settled:
            delivery.fate = PASSES
            if self.decides and self.resources:
                charge = Charge(self.resources, 1, delivery.size_bytes, asks="refusing", counts=False)
                self._shared.charges.append(charge)
            return
        delivery.fate = ASKED
        delivery.asks = asks
        delivery.asked = resources
        delivery.asked_bytes = delivery.size_bytes
        delivery.request = Request(
            resources, 1, delivery.size_bytes, "", "answered", None, delivery, asks=asks, may_wait=False
        )
        self._shared.requests.append(delivery.request)

    def _decide_unknown(self, delivery: Delivery, error: Malformed | None) -> None:
        """Decide a delivery that does not say where it is to go: its broker could read it in another way.

        Raises:
            Close: it cannot be read, so that it could be for anything, and it cannot be refused.
        """
        limits = self._shared.limits
        if not delivery.settled and limits and self._may_swallow():
            why = "a message that does not say where it is to go" if error is None else str(error)
            self._swallow(delivery, f"SYSTEM_BUSY: {why}")
            return
        delivery.fate = PASSES
        delivery.learns = True
        if limits and error is not None:
            _check_unread(error)
        if delivery.complete:
            self.finish(delivery)

    def learn(self, delivery: Delivery, payload: Buffer, *, is_last: bool) -> None:
        """Have a delivery be paid that had to go on before it said where it is to go, as soon as it does.

        Raises:
            Close: as before.
        """
        head = delivery.head
        assert head is not None  # noqa: S101 - else nobody asks
        try:
            if head.take(payload, last=is_last):
                delivery.learns = False
                self._owe(self._named(head), delivery.size_bytes)
        except Malformed as error:
            if self._shared.limits:
                _check_unread(error)
            delivery.learns = False

    def decided(self, delivery: Delivery, refuse: Refuse | None) -> None:
        """Take the verdict on a delivery."""
        request, delivery.request = delivery.request, None
        self._shared.unblocked[self.sender][self.session] = None
        if refuse is not None and not self._may_swallow():
            refuse = None
            if request is not None:
                # It goes on, and costs and counts what it would have if it had not been over a rule.
                self._shared.charges.append(Charge(request.resources, 1, request.size_bytes, asks=delivery.asks))
        if refuse is None:
            delivery.fate = PASSES
            if delivery.complete:
                self.finish(delivery)
            return
        if refuse.most is not None:
            most = f"{refuse.most} {refuse.most_of}"
            why = f"takes no message of more than the {most} that rule {refuse.rule} admits at once"
        else:
            why = f"over rule {refuse.rule}; try again in {-(-refuse.wait_us // 1000)} ms"
        self._swallow(delivery, f"SYSTEM_BUSY: {refuse.resource} {why}")

    def _may_swallow(self) -> bool:
        """Return whether one more delivery may be swallowed: how many numbers are kept for that is bounded."""
        return self.session.halves[self.sender].ids.reserve()

    def _swallow(self, delivery: Delivery, why: str) -> None:
        delivery.fate = SWALLOWED
        delivery.why = why
        self._shared.refused += 1
        self.refused += 1

    def finish(self, delivery: Delivery) -> None:
        """Count a delivery that goes on, and of which all has been read."""
        size_bytes, asked_bytes = delivery.size_bytes, delivery.asked_bytes
        named, asked = delivery.resources, delivery.asked
        if asked_bytes and size_bytes > asked_bytes:
            self._shared.charges.append(Charge(asked, 0, size_bytes - asked_bytes, asks=delivery.asks))
        if any(each not in asked for each in named):
            self._shared.count(named, 1, size_bytes, consumes=False)
            self._owe(named, size_bytes)
        if self._says:
            self.used += 1
        elif not asked_bytes or asked == named:
            self.completed(1, size_bytes)
        else:
            self.used += 1
            if delivery.asks == "refusing":
                self._correct(1, size_bytes)
            elif self.delays:
                # It was paid for as credit before.
                self._shared.charges.append(self._charge(-1, -self._bytes))

    @property
    def copies(self) -> bool:
        """Whether its messages may name copies."""
        return self.address.by == "address" and not self.address.plain and not self.consumes

    # --- Ends -------------------------------------------------------------------------------------

    def end(self) -> None:
        """Give back what was paid, and give up what is asked for: no more is to come."""
        if self.gone:
            return
        self.gone = True
        shared = self._shared
        if self.request is not None:
            shared.context.give_up([self.request])
        for resources, (messages, size_bytes) in self._owed.items():
            shared.charges.append(Charge(resources, messages, size_bytes, counts=False))
        self._owed.clear()
        self._pays = False
        self.request = None
        self._count_unpaid()
        due = self.credit.close()
        if due and self.delays:
            shared.charges.append(self._charge(due, due * self._bytes))
        for links in (shared.to_ask, shared.to_tell, shared.due, shared.idle):
            links.pop(self, None)

    # --- For people -------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether it waits for credit."""
        return not self.gone and self._since_ns > 0

    @property
    def limited_as(self) -> str:
        """What it waits for, or would wait for; empty if that is not known."""
        resources = self.resources if self.request is None else self.request.resources
        return str(resources[0]) if resources else ""

    def since(self) -> tuple[bool, int]:
        """Return what puts those first that wait for longest."""
        return not self._since_ns, self._since_ns

    def state(self) -> LinkState:
        """Describe it."""
        credit = self.credit
        channel = self.session.halves[Side.CLIENT].channel
        waits_ns = self._shared.now_ns - self._since_ns if self._since_ns else 0
        return LinkState(
            self.name,
            -1 if channel is None else channel,
            self.sender is Side.CLIENT,
            self.limited_as,
            max(0, credit.granted - credit.sent),
            max(0, credit.limit - credit.granted),
            self.used,
            self.refused,
            waits_ns // 1_000_000,
            self.node,
        )


def _check_unread(error: Malformed) -> None:
    """End the connection for a message that cannot be refused, unless it is cut off, so that nobody can read it."""
    if not isinstance(error, CutOff):
        raise Close("unreadable_message", f"the client has sent {error}; settled ones cannot be refused") from None
