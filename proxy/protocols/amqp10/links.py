"""The links of a connection: their limits, their requests for credit, and the cost of their deliveries.

Under rules that delay, a link requests permits in advance, and grants its sender that much credit (see ``credit``).
Under rules that refuse, or if messages name their own address, each delivery is decided.

A settled delivery cannot be refused. If one arrives on credit that is not paid for, the delivery is charged, and its
link *turns*: from then on, it requests credit for the delivery's resources in advance. The client's other links turn,
too, if their messages name their own address. ``Unpaid`` bounds the number of deliveries before the turn.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from limiter.rules.resource import Resource
from limiter.rules.rule import ADAPTIVE_NAME, UPERMITS_PER_PERMIT
from proxy.common.buffers import SMALL_FRAME_BYTES, Gathering
from proxy.deciding.batch import Asks, Batch, Charge, ConnectionInfo, Paid, Refuse, Request, Side
from proxy.protocols.amqp.client_info import shown
from proxy.protocols.amqp.names import EXCHANGE, QUEUE, ROUTING_KEY, Names
from proxy.protocols.amqp10.address import Address, delivered, published, target_of
from proxy.protocols.amqp10.credit import Credit, LinkFlow, Numbers, PlainCredit, Unpaid, UnpaidOfClients
from proxy.protocols.amqp10.message import MAX_HEAD_BYTES, MessageHead, may_name_copies
from proxy.protocols.amqp10.renumbering import Renumbering, Transfers
from proxy.protocols.amqp10.wire import Attached, CutOff, Malformed
from proxy.protocols.base import NO_TERMS, Advance, Buffer, Close, SessionContext, Terms
from proxy.stats.snapshot import LinkState

# States of a delivery: incomplete, being decided, forwarded, refused.
UNDECIDED, ASKED, PASSES, SWALLOWED = range(4)
Allowance = tuple[int | None, int | None, PlainCredit | None]
"""The result of ``Link.allowance``."""
Flowed = tuple[Numbers, tuple[int | None, int | None]]
_UNROUTABLE: Final = Address("nothing")
_SETTLED: Final = 1  # snd-settle-mode
_SIZES: Final = 8
_MAX_UNPAID: Final = 512
_ANY: Final = Advance(_MAX_UNPAID * UPERMITS_PER_PERMIT, _MAX_UNPAID, _MAX_UNPAID)


class SessionPart(Protocol):
    @property
    def halves(self) -> "Mapping[Side, Half]": ...
    def decide_now(self) -> None: ...
    def check_window(self, side: Side) -> None: ...


@dataclass(slots=True)
class Shared:
    context: SessionContext
    connection: ConnectionInfo
    names: Names = field(default_factory=Names)
    now_ns: int = 0
    limits: bool = False
    requests: list[Request] = field(default_factory=list)
    needs_credit: "dict[Link, None]" = field(default_factory=dict)
    needs_flow: "dict[Link, None]" = field(default_factory=dict)
    rejected: "list[Delivery]" = field(default_factory=list)
    due: "dict[Link, None]" = field(default_factory=dict)
    clients: UnpaidOfClients = field(default_factory=UnpaidOfClients)
    # Links of clients that have used up their unpaid credit.
    starved: "dict[Link, None]" = field(default_factory=dict)
    turning: "dict[Link, None]" = field(default_factory=dict)
    # Sessions that must decide now, because they cannot keep back more frames.
    forced: dict[SessionPart, None] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    paid: list[Paid] = field(default_factory=list)
    keeping: dict[SessionPart, None] = field(default_factory=dict)
    # Sessions in which swallowed transfers have used a part of the sender's window.
    short: dict[tuple[SessionPart, Side], None] = field(default_factory=dict)
    tightest: Advance | None = None
    withheld: bool = False
    broker_opened: bool = False
    plain: bool = False
    rules_version: int = 0
    links: int = 0
    in_flight: int = 0
    refused: int = 0
    # The session of the client's timed delivery, and when the delivery was sent.
    timed: "tuple[SessionPart, int] | None" = None
    _kept_bytes: int = 0
    _gathering: Gathering | None = None

    def terms(self, resources: tuple[Resource, ...], *, consumes: bool = False) -> Terms:
        return self.context.terms(self.connection, resources, consumes) if resources else NO_TERMS

    def unpaid(self, resources: tuple[Resource, ...], terms: Terms) -> Unpaid:
        advance = terms.advance if resources else self.tightest
        unpaid = self.clients.of(self.connection.address, resources, self.now_ns)
        unpaid.limit(advance or _ANY)
        return unpaid

    def check_rules(self) -> None:
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
        """Reserve memory for kept-back frames, or release it if negative. Return whether there was enough."""
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
        self.forced |= self.keeping
        self.context.wake()

    @property
    def is_quiet(self) -> bool:
        links = self.needs_credit or self.needs_flow or self.due or self.starved or self.turning
        sessions = self.forced or self.keeping or self.short
        kept = self.requests or self.rejected or self.charges or self.paid or self.withheld
        return not links and not sessions and not kept

    def forget(self) -> None:
        if self._gathering is not None:
            self.context.room.give_back(self._gathering)
            self._gathering = None
        for links in (self.needs_credit, self.needs_flow, self.due, self.starved, self.turning):
            links.clear()
        for sessions in (self.forced, self.short, self.keeping):
            sessions.clear()
        for kept in (self.requests, self.rejected, self.charges):
            kept.clear()

    def charge_due(self) -> None:
        due, self.due = self.due, {}
        for link in due:
            link.charge_due()

    def batch(self, side: Side, requests: Sequence[Request]) -> Batch | None:
        self.charge_due()
        charges, self.charges = self.charges, []
        paid, self.paid = self.paid, []
        return Batch(self.connection, side, requests, charges, paid) if requests or charges or paid else None

    def count(self, resources: tuple[Resource, ...], size_bytes: int, *, consumes: bool) -> None:
        self.paid.append(Paid(resources, 1, 1, size_bytes, consumes))


@dataclass(eq=False, slots=True)
class Delivery:
    link: "Link"
    number: int  # the sender's delivery-id
    settled: bool  # whether it is settled by the sender, so it cannot be refused
    renumbered: int  # the receiver's delivery-id, after forwarding
    size_bytes: int = 0
    complete: bool = False
    fate: int = PASSES
    why: str = ""
    resources: tuple[Resource, ...] = ()  # named by the message
    head: MessageHead | None = None
    request: Request | None = None
    asked: tuple[Resource, ...] = ()
    asked_bytes: int = 0  # the size for which it was charged, or 0 if it was not decided
    asks: Asks = "all"
    paid_for: tuple[Resource, ...] | None = None
    finished: bool = False
    learns: bool = False  # whether it was forwarded before its resources were known


@dataclass(eq=False, slots=True)
class Half:
    channel: int | None = None
    first_id: int = 0
    announced: bool = False
    ended: bool = False
    transfers: Transfers = field(default_factory=Transfers)
    ids: Renumbering = field(default_factory=Renumbering)
    handles: "dict[int, Link]" = field(default_factory=dict)
    # Links that only the other peer has attached, by name and sender.
    awaited: "dict[tuple[bytes, Side], deque[Link]]" = field(default_factory=dict)
    senders: int = 0
    undecided: dict[Delivery, None] = field(default_factory=dict)
    kept_bytes: int = 0
    kept_transfers: int = 0
    max_kept_bytes: int = 0


@dataclass(eq=False, slots=True)
class Link:
    session: SessionPart
    shared: Shared
    sender: Side
    credit: Credit
    name: str
    node: str = ""
    handles: dict[Side, int | None] = field(default_factory=lambda: dict.fromkeys(Side))
    announced: set[Side] = field(default_factory=set)  # peers whose attach was forwarded
    gone: bool = False
    address: Address = _UNROUTABLE
    resources: tuple[Resource, ...] = ()
    # The resources that credit pays for: the link's own, or after a turn those of the client's last message.
    paid_for: tuple[Resource, ...] = ()
    terms: Terms = NO_TERMS
    delays: bool = False  # whether credit is requested in advance
    meters: bool = False  # whether credit is bounded but not paid for
    decides: bool = False
    max_bytes: int | None = None  # larger deliveries are decided
    delivery: Delivery | None = None
    request: Request | None = None
    flows: int = 0
    used: int = 0
    refused: int = 0
    _begun: int = 0
    _is_made: bool = False  # whether the broker creates the link's node
    _settles: bool = False  # whether the sender settles all deliveries
    _turned: tuple[Resource, ...] = ()
    _turns_to: tuple[Resource, ...] | None = None  # turned to after the link's deliveries are counted
    _unpaid: Unpaid | None = None
    _free: int = 0  # unused credit from ``_unpaid``
    _bytes: int = 0  # size that a permit pays for
    _size_bytes: int = 0  # mean size of recent deliveries
    _since_ns: int = 0

    @property
    def consumes(self) -> bool:
        return self.sender is Side.BROKER

    def take_attach(self, side: Side, attached: Attached) -> None:
        """Set the link's resources from the client's terminus, or from the broker's if the client's is dynamic."""
        terminus = attached.source if self.consumes else attached.target
        if side is Side.BROKER and self.handles[Side.CLIENT] is not None and not self._is_made:
            return
        self._is_made = terminus is not None and terminus.dynamic
        self.node = "" if terminus is None or terminus.address is None else shown(terminus.address)
        if side is Side.CLIENT:
            self._settles = attached.snd_settle_mode == _SETTLED
        if self.consumes:
            self.resources = delivered(self.shared.names, terminus, plain=self.shared.plain)
        else:
            self.address = target_of(terminus, plain=self.shared.plain)
            self.resources = published(self.shared.names, self.address)
        self.ask_terms()

    def ask_terms(self, turned: tuple[Resource, ...] | None = None) -> None:
        """Look up the link's rules. If ``turned`` is given, the link now requests credit for those resources."""
        shared = self.shared
        self.charge_due()
        if self.address.by == "address" and not self.consumes:
            self.resources = published(shared.names, self.address)
        own = shared.terms(self.resources, consumes=self.consumes)
        says, refuses = self._says, own.refuses and not self.consumes and not self._settles
        meters = says or (refuses and (own.advance or own.max_bytes) is not None)
        unpaid = shared.unpaid(self.resources, own) if shared.limits and meters else None
        turned = self._turned if turned is None else turned
        if unpaid is not None and not turned:
            unpaid.left(shared.now_ns)
            turned = unpaid.paid_for
        terms = shared.terms(turned, consumes=self.consumes) if turned else own
        if turned and not terms.delays and not terms.refuses:
            if unpaid is not None and unpaid.paid_for == turned:
                unpaid.paid_for = ()  # otherwise, the link would turn again and again, and get no credit
            turned, terms = (), own
        # If messages cannot be refused, rules that refuse limit the credit instead.
        shapes = self.consumes or self._settles or bool(turned)
        delays = terms.delays or (shapes and terms.refuses)
        self._pay_for_others(turned, delays=delays)
        self.terms = terms
        self.decides = says or (refuses and not shapes)
        self.max_bytes = None if shapes or says else own.max_bytes
        if terms.max_bytes is None:
            self._pay_for(0)
        self._meter(unpaid)
        self.wants()

    def _pay_for_others(self, turned: tuple[Resource, ...], *, delays: bool) -> None:
        paid_for = turned or self.resources
        if (paid_for, delays, bool(turned)) != (self.paid_for, self.delays, bool(self._turned)):
            request, self.request = self.request, None
            if request is not None:
                self._since_ns = 0
                self.shared.context.give_up([request])
            due = self.credit.repay()
            if due and self.delays:
                self.shared.charges.append(self._charge(due, due * self._bytes))
            self._bytes = 0
        self.paid_for, self.delays, self._turned = paid_for, delays, turned

    def _meter(self, unpaid: Unpaid | None) -> None:
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
        turns_to, self._turns_to = self._turns_to, None
        if turns_to is not None and not self.gone and turns_to != self._turned:
            self.ask_terms(turns_to)

    @property
    def may_turn(self) -> bool:
        return not self._begun

    @property
    def credit_for(self) -> tuple[Resource, ...]:
        return self.paid_for if self.delays else ()

    @property
    def was_limited(self) -> bool:
        return self.delays or self.meters or self.credit.shaped

    @property
    def asks(self) -> Asks:
        return "all" if self.consumes or self._settles or self._turned else "delaying"

    @property
    def _says(self) -> bool:
        return self.address.by in {"to", "subject"}

    def flow_of_receiver(self, delivery_count: int | None, credit: int | None, drain: bool) -> None:  # noqa: FBT001
        self.credit.flow_of_receiver(delivery_count, credit, drain)
        self.schedule_charge()
        self.wants()

    def flow_of_sender(self, delivery_count: int | None, credit: int | None, drain: bool) -> LinkFlow | None:  # noqa: FBT001
        said = self.credit.flow_of_sender(delivery_count, credit, drain)
        self.schedule_charge()
        self.wants()
        return said

    def wants(self) -> None:
        if self.gone or self.request is not None or self._is_withheld():
            return
        if self.delays:
            if self.credit.wanted():
                self.shared.needs_credit[self] = None
        elif self.meters:
            self._grant_some()
        elif self.credit.grant_all():
            self.shared.needs_flow[self] = None

    def _grant_some(self) -> None:
        shared, unpaid = self.shared, self._unpaid
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
        if self.credit.needs_flow:
            shared.needs_flow[self] = None

    def _turn_to(self, paid_for: tuple[Resource, ...]) -> None:
        self._turns_to = paid_for
        self.shared.turning[self] = None

    def _is_withheld(self) -> bool:
        return self.shared.withheld and self.sender is Side.CLIENT

    def ask(self) -> Request | None:
        if self.request is not None or self.gone or self._is_withheld():
            return None
        wanted = self.credit.wanted() if self.delays else 0
        if not wanted:
            return None
        if self.terms.max_bytes is not None:
            self._pay_for(min(self._size_bytes, self.terms.max_bytes))
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
        if self.gone:
            self.shared.context.give_up([request])
        self._since_ns = self.shared.now_ns

    def grant(self, request: Request, permits: int) -> None:
        shared = self.shared
        if self.request is request:
            self.request = None
        plenty = permits == request.most and not self._since_ns
        self._since_ns = 0
        as_asked = self.delays and request.resources == self.paid_for and request.asks == self.asks
        if self.gone or self._is_withheld() or not as_asked:
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
                shared.needs_flow[self] = None
            self.schedule_charge()
        self.wants()

    def schedule_charge(self) -> None:
        if self.credit.due:
            self.shared.due[self] = None

    def charge_due(self) -> None:
        due = self.credit.take_due()
        if due and self.delays:
            self.shared.charges.append(self._charge(due, due * self._bytes))

    def _charge(self, messages: int, size_bytes: int) -> Charge:
        return Charge(self.paid_for, messages, size_bytes, consumes=self.consumes, asks=self.asks, counts=False)

    def _pay_for(self, size_bytes: int) -> None:
        prepaid = self.credit.prepaid
        if prepaid and self._bytes != size_bytes:
            self.shared.charges.append(self._charge(0, prepaid * (size_bytes - self._bytes)))
        self._bytes = size_bytes

    def begins(self) -> None:
        """Count a delivery when it is read. Call ``note_received`` when it is forwarded or swallowed.

        Raises:
            Close: The client exceeds the credit announced to it. The broker would accept the delivery, because it has
                granted more.
        """
        self._begun += 1
        if self.consumes or not self.credit.beyond(self._begun):
            return
        if self.delays or (self.decides and self.shared.limits):
            name = self.name or "(unnamed)"
            raise Close("transfer_limit_exceeded", f"the client exceeded its credit on link {name}")

    def note_received(self, deliveries: int) -> None:
        self._begun -= deliveries
        self.credit.note_received(deliveries)
        self._free = max(0, self._free - deliveries)
        if self.delays:
            self.schedule_charge()
            self.wants()
        elif self.credit.granted < self.credit.limit:
            self.wants()

    def allowance(self) -> Allowance | None:
        """Return how many deliveries the compiled extension may forward, or None if Python must read all deliveries.

        Returns:
            The number of deliveries that the credit allows, the number before Python must act, and the state of the
            credit if the extension can handle flows from the receiver. Numbers are None if there is no limit.
        """
        credit, delays, decides = self.credit, self.delays, self.decides
        if self.gone or self._says or (delays and (decides or self.terms.max_bytes is not None)):
            return None
        if decides:
            return credit.known, min(credit.plenty, credit.prepaid) if delays else credit.plenty, None
        plain = self.paid_for == self.resources and self.request is None
        if delays:
            return credit.known, min(credit.plenty, credit.prepaid), credit.plain(paid=True) if plain else None
        return None, None if credit.granted == credit.limit else 0, credit.plain(paid=False) if plain else None

    def admitted(self, deliveries: int) -> bool:
        """Count deliveries that were decided. Return whether the compiled extension may continue."""
        unpaid = self._unpaid
        if not self.meters or unpaid is None:
            return True
        unpaid.note_prepaid(deliveries)
        return not unpaid.paid_for or self.credit.granted == self.credit.limit

    def passed(self, deliveries: int, *, asks: bool = False, flowed: Flowed | None = None) -> None:
        """Count deliveries that the compiled extension has forwarded.

        ``deliveries`` excludes deliveries before the last flow in ``flowed``. ``asks`` tells whether they may have
        reached the number at which Python must act.
        """
        if flowed is not None:
            self.used += self.credit.flowed(*flowed)
        self.used += deliveries
        self._begun += deliveries
        each = 1 if asks and self.decides else max(1, deliveries)
        for _ in range(0, deliveries, each):
            self.note_received(each)

    def swallowed(self) -> None:
        self.credit.swallowed()
        if self.meters:
            self._free += 1

    def completed(self, size_bytes: int) -> None:
        self.used += 1
        if self.resources:
            self.shared.count(self.resources, size_bytes, consumes=self.consumes)
            self._correct(size_bytes)

    def _correct(self, size_bytes: int) -> None:
        if self.delays and self.terms.max_bytes is not None:
            change = (size_bytes - self._size_bytes) // _SIZES
            self._size_bytes = self._size_bytes + change if self._size_bytes else size_bytes
            if size_bytes != self._bytes:
                self.shared.charges.append(self._charge(0, size_bytes - self._bytes))

    def _may_name_copies(self, payload: Buffer, *, is_last: bool) -> bool:
        if not self.copies or not self.shared.limits:
            return False
        if is_last and len(payload) <= MAX_HEAD_BYTES:
            return may_name_copies(payload)
        head = MessageHead()
        try:
            return not head.take(payload, last=False) or bool(head.copies)
        except Malformed:
            # The broker refuses a message that does not begin with a section.
            return payload[0] == 0

    def looks_at(self, delivery: Delivery, payload: Buffer, *, is_last: bool) -> bool:
        if self._says or self._may_name_copies(payload, is_last=is_last):
            delivery.head = MessageHead()
            return True
        return self.decides or self.max_bytes is not None

    @property
    def keeps_bytes(self) -> int:
        return max(SMALL_FRAME_BYTES, self.max_bytes or 0)

    def decide(self, delivery: Delivery, payload: Buffer, *, is_last: bool, must: bool) -> None:
        """Decide a delivery, or request a decision, if enough of it is known. If ``must``, do not wait for more."""
        terms, resources = self.terms, self.resources
        asks: Asks | None = "refusing" if self.decides and terms.refuses and not self._says else None
        max_bytes = self.max_bytes
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
            named = self.shared.terms(delivery.resources)
            if named.delays or named.refuses:
                # Credit pays for the link's own resources, unless each delivery is decided.
                resources = (*resources, *delivery.resources) if asks else delivery.resources
                asks = "all"
            max_bytes = min((most for most in (max_bytes, named.max_bytes) if most is not None), default=None)
        size_bytes = delivery.size_bytes
        if max_bytes is not None and size_bytes <= max_bytes and not delivery.complete and not must:
            return
        if self.max_bytes is not None and size_bytes > self.max_bytes:
            resources, asks = (*self.resources, *delivery.resources), "all"
        if asks is None:
            delivery.fate = PASSES
        else:
            self._ask_for(delivery, resources, asks)
        if delivery.fate == PASSES and delivery.complete:
            self.finish(delivery)

    def _named(self, head: MessageHead) -> tuple[Resource, ...]:
        resources = published(self.shared.names, self.address, head)
        return tuple(each for each in resources if each not in self.resources) if self.resources else resources

    def _ask_for(self, delivery: Delivery, resources: tuple[Resource, ...], asks: Asks) -> None:
        if delivery.settled:
            delivery.fate = PASSES
            if self.decides and self.resources:
                charge = Charge(self.resources, 1, delivery.size_bytes, asks="refusing", counts=False)
                self.shared.charges.append(charge)
                if self._unpaid is not None:
                    self._note_overdraft(self.resources)
            return
        delivery.fate = ASKED
        delivery.asks = asks
        delivery.asked = resources
        delivery.asked_bytes = delivery.size_bytes
        delivery.request = Request(
            resources, 1, delivery.size_bytes, "", "answered", None, delivery, asks=asks, may_wait=False
        )
        self.shared.requests.append(delivery.request)

    def _decide_unknown(self, delivery: Delivery, error: Malformed | None) -> None:
        limits = self.shared.limits
        if not delivery.settled and limits and self._may_swallow():
            why = "the message has no target address" if error is None else str(error)
            self._swallow(delivery, f"SYSTEM_BUSY: {why}")
            return
        delivery.fate = PASSES
        delivery.learns = True
        if limits and error is not None:
            _check_unread(error)
        if delivery.complete:
            self.finish(delivery)

    def learn(self, delivery: Delivery, payload: Buffer, *, is_last: bool) -> None:
        """Charge a forwarded delivery when its address becomes known. Raises Close if the message is malformed."""
        head = delivery.head
        assert head is not None  # noqa: S101 - otherwise there is nothing to learn
        try:
            if head.take(payload, last=is_last):
                delivery.learns = False
                delivery.resources = self._named(head)
                if delivery.finished:
                    self._charge_late(delivery)
        except Malformed as error:
            if self.shared.limits:
                _check_unread(error)
            delivery.learns = False

    def decided(self, delivery: Delivery, refuse: Refuse | None) -> None:
        request, delivery.request = delivery.request, None
        if refuse is not None and not self._may_swallow():
            refuse = None
            if request is not None:
                # It was forwarded, so charge it and count it as admitted.
                self.shared.charges.append(Charge(request.resources, 1, request.size_bytes, asks=delivery.asks))
        if self.meters and self._unpaid is not None:
            self._unpaid.note_prepaid()
            if refuse is not None:
                # The sender gets the delivery's credit back, so other links must not use it.
                self._unpaid.take(1)
        if refuse is None:
            delivery.fate = PASSES
            if delivery.complete:
                self.finish(delivery)
            return
        if refuse.most is not None:
            most = f"{refuse.most} {refuse.most_of}"
            why = f"accepts at most {most} at a time because of rule {refuse.rule}"
        else:
            short = (
                "its share of an overloaded broker, set by "
                if refuse.rule.startswith(ADAPTIVE_NAME)
                else "the limit of "
            )
            why = f"exceeds {short}rule {refuse.rule}; try again in {-(-refuse.wait_us // 1000)} ms"
        self._swallow(delivery, f"SYSTEM_BUSY: {refuse.resource} {why}")

    def _may_swallow(self) -> bool:
        return self.session.halves[self.sender].ids.reserve()

    def _swallow(self, delivery: Delivery, why: str) -> None:
        delivery.fate = SWALLOWED
        delivery.why = why
        self.shared.refused += 1
        self.refused += 1

    def finish(self, delivery: Delivery) -> None:
        size_bytes, asked_bytes = delivery.size_bytes, delivery.asked_bytes
        named, asked = delivery.resources, delivery.asked
        if asked_bytes and size_bytes > asked_bytes:
            self.shared.charges.append(Charge(asked, 0, size_bytes - asked_bytes, asks=delivery.asks))
        delivery.finished = True
        late = any(each not in asked for each in named)
        if late:
            self.shared.count(named, size_bytes, consumes=False)
        if self._says:
            self.used += 1
            self._pay_late(delivery)
        elif late or not asked_bytes or asked == named:
            self.completed(size_bytes)
            if late and not set(named) <= set(self._turned):
                self._charge_late(delivery)
        else:
            self.used += 1
            if delivery.asks == "refusing":
                self._correct(size_bytes)
            elif self.delays:
                # Credit has already paid for these resources.
                self.shared.charges.append(self._charge(-1, -self._bytes))

    def _pay_late(self, delivery: Delivery) -> None:
        unpaid, named, decided = self._unpaid, delivery.resources, delivery.asked_bytes > 0
        paid_for = self.credit_for if delivery.paid_for is None else delivery.paid_for
        if paid_for:
            if named == paid_for and not decided:
                self._correct(delivery.size_bytes)
                self._note_overdraft(named)
                return
            # Refund the credit. Otherwise, the message would be paid for twice.
            self.shared.charges.append(Charge(paid_for, -1, -self._bytes, counts=False))
        if decided:
            return
        if self.shared.terms(named).limits:
            self._charge_late(delivery)
        elif self.meters and unpaid is not None:
            unpaid.note_prepaid()
        elif unpaid is not None and not unpaid.pays(self.shared.now_ns):
            self._turn_to(())

    def _charge_late(self, delivery: Delivery) -> None:
        named = delivery.resources
        if self.shared.terms(named).limits:
            self.shared.charges.append(Charge(named, 1, delivery.size_bytes, counts=False))
            self._note_overdraft((*self.resources, *named))

    def _note_overdraft(self, resources: tuple[Resource, ...]) -> None:
        advance = self.shared.terms(resources).advance
        if self._says and advance is not None and not advance.most:
            # The rule refuses all messages, so credit would never be used.
            return
        if self._unpaid is not None:
            self._unpaid.note_overdraft(resources, self.shared.now_ns)
        if resources != self._turned:
            self._turn_to(resources)

    @property
    def copies(self) -> bool:
        return self.address.by == "address" and not self.address.plain and not self.consumes

    def end(self) -> None:
        if self.gone:
            return
        self.gone = True
        shared = self.shared
        if self.request is not None:
            shared.context.give_up([self.request])
        self.request = None
        self._meter(None)
        due = self.credit.repay()
        if due and self.delays:
            shared.charges.append(self._charge(due, due * self._bytes))
        for links in (shared.needs_credit, shared.needs_flow, shared.due, shared.starved, shared.turning):
            links.pop(self, None)

    @property
    def waits(self) -> bool:
        return not self.gone and self._since_ns > 0

    @property
    def limited_as(self) -> str:
        """The resource whose limit applies when the link has to wait, or an empty string if unknown."""
        resources = self.resources if self.request is None else self.request.resources
        return str(resources[0]) if resources else ""

    def since(self) -> tuple[bool, int]:
        return not self._since_ns, self._since_ns

    def state(self, now_ns: int) -> LinkState:
        credit = self.credit
        channel = self.session.halves[Side.CLIENT].channel
        waits_ns = now_ns - self._since_ns if self._since_ns else 0
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
    # No broker can read a truncated message.
    if not isinstance(error, CutOff):
        raise Close(
            "unreadable_message", f"the client sent {error} in a settled message, which cannot be refused"
        ) from None
