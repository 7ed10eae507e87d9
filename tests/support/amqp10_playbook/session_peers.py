"""Two peers of AMQP 1.0, written after the specification and apart from the code under test.

Each does what it is told, and holds whatever it hears against the rules: windows (2.5.6), credit (2.6.7), delivery-ids
that ascend by one (2.6.12), and dispositions of what is unsettled only. What breaks a rule is an AssertionError.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from . import codec
from .codec import Described, Said, ULong

ALL = 0xFFFFFFFF
ACCEPTED, REJECTED, RELEASED = 0x24, 0x25, 0x26


def signed(serial: int) -> int:
    """Return a difference of serial numbers (RFC 1982)."""
    serial &= ALL
    return serial - (1 << 32) if serial >> 31 else serial


@dataclass
class Delivery:
    """A delivery as its sender, or its receiver, knows it.

    Attributes:
        tag: unique over all.
        payload: of all its frames.
        settled: by its sender, from the start.
        number: its delivery-id there.
        aborted: it ended like that.
        complete: its last frame was sent, or heard.
        outcome: what its receiver said of it, with the reason of a rejection.
        is_settled: nobody speaks of it any more.
    """

    tag: bytes
    payload: bytes
    settled: bool = False
    number: int = 0
    aborted: bool = False
    complete: bool = False
    outcome: tuple[int, str] | None = None
    is_settled: bool = False


@dataclass
class LinkEnd:
    """One peer's half of a link.

    Attributes:
        backlog: what is still to be sent, each as its frames' payloads.
        deliveries: that were sent, or have come, in order.
        partial: the one that is under way, and what is to be sent of it.
        limit: the highest delivery-limit that was heard, or said.
        mode: snd-settle-mode, if it was said.
        address: of the target; None is the anonymous terminus.
    """

    session: "SessionEnd"
    name: str
    handle: int
    sends: bool
    delivery_count: int | None
    initial: int
    credit: int = 0
    drain: bool = False
    mode: int | None = None
    address: str | None = ""
    answered: bool = False
    closed: bool = False
    limit: int | None = None
    backlog: list[tuple[Delivery, list[bytes]]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    partial: Delivery | None = None
    parts: list[bytes] = field(default_factory=list)

    @property
    def _early(self) -> bool:
        return self.session.peer.counts_early

    # --- The sender -------------------------------------------------------------------------------

    def send(self) -> bool:
        """Send the next frame, if credit and window allow it."""
        session = self.session
        if session.window_left <= 0 or self.closed:
            return False
        first = self.partial is None
        if first:
            if not self.backlog or self.credit <= 0:
                return False
            self.partial, self.parts = self.backlog.pop(0)
            self.partial.number = session.next_delivery_id
            session.next_delivery_id = (session.next_delivery_id + 1) & ALL
            session.sent[self.partial.number] = self.partial
            self.deliveries.append(self.partial)
        delivery = self.partial
        assert delivery is not None
        part = self.parts.pop(0)
        fields: dict[str, Any] = {}
        if first or session.peer.random.random() < 0.2:
            fields = {"delivery_id": delivery.number}
        if first:
            fields |= {"delivery_tag": delivery.tag, "message_format": 0, "settled": delivery.settled or None}
        ends = not self.parts
        if delivery.aborted and not first:
            ends, part = True, b""
            fields["aborted"] = True
        session.transfer(part, handle=self.handle, more=True if not ends else None, **fields)
        if first if self._early else ends:
            self._count()
        if ends:
            delivery.complete = True
            delivery.is_settled = delivery.settled or "aborted" in fields
            self.partial = None
        return True

    def _count(self) -> None:
        assert self.delivery_count is not None
        self.delivery_count = (self.delivery_count + 1) & ALL
        self.credit -= 1

    def throw_away(self) -> None:
        """Answer a drain, if nothing is there."""
        if self.drain and self.credit > 0 and not self.backlog and self.partial is None and not self.closed:
            assert self.delivery_count is not None
            self.delivery_count = (self.delivery_count + self.credit) & ALL
            self.credit = 0
            self.session.flow(self)

    def hear_receiver(self, said: Said) -> None:
        counted = self.initial if said["delivery_count"] is None else said["delivery_count"]
        limit = (counted + said["link_credit"]) & ALL
        assert self.limit is None or signed(limit - self.limit) >= 0, "credit was taken back"
        assert self.delivery_count is not None
        self.limit = limit
        self.credit = signed(limit - self.delivery_count)
        assert self.credit >= 0
        self.drain = bool(said["drain"])

    # --- The receiver -----------------------------------------------------------------------------

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Say how many deliveries may come; never fewer than before."""
        self.credit = max(self.credit, credit)
        self.drain = drain
        self.session.flow(self, echo=echo)

    def hear_transfer(self, said: Said) -> None:
        session = self.session
        first = self.partial is None
        if first:
            number = said["delivery_id"]
            assert number is not None
            assert session.expected_id in {None, number}, "a delivery-id that does not follow"
            session.expected_id = (number + 1) & ALL
            tag = said["delivery_tag"]
            assert tag is not None
            self.partial = Delivery(tag, b"", bool(said["settled"]), number)
            self.deliveries.append(self.partial)
        delivery = self.partial
        assert delivery is not None
        assert said["delivery_id"] in {None, delivery.number}
        delivery.payload += said.payload
        delivery.aborted = bool(said["aborted"])
        ends = delivery.aborted or not said["more"]
        if first if self._early else ends:
            assert self.delivery_count is not None
            self.delivery_count = (self.delivery_count + 1) & ALL
            self.credit -= 1
            assert self.credit >= 0, "more came than there was credit for"
        if ends:
            delivery.complete = True
            self.partial = None
            if not delivery.settled and not delivery.aborted:
                session.unsettled[delivery.number] = delivery

    def hear_sender(self, said: Said) -> None:
        assert self.delivery_count is not None
        advanced = signed(said["delivery_count"] - self.delivery_count)
        assert advanced >= 0
        self.delivery_count = said["delivery_count"]
        self.credit -= advanced
        assert self.credit >= 0, "more was thrown away than there was"


