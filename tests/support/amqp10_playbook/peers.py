"""Two model peers of AMQP 1.0, over bytes: each checks the other, and a test chooses their actions."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from . import codec
from .codec import Described, Said, Symbol, ULong, say

SERIAL = 1 << 32
OUTCOMES = {0x24: "accepted", 0x25: "rejected", 0x26: "released", 0x27: "modified"}
STATES = {name: code for code, name in OUTCOMES.items()}


class RuleBrokenError(AssertionError):
    """The other peer, or the session in between, broke a rule."""


def check(holds: object, *what: object) -> None:
    if not holds:
        raise RuleBrokenError(" ".join(map(str, what)))


def ahead(serial: int, of: int) -> int:
    return (serial - of + SERIAL // 2) % SERIAL - SERIAL // 2


@dataclass
class Message:
    payload: bytes = field(repr=False)
    settled: bool = False
    frame_bytes: int = 1 << 30
    aborts: int = 0
    number: int = -1
    outcome: str = ""
    detail: str = ""


@dataclass(eq=False)
class Link:
    name: str
    handle: int
    sends: bool
    address: str | None
    mode: int | None = None
    first: int = 0
    theirs: int | None = None
    detached: bool = False
    count: int = 0
    limit: int = 0
    limits: set[int] = field(default_factory=set)
    outbox: deque[Message] = field(default_factory=deque)
    sent: list[Message] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    in_flight: Message | None = None
    at: int = 0
    frames: int = 0
    drains: bool = False
    flows: list[Said] = field(default_factory=list)

    @property
    def credit(self) -> int:
        return ahead(self.limit, self.count)

    @property
    def is_up(self) -> bool:
        return self.theirs is not None and not self.detached


@dataclass(eq=False)
class Session:
    channel: int
    outgoing_id: int
    window: int
    theirs: int | None = None
    ended: bool = False
    incoming_id: int = 0
    outgoing_limit: int = 0
    incoming_limit: int | None = None
    delivery_id: int = 0
    their_delivery_id: int | None = None
    links: dict[int, Link] = field(default_factory=dict)
    their_links: dict[int, Link] = field(default_factory=dict)
    unsettled: dict[int, Message] = field(default_factory=dict)
    to_settle: dict[int, Message] = field(default_factory=dict)

    @property
    def is_up(self) -> bool:
        return self.theirs is not None and not self.ended


class Peer:
    """A client or a broker. The broker answers opens, begins, attaches, detaches, ends and closes by itself."""

    def __init__(
        self,
        name: str,
        *,
        max_frame_bytes: int = 1 << 17,
        hostname: str | None = None,
        first: int = SERIAL - 5,
        counts_at_last: bool = False,
    ) -> None:
        self.name = name
        self.is_client = name == "client"
        self.max_frame_bytes = max_frame_bytes
        self.out = bytearray()
        self.sessions: dict[int, Session] = {}
        self.heartbeats = 0
        self.opened = self.closed = False
        self.error: Any = None
        self._hostname = hostname
        self._first = first
        self._first_delivery = (first + 4) % SERIAL
        self._counts_at_last = counts_at_last
        self._their_sessions: dict[int, Session] = {}
        self._their_max_frame_bytes = 512
        self._in = b""
        self._said_close = False
        # Expected next: headers, then frames.
        self._awaits = [codec.SASL_HEADER, codec.HEADER]

    def say(self, channel: int, name: str, payload: bytes = b"", /, **fields: Any) -> None:
        frame = say(channel, name, payload, **fields)
        assert len(frame) <= self._their_max_frame_bytes or name in {"open", "sasl_init", "sasl_mechanisms"}, name
        self.out += frame

    def start(self) -> None:
        self.out += codec.SASL_HEADER
        self.say(0, "sasl_init", mechanism="PLAIN", initial_response=b"\0guest\0guest")

    def begin(self, channel: int, window: int) -> Session:
        assert channel not in self.sessions
        session = self.sessions[channel] = Session(channel, self._first, window, delivery_id=self._first_delivery)
        self._say_begin(session, None)
        return session

    def _say_begin(self, session: Session, theirs: int | None) -> None:
        self.say(
            session.channel,
            "begin",
            remote_channel=theirs,
            next_outgoing_id=session.outgoing_id,
            incoming_window=session.window,
            outgoing_window=1000,
        )

    def attach(
        self, session: Session, name: str, handle: int, *, sends: bool, address: str | None, mode: int | None = None
    ) -> Link:
        assert handle not in session.links
        first = self._first
        link = session.links[handle] = Link(name, handle, sends, address, mode, first, count=first, limit=first)
        self._say_attach(session, link)
        return link

    def _say_attach(self, session: Session, link: Link) -> None:
        node, here = (Described(ULong(code), [each]) for code, each in ((0x28, link.address), (0x29, "here")))
        if link.sends is self.is_client:
            node, here = Described(ULong(0x29), [link.address]), Described(ULong(0x28), ["here"])
        source, target = (here, node) if link.sends is self.is_client else (node, here)
        more: dict[str, Any] = {"initial_delivery_count": link.count} if link.sends else {}
        if link.mode is not None:
            more["snd_settle_mode"] = codec.UByte(link.mode)
        self.say(
            session.channel,
            "attach",
            name=link.name,
            handle=link.handle,
            role=not link.sends,
            source=source,
            target=target,
            **more,
        )

    def flow(self, session: Session, link: Link | None = None, **more: Any) -> None:
        """Send all numbers of a session, and of a link."""
        known = session.incoming_limit is not None
        numbers: dict[str, Any] = {
            "next_incoming_id": session.incoming_id if known else None,
            "incoming_window": ahead(session.incoming_limit or 0, session.incoming_id) if known else session.window,
            "next_outgoing_id": session.outgoing_id,
            "outgoing_window": 1000,
        }
        if link is not None:
            numbers |= {"handle": link.handle, "link_credit": max(0, link.credit)}
            if link.sends or link.theirs is not None:
                numbers["delivery_count"] = link.count
            if link.drains and not link.sends:
                numbers["drain"] = True
        self.say(session.channel, "flow", **(numbers | more))

    def open_window(self, session: Session, transfers: int) -> None:
        """Allow this many more transfers."""
        assert session.incoming_limit is not None
        session.incoming_limit = (session.incoming_limit + transfers) % SERIAL
        self.flow(session)

    def grant(self, session: Session, link: Link, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """As a receiver, allow this many more deliveries, even before the sender has attached."""
        assert not link.detached
        assert not link.sends
        link.limit = (link.limit + credit) % SERIAL
        link.limits.add(link.limit)
        link.drains = drain
        self.flow(session, link, **({"echo": True} if echo else {}))

    def may_send(self, session: Session, link: Link) -> bool:
        if not (session.is_up and link.is_up and link.sends and link.outbox):
            return False
        return ahead(session.outgoing_limit, session.outgoing_id) > 0 and (link.frames > 0 or link.credit > 0)

    def send(self, session: Session, link: Link) -> None:
        assert self.may_send(session, link)
        message = link.outbox[0]
        first = link.frames == 0
        if first:
            message.number = session.delivery_id
            session.delivery_id = (session.delivery_id + 1) % SERIAL
            link.sent.append(message)
            if not message.settled:
                session.unsettled[message.number] = message
            if not self._counts_at_last:
                link.count = (link.count + 1) % SERIAL
        room = min(message.frame_bytes, self._their_max_frame_bytes - 64)
        piece = message.payload[link.at : link.at + room]
        aborted = 0 < message.aborts == link.frames
        last = aborted or link.at + len(piece) >= len(message.payload)
        fields: dict[str, Any] = {"handle": link.handle}
        if first or message.number % 2:
            fields["delivery_id"] = message.number
        if first:
            fields |= {"delivery_tag": b"%d" % message.number, "message_format": 0, "settled": message.settled}
        fields |= {"more": True} if not last else {"aborted": True} if aborted else {}
        self.say(session.channel, "transfer", b"" if aborted else piece, **fields)
        session.outgoing_id = (session.outgoing_id + 1) % SERIAL
        link.at += len(piece)
        link.frames += 1
        if last:
            if aborted:
                session.unsettled.pop(message.number, None)
            if aborted or message.settled:
                message.outcome = "aborted" if aborted else "settled"
            if self._counts_at_last:
                link.count = (link.count + 1) % SERIAL
            link.outbox.popleft()
            link.at = link.frames = 0

    def answer_drain(self, session: Session, link: Link) -> None:
        """As a sender without messages, discard its credit if a drain is requested, or report it as used up."""
        if link.drains and (link.credit == 0 or not link.outbox) and not link.frames and link.is_up and session.is_up:
            link.count = link.limit
            link.drains = False
            self.flow(session, link, drain=True, available=0)

    def range_from(self, session: Session, first: int, most: int) -> int:
        """Return how far a range of complete deliveries can go. Some may already be settled."""
        in_flight = {link.in_flight.number for link in session.links.values() if link.in_flight}
        last = first
        for _ in range(most - 1):
            following = (last + 1) % SERIAL
            if following in session.to_settle and session.to_settle[following].outcome:
                break  # Its sender may settle it at any time.
            if following in in_flight or ahead(following, session.their_delivery_id or 0) >= 0:
                break
            last = following
        return last

    def settle(self, session: Session, first: int, last: int, outcome: str, *, settled: bool = True) -> None:
        """As a receiver, send the outcome of deliveries. The sender settles them if this does not."""
        detail = "no" if outcome == "rejected" else ""
        for number in numbers(first, last):
            message = session.to_settle.get(number)
            if message is not None:
                message.outcome, message.detail = outcome, detail
            if settled:
                session.to_settle.pop(number, None)
        more: dict[str, Any] = {} if last == first else {"last": last}
        if settled:
            more["settled"] = True
        error = [Described(ULong(0x1D), [Symbol("amqp:not-found"), detail])] if detail else []
        state = Described(ULong(STATES[outcome]), error)
        self.say(session.channel, "disposition", role=True, first=first, state=state, **more)

    def settle_sent(self, session: Session, first: int, last: int) -> None:
        """As a sender, settle deliveries whose outcome has arrived."""
        for number in numbers(first, last):
            assert session.unsettled.pop(number).outcome
        self.say(session.channel, "disposition", role=False, first=first, last=last, settled=True)

    def detach(self, session: Session, link: Link) -> None:
        link.detached = True
        self.say(session.channel, "detach", handle=link.handle, closed=True)
        self._forget_link(session, link)

    def end(self, session: Session) -> None:
        session.ended = True
        self.say(session.channel, "end")
        self._forget_session(session)

    def close(self) -> None:
        self._said_close = True
        self.say(0, "close")

    def take(self, data: bytes) -> None:
        self._in += data
        while self._in[:4] == b"AMQP" and len(self._in) >= 8:
            header, self._in = self._in[:8], self._in[8:]
            check(self._awaits, "a header too many:", header)
            check(header == self._awaits.pop(0), "the header", header)
            if not self.is_client:
                self.out += header
                if header == codec.SASL_HEADER:
                    self.say(0, "sasl_mechanisms", mechanisms=codec.Array(["PLAIN"]))
        while len(self._in) >= 8 and self._in[:4] != b"AMQP":
            size = int.from_bytes(self._in[:4], "big")
            check(size <= self.max_frame_bytes, "a frame of", size, "bytes")
            if len(self._in) < size:
                return None
            (said,), _ = codec.read(self._in[:size])
            self._in = self._in[size:]
            self._on_frame(said)
            if self._in[:4] == b"AMQP":
                return self.take(b"")
        return None

    def _on_frame(self, said: Said) -> None:
        check(not self.closed, self.name, "hears", said, "behind a close")
        if not said.name:
            self.heartbeats += 1
            return
        check(
            self.opened or said.name in {"open", "sasl_mechanisms", "sasl_init", "sasl_outcome"}, said, "before an open"
        )
        if said.channel in self._their_sessions and self._their_sessions[said.channel].ended and said.name != "end":
            return  # It was in flight when this peer ended the session (2.5.5).
        handler = getattr(self, f"_on_{said.name}")
        handler(said)

    def _on_sasl_mechanisms(self, said: Said) -> None:
        pass

    def _on_sasl_init(self, said: Said) -> None:
        self.say(0, "sasl_outcome", code=0)

    def _on_sasl_outcome(self, said: Said) -> None:
        check(said["code"] == 0, said)
        self.out += codec.HEADER
        self._say_open()

    def _say_open(self) -> None:
        self.say(
            0,
            "open",
            container_id=self.name,
            hostname=self._hostname,
            max_frame_size=self.max_frame_bytes,
            properties={Symbol("product"): "client" if self.is_client else "RabbitMQ"},
        )

    def _on_open(self, said: Said) -> None:
        check(not self.opened, "a second open")
        self.opened = True
        self._their_max_frame_bytes = said["max_frame_size"] or SERIAL - 1
        if not self.is_client:
            self._say_open()

    def _on_close(self, said: Said) -> None:
        self.closed = True
        self.error = said["error"]
        if not self._said_close:
            self.close()

    def _on_begin(self, said: Said) -> None:
        check(said.channel not in self._their_sessions, "a begin on channel", said.channel, "in use")
        theirs = said["remote_channel"]
        if theirs is None:
            check(not self.is_client, "a begin of the broker's own")
            channel = next(each for each in range(7, 1 << 16) if each not in self.sessions)
            session = self.sessions[channel] = Session(channel, self._first, 60, delivery_id=self._first_delivery)
            self._say_begin(session, said.channel)
        else:
            check(theirs in self.sessions, "a begin for channel", theirs)
            session = self.sessions[theirs]
            check(session.theirs is None, "a second begin for channel", theirs)
        session.theirs = said.channel
        self._their_sessions[said.channel] = session
        session.incoming_id = said["next_outgoing_id"]
        session.incoming_limit = (session.incoming_id + session.window) % SERIAL
        session.outgoing_limit = (session.outgoing_id + said["incoming_window"]) % SERIAL

    def _session(self, said: Said) -> Session:
        check(said.channel in self._their_sessions, self.name, "hears", said, "on a channel that is not begun")
        return self._their_sessions[said.channel]

    def _link(self, session: Session, said: Said) -> Link:
        check(said["handle"] in session.their_links, self.name, "hears", said, "of a handle that is not attached")
        return session.their_links[said["handle"]]

    def _on_attach(self, said: Said) -> None:
        session = self._session(said)
        handle, sends = said["handle"], said["role"] is True
        check(handle not in session.their_links, "an attach of the handle", handle, "in use")
        link = next(
            (
                each
                for each in session.links.values()
                if (each.name, each.sends) == (said["name"], sends) and each.theirs is None and not each.detached
            ),
            None,
        )
        if link is None:
            check(not self.is_client, "an attach of the broker's own")
            mine = next(each for each in range(3, 1 << 16) if each not in session.links)
            node = said["target"] if not sends else said["source"]
            address = node.value[0] if node.value else None
            first = self._first
            link = Link(said["name"], mine, sends, address, said["snd_settle_mode"], first, count=first, limit=first)
            session.links[mine] = link
            self._say_attach(session, link)
        link.theirs = handle
        session.their_links[handle] = link
        if not sends:
            check(said["initial_delivery_count"] is not None, "a sender without initial-delivery-count")
            early, link.count = link.credit, said["initial_delivery_count"]
            link.limit = (link.count + early) % SERIAL
            link.limits = {link.count, link.limit}

    def _on_detach(self, said: Said) -> None:
        session = self._session(said)
        link = self._link(session, said)
        del session.their_links[said["handle"]]
        link.theirs = None
        if not link.detached:
            self.detach(session, link)
        self._forget_link(session, link)

    def _forget_link(self, session: Session, link: Link) -> None:
        if link.detached and link.theirs is None:
            session.links.pop(link.handle, None)

    def _on_end(self, said: Said) -> None:
        session = self._session(said)
        del self._their_sessions[said.channel]
        session.theirs = None
        self.error = said["error"]
        if not session.ended:
            self.end(session)
        self._forget_session(session)

    def _forget_session(self, session: Session) -> None:
        if session.ended and session.theirs is None:
            self.sessions.pop(session.channel, None)

    def _on_flow(self, said: Said) -> None:
        session = self._session(said)
        check(said["next_outgoing_id"] == session.incoming_id, said, "though the next transfer is", session.incoming_id)
        incoming_id = said["next_incoming_id"]
        if incoming_id is not None:
            check(ahead(incoming_id, session.outgoing_id) <= 0, said, "leads what was sent:", session.outgoing_id)
            limit = (incoming_id + said["incoming_window"]) % SERIAL
            check(ahead(limit, session.outgoing_limit) >= 0, said, "takes back a window:", session.outgoing_limit)
            session.outgoing_limit = limit
        if said["handle"] is None:
            if said["echo"]:
                self.flow(session)
            return
        link = self._link(session, said)
        if link.detached:
            return
        if link.sends:
            self._on_credit(session, link, said)
        else:
            self._on_sender(session, link, said)

    def _on_credit(self, session: Session, link: Link, said: Said) -> None:
        # The receiver does not know the count before the sender's attach.
        count = link.first if said["delivery_count"] is None else said["delivery_count"]
        credit = said["link_credit"]
        # A peer that counts at the last frame has sent one more than it has counted.
        check(ahead(count, link.count) <= (link.frames > 0), said, "leads what was counted:", link.count)
        limit = (count + credit) % SERIAL
        check(ahead(limit, link.limit) >= 0, said, "takes back credit up to", link.limit)
        link.limit = limit
        link.drains = bool(said["drain"])
        if said["echo"] and not link.drains:
            self.flow(session, link, available=len(link.outbox))

    def _on_sender(self, session: Session, link: Link, said: Said) -> None:
        link.flows.append(said)
        count, credit = said["delivery_count"], said["link_credit"]
        came = ahead(count, link.count)
        # A peer that counts at the last frame has not counted the delivery in progress.
        check(came >= -(link.in_flight is not None), said, "though there came", link.count)
        check((count + credit) % SERIAL in link.limits, said, "of a limit that was never given:", sorted(link.limits))
        if came > 0:
            check(link.drains and said["drain"], said, "throws credit away that it was not asked for")
            check(ahead(count, link.limit) <= 0, said, "is beyond the limit", link.limit)
            link.count = count
        if said["drain"] and link.credit == 0:
            link.drains = False
        if said["echo"]:
            self.flow(session, link)

    def _on_transfer(self, said: Said) -> None:
        session = self._session(said)
        link = self._link(session, said)
        check(not link.sends, said, "on a link that sends")
        check(ahead(session.incoming_limit or 0, session.incoming_id) > 0, said, "beyond the session's window")
        session.incoming_id = (session.incoming_id + 1) % SERIAL
        message = link.in_flight
        number = said["delivery_id"]
        if link.detached:
            if number is not None and (session.their_delivery_id is None or number == session.their_delivery_id):
                session.their_delivery_id = (number + 1) % SERIAL
            return
        if message is None:
            check(number is not None and said["delivery_tag"] is not None, said, "that begins without number or tag")
            check(session.their_delivery_id in {None, number}, said, "is not", session.their_delivery_id)
            session.their_delivery_id = (number + 1) % SERIAL
            check(link.credit > 0, said, "beyond the credit", link.limit, link.count)
            link.count = (link.count + 1) % SERIAL
            message = link.in_flight = Message(b"", bool(said["settled"]), number=number)
        check(number in {None, message.number}, said, "within", message.number)
        message.payload += said.payload
        if said["aborted"] or not said["more"]:
            link.in_flight = None
            if said["aborted"]:
                return
            link.received.append(message)
            if not message.settled:
                session.to_settle[message.number] = message

    def _on_disposition(self, said: Said) -> None:
        session = self._session(said)
        first = said["first"]
        last = first if said["last"] is None else said["last"]
        if not said["role"]:
            check(said["settled"], said, "of a sender that settles nothing")
            for number in numbers(first, last):
                check(number in session.to_settle, said, "of a delivery that is settled, or never came")
                check(session.to_settle.pop(number).outcome, said, "before an outcome")
            return
        state = said["state"]
        check(isinstance(state, Described) and state.descriptor in OUTCOMES, said, "without an outcome")
        outcome = OUTCOMES[state.descriptor]
        detail = state.value[0].value[1] if outcome == "rejected" and state.value else ""
        for number in numbers(first, last):
            check(ahead(number, session.delivery_id) < 0, said, "was not sent, the next is", session.delivery_id)
            message = session.unsettled.get(number)
            if message is not None:
                message.outcome, message.detail = outcome, detail
            if said["settled"]:
                session.unsettled.pop(number, None)


def numbers(first: int, last: int) -> list[int]:
    count = ahead(last, first) + 1
    check(0 < count < 100_000, "a range from", first, "to", last)
    return [(first + each) % SERIAL for each in range(count)]
