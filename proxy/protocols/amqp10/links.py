"""The links of a connection: what each is limited as, the credit it asks for, and what its deliveries cost.

A link has a sender and a receiver, either of which may be the client. Its receiver's credit reaches its sender as far
as it is granted: see ``credit``. Where rules hold what is over them, permits are asked for before messages come; where
rules refuse, or where a message has to be seen before anybody can say what it is for, each delivery is decided.

Settled deliveries cannot be refused. Where one comes on a link that has no credit for what it costs, it is charged at
once, and the link *turns*: from then on it asks for credit for that before more comes, and so do all other links of its
client that have not said what they are for. What comes before is bounded by ``Unpaid``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from limiter.rules.resource import Resource
from limiter.rules.rule import UPERMITS_PER_PERMIT
from proxy.common.buffers import SMALL_FRAME_BYTES, Gathering
from proxy.deciding.batch import Asks, Charge, ConnectionInfo, Paid, Refuse, Request, Side
from proxy.protocols.amqp.about import shown
from proxy.protocols.amqp.names import EXCHANGE, QUEUE, ROUTING_KEY, Names
from proxy.protocols.amqp10.address import Address, delivered, published, target_of
from proxy.protocols.amqp10.credit import Credit, LinkFlow, Unpaid, UnpaidOfClients
from proxy.protocols.amqp10.message import MAX_HEAD_BYTES, MessageHead, may_name_copies
from proxy.protocols.amqp10.parts import LinkPart, SessionPart
from proxy.protocols.amqp10.renumbering import Renumbering
from proxy.protocols.amqp10.scanning import NativeScanner
from proxy.protocols.amqp10.wire import Attached, CutOff, Malformed
from proxy.protocols.base import NO_TERMS, Advance, Buffer, Close, SessionContext, Terms
from proxy.stats.snapshot import LinkState

#: What becomes of a delivery: more of it has to come before it can be decided; it is to be decided; it goes on; or it
#: is swallowed.
UNDECIDED, ASKED, PASSES, SWALLOWED = range(4)
_NOWHERE: Final = Address("nothing")
#: In an attach: the sender settles all.
_SETTLED: Final = 1
#: How fast the mean size follows: a new delivery counts for one in so many.
_SIZES: Final = 8
#: How many messages the links of a client may send that is not paid, where no limit of messages says less.
_MAX_UNPAID: Final = 512
_ANY: Final = Advance(_MAX_UNPAID * UPERMITS_PER_PERMIT, _MAX_UNPAID, _MAX_UNPAID)
#: Remembered for what messages are for that say so themselves.
_MAX_TERMS: Final = 1024


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
        clients: what links of all clients have that is not paid.
        starved: links that want credit that is not paid, of which their client has no more.
        turning: links that are to turn.
        forced: sessions that can keep no more: what is not decided is to be decided by what is known of it.
        charges: what is to be charged, besides.
        paid: what came on credit.
        keeping: sessions that have deliveries of which more has to come before they can be decided.
        short: sessions whose sender may wait for a window that was used by what was swallowed; by the sender's side.
        orphaned: sessions with a link that the client no longer has, and with deliveries that are not settled.
        unblocked: by side, sessions where something was decided that may have been kept back.
        tightest: what the tightest limit lets through that a message may be for.
        withheld: no more credit is granted to what clients send.
        let_in: the broker has opened the connection, too.
        plain: it is not RabbitMQ, so addresses are names of queues.
        rules_version: of the rules that terms were asked by.
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
    clients: UnpaidOfClients = field(default_factory=UnpaidOfClients)
    starved: "dict[Link, None]" = field(default_factory=dict)
    turning: "dict[Link, None]" = field(default_factory=dict)
    forced: "dict[SessionPart[Link], None]" = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    paid: dict[tuple[tuple[Resource, ...], bool], Paid] = field(default_factory=dict)
    keeping: "dict[SessionPart[Link], None]" = field(default_factory=dict)
    short: "dict[tuple[SessionPart[Link], Side], None]" = field(default_factory=dict)
    unblocked: "dict[Side, dict[SessionPart[Link], None]]" = field(default_factory=dict)
    orphaned: "dict[SessionPart[Link], None]" = field(default_factory=dict)
    tightest: Advance | None = None
    withheld: bool = False
    let_in: bool = False
    plain: bool = False
    rules_version: int = 0
    links: int = 0
    under_way: int = 0
    refused: int = 0
    timed: tuple[Renumbering, int] | None = None
    scanners: dict[Side, NativeScanner] = field(default_factory=dict)
    _kept_bytes: int = 0
    _gathering: Gathering | None = None
    #: What rules say to what messages are for, as long as they are the same.
    _terms: dict[tuple[Resource, ...], Terms] = field(default_factory=dict)

    def terms(self, resources: tuple[Resource, ...]) -> Terms:
        """Return what the rules say to messages of the client for some resources."""
        terms = self._terms.get(resources)
        if terms is None:
            if len(self._terms) >= _MAX_TERMS:
                self._terms.clear()
            terms = self._terms[resources] = self.context.terms(self.connection, resources, False)
        return terms

    def unpaid(self, resources: tuple[Resource, ...], terms: Terms) -> Unpaid:
        """Return what the client's links have that is not paid: those for some resources, or for none."""
        advance = terms.advance if resources else self.tightest
        unpaid = self.clients.of(self.connection.address, resources, self.now_ns)
        unpaid.limit(advance or _ANY)
        return unpaid

    def look_at_rules(self) -> None:
        """Take note that rules have changed, or that it is known who the client is."""
        self._terms.clear()
        context = self.context
        self.names.with_keys = context.limits_kind(ROUTING_KEY)
        self.limits = False
        if not self.connection.exempt and context.limiting():
            anyhow = self.terms((Resource(QUEUE, ""),))
            kinds = (QUEUE, EXCHANGE, ROUTING_KEY)
            self.limits = anyhow.limits or any(map(context.limits_kind, kinds))
            found = [each for each in (anyhow.advance, context.tightest(kinds)) if each is not None]
            self.tightest = min(found, default=None)

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
        links = (self.to_ask, self.to_tell, self.due, self.starved, self.turning)
        for known in (*links, self.forced, self.short, self.paid, self.keeping, self.orphaned):
            known.clear()
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
        paid_for: what its credit was paid for when it came, if for anything; None before.
        finished: it was counted, and is paid as far as is known.
        learns: it goes on, though it is not known where it is to go.
    """

    __slots__ = (
        "asked",
        "asked_bytes",
        "asks",
        "complete",
        "fate",
        "finished",
        "head",
        "learns",
        "link",
        "looked_at",
        "number",
        "paid_for",
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
        self.looked_at = self.learns = self.finished = False
        self.paid_for: tuple[Resource, ...] | None = None


class Link(LinkPart):
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
        paid_for: what its credit is asked for: these, or once it has turned all that its last message was for.
        terms: what the rules say to that.
        delays: credit is asked for.
        meters: credit is not asked for, but there is only so much of it, as nobody knows what its messages cost.
        decides: all its deliveries are decided, or looked at.
        most_bytes: larger ones are decided, if it is not None.
        delivery: the one that is under way.
        request: for credit, while it is decided or held.
        flows: of either peer, that have been read and have not gone on.
        used: deliveries so far.
        refused: of these, those that were swallowed.
    """

    __slots__ = (
        "_begun",
        "_bytes",
        "_free",
        "_is_made",
        "_settles",
        "_shared",
        "_since_ns",
        "_size_bytes",
        "_turned",
        "_turns_to",
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
        "paid_for",
        "refused",
        "request",
        "resources",
        "sender",
        "session",
        "terms",
        "told",
        "used",
    )

    def __init__(self, session: "SessionPart[Link]", attached: Attached, side: Side, shared: Shared) -> None:
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
        self.paid_for: tuple[Resource, ...] = ()
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
        #: What it has turned to, and what it is to turn to once all that was read has come; None is nothing.
        self._turned: tuple[Resource, ...] = ()
        self._turns_to: tuple[Resource, ...] | None = None
        #: Where credit is counted that is not paid, if it may have some. While it meters: how much it has not used.
        self._unpaid: Unpaid | None = None
        self._free = 0
        #: For how many bytes a permit is paid, if bytes are limited at all; and the mean size of deliveries of late.
        self._bytes = 0
        self._size_bytes = 0
        self._since_ns = 0

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

    def ask_terms(self, turned: tuple[Resource, ...] | None = None) -> None:
        """Ask what the rules in force say. What they do not limit any more gets all the credit there is.

        Args:
            turned: what it turns to; None is nothing else than before.
        """
        shared = self._shared
        # What came before is not charged to a rule that was not there.
        self.charge_due()
        if self.address.by == "address" and not self.consumes:
            # With keys or without, as rules have it.
            self.resources = published(shared.names, self.address)
        own = self._terms_of(self.resources)
        says, refuses = self._says, own.refuses and not self.consumes and not self._settles
        # Shadow rules restrict nothing.
        meters = says or (refuses and (own.advance or own.most_bytes) is not None)
        unpaid = shared.unpaid(self.resources, own) if shared.limits and meters else None
        turned = self._turned if turned is None else turned
        if unpaid is not None and not turned:
            unpaid.left(shared.now_ns)
            turned = unpaid.paid_for
        terms = self._terms_of(turned) if turned else own
        if turned and not terms.delays and not terms.refuses:
            turned, terms = (), own
        # What cannot be refused is shaped by all rules.
        shapes = self.consumes or self._settles or bool(turned)
        delays = terms.delays or (shapes and terms.refuses)
        self._pay_for_others(turned, delays=delays)
        self.terms = terms
        self.decides = says or (refuses and not shapes)
        self.most_bytes = None if shapes or says else own.most_bytes
        if terms.most_bytes is None:
            self._pay_for(0)
        self._meter(unpaid)
        self.wants()

    def _terms_of(self, resources: tuple[Resource, ...]) -> Terms:
        if not resources:
            return NO_TERMS
        return self._shared.context.terms(self._shared.connection, resources, self.consumes)

    def _pay_for_others(self, turned: tuple[Resource, ...], *, delays: bool) -> None:
        """Have credit be asked for what it has turned to, or for its own, or not at all; give back what was paid."""
        paid_for = turned or self.resources
        if (paid_for, delays, bool(turned)) != (self.paid_for, self.delays, bool(self._turned)):
            request, self.request = self.request, None
            if request is not None:
                self._since_ns = 0
                self._shared.context.give_up([request])
            due = self.credit.repay()
            if due and self.delays:
                self._shared.charges.append(self._charge(due, due * self._bytes))
            self._bytes = 0
        self.paid_for, self.delays, self._turned = paid_for, delays, turned

    def _meter(self, unpaid: Unpaid | None) -> None:
        """Have its credit be counted as unpaid from now on, or no more."""
        meters = unpaid is not None and not self.delays
        if unpaid is self._unpaid and meters is self.meters:
            return
        if self.meters and self._unpaid is not None and not self.delays:
            self._unpaid.take(-self._free)
        self._unpaid, self.meters, self._free = unpaid, meters, 0
        if meters and unpaid is not None:
            self._free = max(0, self.credit.granted - self.credit.sent)
            unpaid.take(self._free)

    def turn(self) -> None:
        """Ask for credit for what its last messages were for, before more come."""
        turns_to, self._turns_to = self._turns_to, None
        if turns_to is not None and not self.gone and turns_to != self._turned:
            self.ask_terms(turns_to)

    @property
    def may_turn(self) -> bool:
        """Whether all that was read has come, so that it is clear how it was paid."""
        return not self._begun

    @property
    def credit_for(self) -> tuple[Resource, ...]:
        """What its credit is paid for; nothing if it is not paid."""
        return self.paid_for if self.delays else ()

    @property
    def was_limited(self) -> bool:
        """Whether its sender gets, or ever got, less than its receiver says."""
        return self.delays or self.meters or self.credit.shaped

    @property
    def asks(self) -> Asks:
        """Which rules decide on its credit."""
        return "all" if self.consumes or self._settles or self._turned else "delaying"

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
        if self.delays:
            # Each look at it later costs more than this.
            if self.credit.wanted():
                self._shared.to_ask[self] = None
        elif self.meters:
            self._grant_some()
        elif self.credit.grant_all():
            self._shared.to_tell[self] = None

    def _grant_some(self) -> None:
        shared, unpaid = self._shared, self._unpaid
        assert unpaid is not None  # noqa: S101 - as it meters
        left = unpaid.left(shared.now_ns)
        if unpaid.paid_for and self._turns_to is None:
            self._turn_to(unpaid.paid_for)
        if self._turns_to:
            return
        granted = self.credit.grant_some(left)
        if granted:
            unpaid.take(granted)
            self._free += granted
        elif self.credit.wanted():
            shared.starved[self] = None
        if self.credit.to_tell:
            shared.to_tell[self] = None

    def _turn_to(self, paid_for: tuple[Resource, ...]) -> None:
        self._turns_to = paid_for
        self._shared.turning[self] = None

    def _is_withheld(self) -> bool:
        return self._shared.withheld and self.sender is Side.CLIENT

    def ask(self) -> Request | None:
        """Return a request for credit if some is wanted; it is to be decided, and is open until then."""
        if self.request is not None or self.gone or self._is_withheld():
            return None
        wanted = self.credit.wanted() if self.delays else 0
        if not wanted:
            return None
        if self.terms.most_bytes is not None:
            # No more than is charged at once: else more would be given back than was charged.
            self._pay_for(min(self._size_bytes, self.terms.most_bytes))
        self.request = Request(
            self.paid_for,
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

    def hold(self, request: Request) -> None:
        """Take note that a request waits; at the end of the link nobody waits for it any more."""
        if self.gone:
            self._shared.context.give_up([request])
        self._since_ns = self._shared.now_ns

    def grant(self, request: Request, permits: int) -> None:
        """Take what was granted to its request."""
        shared = self._shared
        if self.request is request:
            self.request = None
        plenty = permits == request.most and not self._since_ns
        self._since_ns = 0
        as_asked = self.delays and request.resources == self.paid_for and request.asks == self.asks
        if self.gone or self._is_withheld() or not as_asked:
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
            if self.credit.grant(permits, plenty=plenty):
                shared.to_tell[self] = None
            self.falls_due()
        self.wants()

    def falls_due(self) -> None:
        """Have charged what is due, if anything is."""
        if self.credit.due:
            self._shared.due[self] = None

    def charge_due(self) -> None:
        """Charge what came without being paid, or give back what was not needed."""
        due = self.credit.take_due()
        if due and self.delays:
            self._shared.charges.append(self._charge(due, due * self._bytes))

    def _charge(self, messages: int, size_bytes: int) -> Charge:
        return Charge(self.paid_for, messages, size_bytes, consumes=self.consumes, asks=self.asks, counts=False)

    def _pay_for(self, size_bytes: int) -> None:
        """Have a permit be paid for so many bytes, those too that are paid already."""
        prepaid = self.credit.prepaid
        if prepaid and self._bytes != size_bytes:
            self._shared.charges.append(self._charge(0, prepaid * (size_bytes - self._bytes)))
        self._bytes = size_bytes

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
        if self.delays or (self.decides and self._shared.limits):
            name = self.name or "without a name"
            raise Close("transfer_limit_exceeded", f"the client has sent more on link {name} than it had credit for")

    def came(self, deliveries: int) -> None:
        """Count deliveries whose first frame goes on, or is swallowed."""
        self._begun -= deliveries
        self.credit.came(deliveries)
        self._free = max(0, self._free - deliveries)
        if self.delays:
            self.falls_due()
            self.wants()
        elif self.credit.granted < self.credit.limit:
            # It had to drain first what it was told of, or gets it bit by bit.
            self.wants()

    def swallowed(self) -> None:
        """Give the sender of a delivery that came, and does not go on, its credit again."""
        self.credit.swallowed()
        if self.meters:
            self._free += 1

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
        asks: Asks | None = "refusing" if self.decides and terms.refuses and not self._says else None
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
                if self._unpaid is not None:
                    self._did_harm(self.resources)
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
                delivery.resources = self._named(head)
                if delivery.finished:
                    # Its frame had begun to go on, and is over by now.
                    self._charge_late(delivery)
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
        if self.meters and self._unpaid is not None:
            self._unpaid.did_no_harm()
            if refuse is not None:
                # Its sender gets the credit again. Nobody else may have it meanwhile.
                self._unpaid.take(1)
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
        delivery.finished = True
        late = any(each not in asked for each in named)
        if late:
            self._shared.count(named, 1, size_bytes, consumes=False)
        if self._says:
            self.used += 1
            self._pay_late(delivery)
        elif late or not asked_bytes or asked == named:
            self.completed(1, size_bytes)
            if late and not set(named) <= set(self._turned):
                self._charge_late(delivery)
        else:
            self.used += 1
            if delivery.asks == "refusing":
                self._correct(1, size_bytes)
            elif self.delays:
                # It was paid for as credit before.
                self._shared.charges.append(self._charge(-1, -self._bytes))

    def _pay_late(self, delivery: Delivery) -> None:
        """Have a delivery be paid that says itself what it is for."""
        unpaid, named, decided = self._unpaid, delivery.resources, delivery.asked_bytes > 0
        paid_for = self.credit_for if delivery.paid_for is None else delivery.paid_for
        if paid_for:
            if named == paid_for and not decided:
                self._correct(1, delivery.size_bytes)
                self._did_harm(named)
                return
            # As credit it was paid for something else, or it is paid twice.
            self._shared.charges.append(Charge(paid_for, -1, -self._bytes, counts=False))
        if decided:
            return
        if named and self._shared.terms(named).limits:
            self._charge_late(delivery)
        elif self.meters and unpaid is not None:
            unpaid.did_no_harm()
        elif unpaid is not None and not unpaid.pays(self._shared.now_ns):
            self._turn_to(())

    def _charge_late(self, delivery: Delivery) -> None:
        """Charge a delivery that was not refused for what it says itself, and have credit be paid for that."""
        named = delivery.resources
        if self._shared.terms(named).limits:
            self._shared.charges.append(Charge(named, 1, delivery.size_bytes, counts=False))
            self._did_harm((*self.resources, *named))

    def _did_harm(self, resources: tuple[Resource, ...]) -> None:
        advance = self._shared.terms(resources).advance
        if self._says and advance is not None and not advance.most:
            # All is refused there, so nothing that is paid for it would ever come.
            return
        if self._unpaid is not None:
            self._unpaid.did_harm(resources, self._shared.now_ns)
        if resources != self._turned:
            self._turn_to(resources)

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
        self.request = None
        self._meter(None)
        due = self.credit.repay()
        if due and self.delays:
            shared.charges.append(self._charge(due, due * self._bytes))
        for links in (shared.to_ask, shared.to_tell, shared.due, shared.starved, shared.turning):
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