class SessionEnd:
    """One peer's half of a session."""

    def __init__(self, peer: "Peer", channel: int, remote: int | None) -> None:
        random = peer.random
        self.peer = peer
        self.channel = channel
        self.answered = self.ended = False
        self.initial = self.next_outgoing_id = random.choice([0, 7, ALL, ALL - 20, 1 << 31])
        self.next_delivery_id = random.choice([0, 7, ALL, ALL - 20, 1 << 31])
        self.window = random.choice([4, 20, 400, 2000])
        self.outgoing_limit = self.initial
        self.next_incoming_id: int | None = None
        self.incoming_limit = 0
        self.expected_id: int | None = None
        self.links: dict[int, LinkEnd] = {}
        self.remote_handles: dict[int, LinkEnd] = {}
        #: What was sent, and what has come and is unsettled, by delivery-id.
        self.sent: dict[int, Delivery] = {}
        self.unsettled: dict[int, Delivery] = {}
        self.say(
            "begin",
            remote_channel=remote,
            next_outgoing_id=self.initial,
            incoming_window=self.window,
            outgoing_window=ALL,
            handle_max=255,
        )

    def say(self, name: str, payload: bytes = b"", /, **fields: Any) -> None:
        assert not self.ended
        self.peer.out += codec.say(self.channel, name, payload, **fields)

    @property
    def window_left(self) -> int:
        return signed(self.outgoing_limit - self.next_outgoing_id) if self.answered else 0

    def transfer(self, payload: bytes, **fields: Any) -> None:
        self.say("transfer", payload, **fields)
        self.next_outgoing_id = (self.next_outgoing_id + 1) & ALL

    def flow(self, link: LinkEnd | None = None, *, echo: bool = False) -> None:
        """Say what is believed of the session, and of a link."""
        fields: dict[str, Any] = {}
        if link is not None:
            fields = {
                "handle": link.handle,
                "delivery_count": link.delivery_count,
                "link_credit": link.credit,
                "drain": link.drain or None,
                "available": len(link.backlog) if link.sends else None,
            }
            if not link.sends:
                counted = link.initial if link.delivery_count is None else link.delivery_count
                link.limit = (counted + link.credit) & ALL
        if self.next_incoming_id is not None:
            self.incoming_limit = (self.next_incoming_id + self.window) & ALL
        self.say(
            "flow",
            next_incoming_id=self.next_incoming_id,
            incoming_window=self.window,
            next_outgoing_id=self.next_outgoing_id,
            outgoing_window=ALL,
            echo=echo or None,
            **fields,
        )

    def attach(self, name: str, handle: int, *, sends: bool, **fields: Any) -> LinkEnd:
        initial = self.peer.random.choice([0, 3, ALL - 4, ALL]) if sends else 0
        link = LinkEnd(self, name, handle, sends, initial if sends else None, initial)
        self.links[handle] = link
        self.say(
            "attach",
            name=name,
            handle=handle,
            role=not sends,
            initial_delivery_count=initial if sends else None,
            **fields,
        )
        return link

    def detach(self, link: LinkEnd) -> None:
        link.closed = True
        del self.links[link.handle]
        self.say("detach", handle=link.handle, closed=True)

    def settle(self, first: int, count: int, outcome: int, *, settled: bool) -> None:
        """Say an outcome of deliveries that have come."""
        state = Described(ULong(outcome), [])
        if outcome == REJECTED:
            state = Described(ULong(outcome), [Described(ULong(0x1D), [codec.Symbol("amqp:not-found"), "no"])])
        for at in range(count):
            number = (first + at) & ALL
            self.unsettled[number].outcome = (outcome, "no" if outcome == REJECTED else "")
            if settled:
                self.unsettled.pop(number).is_settled = True
        last = None if count == 1 and self.peer.random.random() < 0.5 else (first + count - 1) & ALL
        self.say("disposition", role=True, first=first, last=last, settled=settled or None, state=state)

    def settle_sent(self, first: int, count: int) -> None:
        """Settle what was sent, and of which the receiver has said an outcome."""
        for at in range(count):
            self.sent[(first + at) & ALL].is_settled = True
        self.say("disposition", role=False, first=first, last=(first + count - 1) & ALL, settled=True)

    # --- What is heard ----------------------------------------------------------------------------

    def hear_begin(self, said: Said) -> None:
        self.answered = True
        self.next_incoming_id = said["next_outgoing_id"]
        assert self.next_incoming_id is not None
        self.incoming_limit = (self.next_incoming_id + self.window) & ALL
        self.outgoing_limit = (self.initial + said["incoming_window"]) & ALL

    def hear_flow(self, said: Said) -> None:
        counted = self.initial if said["next_incoming_id"] is None else said["next_incoming_id"]
        assert signed(self.next_outgoing_id - counted) >= 0, "more has come than was sent"
        limit = (counted + said["incoming_window"]) & ALL
        assert signed(limit - self.outgoing_limit) >= 0, "the window was taken back"
        self.outgoing_limit = limit
        assert said["next_outgoing_id"] == self.next_incoming_id, "transfers were lost"
        link = None if said["handle"] is None else self.remote_handles[said["handle"]]
        if link is not None and not link.closed:
            if link.sends:
                link.hear_receiver(said)
            else:
                link.hear_sender(said)
        if said["echo"]:
            self.flow(link if link is not None and not link.closed else None)

    def hear_transfer(self, said: Said) -> None:
        assert self.next_incoming_id is not None
        assert signed(self.incoming_limit - self.next_incoming_id) > 0, "a transfer beyond the window"
        self.next_incoming_id = (self.next_incoming_id + 1) & ALL
        link = self.remote_handles[said["handle"]]
        assert not link.sends
        if not link.closed:
            link.hear_transfer(said)
        elif said["delivery_id"] is not None:
            self.expected_id = (said["delivery_id"] + 1) & ALL
        # Full windows are opened again now and then.
        if signed(self.incoming_limit - self.next_incoming_id) <= self.window // 2:
            self.flow()

    def hear_disposition(self, said: Said) -> None:
        first = said["first"]
        last = first if said["last"] is None else said["last"]
        count = signed(last - first) + 1
        assert 0 < count <= len(self.sent) + len(self.unsettled)
        for at in range(count):
            number = (first + at) & ALL
            if said["role"]:
                delivery = self.sent[number]
                assert not delivery.is_settled or delivery.aborted, "a disposition of what is settled"
                assert said["state"] is not None
                delivery.outcome = (int(said["state"].descriptor), _reason(said["state"]))
                delivery.is_settled = bool(said["settled"])
            else:
                assert said["settled"]
                delivery = self.unsettled.pop(number)
                assert delivery.outcome is not None
                delivery.is_settled = True


def _reason(state: Described) -> str:
    return state.value[0].value[1] if state.value else ""


class Peer:
    """One peer of a connection.

    Args:
        random: makes what is arbitrary.
        counts_early: it counts deliveries at their first frame.
        answers: it is the broker, which answers begins, attaches, detaches and ends.

    Attributes:
        out: what is to be sent.
    """

    def __init__(self, random: Random, *, counts_early: bool, answers: bool) -> None:
        self.random = random
        self.counts_early = counts_early
        self.answers = answers
        self.out = bytearray()
        self.sessions: dict[int, SessionEnd] = {}
        self.remote_channels: dict[int, SessionEnd] = {}
        #: All that ever were.
        self.links: list[LinkEnd] = []
        self.out += codec.HEADER + codec.say(0, "open", container_id="broker" if answers else "client")

    def begin(self, channel: int, remote: int | None = None) -> SessionEnd:
        session = self.sessions[channel] = SessionEnd(self, channel, remote)
        return session

    def hear(self, said: Said) -> None:
        """Take a frame."""
        if said.name in {"", "open"}:
            return
        assert said.name != "close"
        if said.name == "begin":
            if self.answers:
                session = self.begin(said.channel + 100, said.channel)
            else:
                session = self.sessions[said["remote_channel"]]
            self.remote_channels[said.channel] = session
            session.hear_begin(said)
            return
        session = self.remote_channels[said.channel]
        match said.name:
            case "flow":
                if not session.ended:
                    session.hear_flow(said)
            case "transfer":
                if not session.ended:
                    session.hear_transfer(said)
            case "disposition":
                if not session.ended:
                    session.hear_disposition(said)
            case "attach":
                if not session.ended:
                    self._hear_attach(session, said)
            case "detach":
                link = session.remote_handles.pop(said["handle"])
                if not link.closed and not session.ended:
                    session.detach(link)
            case "end":
                del self.remote_channels[said.channel]
                if not session.ended:
                    session.say("end")
                    session.ended = True
                del self.sessions[session.channel]

    def _hear_attach(self, session: SessionEnd, said: Said) -> None:
        sends = bool(said["role"])
        if self.answers:
            fields = {each: said[each] for each in ("source", "target", "snd_settle_mode")}
            link = session.attach(said["name"], said["handle"] + 50, sends=sends, **fields)
            self.links.append(link)
        else:
            link = next(each for each in self.links if each.session is session and each.name == said["name"])
            assert link.sends is sends
        link.answered = True
        session.remote_handles[said["handle"]] = link
        if not sends:
            if link.delivery_count is None:
                link.initial = link.delivery_count = said["initial_delivery_count"]
                if link.limit is not None:
                    link.limit = (link.limit + link.initial) & ALL
            if self.answers:
                link.grant(self.random.choice([1, 10, 170]))
