"""A client and a broker with random actions, through a relay. All effects are checked."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Protocol

from . import codec
from .peers import SERIAL, Link, Message, Peer, RuleBrokenError, Session, ahead, check

# Twice as many as any run needs.
_MAX_ROUNDS = 3000


class Relay(Protocol):
    def give(self, from_client: bool, data: bytes, random: Random) -> None:  # noqa: FBT001 - which of two
        """Take a peer's bytes."""

    def take(self, to_client: bool) -> bytes:  # noqa: FBT001 - likewise
        pass

    def step(self, random: Random) -> None:
        """Act without input, such as granting credit to waiting links."""

    def rest(self) -> None:
        """Grant everything. Called until nothing changes."""


class Direct:
    def __init__(self) -> None:
        self._out = {True: b"", False: b""}

    def give(self, from_client: bool, data: bytes, random: Random) -> None:  # noqa: FBT001
        self._out[not from_client] += data

    def take(self, to_client: bool) -> bytes:  # noqa: FBT001
        data, self._out[to_client] = self._out[to_client], b""
        return data

    def step(self, random: Random) -> None:
        pass

    def rest(self) -> None:
        pass


@dataclass(frozen=True)
class Addresses:
    targets: tuple[str | None, ...] = ("/queues/orders", "/queues/free", None)
    to: tuple[str, ...] = ("/queues/orders", "/queues/free")
    sources: tuple[str, ...] = ("/queues/orders", "/queues/free")

    @classmethod
    def of(cls, *queues: str) -> "Addresses":
        names = tuple(f"/queues/{queue}" for queue in queues)
        return cls((*names, None), names, names)


ADDRESSES = Addresses()


class Trial:
    def __init__(
        self,
        seed: int,
        relay: Relay,
        *,
        addresses: Addresses = ADDRESSES,
        refused: Callable[[str], bool] = lambda _: False,
        closes: bool = False,
        aborts: bool = True,
    ) -> None:
        self.random = random = Random(seed)
        self.relay = relay
        self._addresses = addresses
        self._refused = refused
        self._closes = closes
        self._aborts = aborts
        frame_bytes = random.choice([512, 1000, 1 << 14, 1 << 17])
        self.client, self.broker = (
            Peer(
                name,
                max_frame_bytes=frame_bytes,
                first=random.choice([0, 5, (1 << 32) - 3, (1 << 31) - 2]),
                counts_at_last=random.random() < 0.5,
            )
            for name in ("client", "broker")
        )
        self.peers = self.client, self.broker
        self._in_chunks = random.random() < 0.8
        self._bodies = 0
        self._made: list[tuple[Peer, Link]] = []
        self._broker_links: dict[tuple[int, str, bool], Link] = {}
        self._names = 0

    def run(self, steps: int = 300) -> "Trial":
        """Run this many steps, come to rest, check everything, and close."""
        self.client.start()
        for _ in range(20):
            self._move()
        check(self.client.opened and self.broker.opened, "not opened")
        for _ in range(steps):
            self._step()
        self._come_to_rest()
        self._check_messages()
        self.client.close()
        for _ in range(20):
            self._move()
        check(self.client.closed and self.broker.closed, "not closed")
        return self

    @property
    def outcomes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for peer, link in self._made:
            if peer is self.client:
                for message in link.sent:
                    found[message.outcome] = found.get(message.outcome, 0) + 1
        return found

    def sent_to(self, queue: str) -> int:
        """Return the number of messages to a queue that were not refused."""
        return sum(
            link.address == f"/queues/{queue}" or (link.address is None and f"/queues/{queue}".encode() in each.payload)
            for peer, link in self._made
            if peer is self.client and link.sends
            for each in link.sent
            if not self._is_refused(each)
        )

    @property
    def refused(self) -> int:
        return sum(
            message.outcome == "rejected" and self._refused(message.detail)
            for peer, link in self._made
            if peer is self.client
            for message in link.sent
        )

    def _step(self) -> None:
        random = self.random
        match random.randrange(27):
            case 0 if len(self.client.sessions) < 3:
                free = next(each for each in range(4) if each not in self.client.sessions)
                self.client.begin(free, random.choice([1, 3, 20, 400]))
            case 1 | 2:
                self._attach()
            case 3 | 4 | 5 | 6:
                self._write_message()
            case 7 | 8 | 9 | 10 | 11:
                self._send()
            case 12 | 13:
                self._grant()
            case 14:
                self._open_window()
            case 15 | 16:
                self._settle()
            case 17 if self._closes and random.random() < 0.1:
                self._leave()
            case 18:
                random.choice(self.peers).out += codec.EMPTY if self.client.opened else b""
            case 19 | 20:
                self.relay.step(random)
            case 21:
                self._settle_sent()
            case 22 if random.random() < 0.3:
                self._tell()
            case _:
                self._move()

    def _sessions(self, peer: Peer) -> list[Session]:
        return [each for each in peer.sessions.values() if each.is_up]

    def _links(self, *, sends: bool) -> list[tuple[Peer, Session, Link]]:
        return [
            (peer, session, link)
            for peer in self.peers
            for session in self._sessions(peer)
            for link in session.links.values()
            if link.sends is sends and link.is_up
        ]

    def _attach(self) -> None:
        sessions = self._sessions(self.client)
        if not sessions:
            return
        session = self.random.choice(sessions)
        handles = [each for each in range(5) if each not in session.links]
        if handles:
            sends = self.random.random() < 0.6
            address = self.random.choice(self._addresses.targets if sends else self._addresses.sources)
            self._names += 1
            mode = self.random.choice([None, None, 0, 1, 2]) if sends else None
            link = self.client.attach(
                session, f"l{self._names}", self.random.choice(handles), sends=sends, address=address, mode=mode
            )
            self._made.append((self.client, link))
            if not sends and self.random.random() < 0.3:
                self.client.grant(session, link, self.random.choice([1, 50]))

    def _write_message(self) -> None:
        random = self.random
        links = self._links(sends=True)
        if not links:
            return
        peer, _, link = random.choice(links)
        self._note(peer, link)
        self._bodies += 1
        body = b"%d:" % self._bodies + random.randbytes(random.choice([0, 10, 10, 10, 600, 600, 3000, 70_000]))
        to = random.choice(self._addresses.to) if peer is self.client and link.address is None else None
        payload = codec.message(body, to=to, durable=random.random() < 0.3)
        settled = link.mode == 1 or (link.mode != 0 and random.random() < 0.3)
        message = Message(payload, settled=settled, frame_bytes=random.choice([9, 100, 1 << 20, 1 << 20]))
        if self._aborts and random.random() < 0.1:
            message.aborts = random.choice([1, 2])
        message.frame_bytes = max(message.frame_bytes, len(payload) // 50)
        link.outbox.append(message)

    def _note(self, peer: Peer, link: Link) -> None:
        if peer is self.broker and not any(each is link for _, each in self._made):
            self._made.append((peer, link))

    def _send(self) -> None:
        links = [each for each in self._links(sends=True) if each[0].may_send(*each[1:])]
        if links:
            peer, session, link = self.random.choice(links)
            for _ in range(self.random.choice([1, 1, 5])):
                if peer.may_send(session, link):
                    peer.send(session, link)
            self._answer_drain()

    def _answer_drain(self) -> None:
        for peer, session, link in self._links(sends=True):
            peer.answer_drain(session, link)

    def _grant(self) -> None:
        links = self._links(sends=False)
        if links:
            random = self.random
            peer, session, link = random.choice(links)
            if link.drains:
                return
            credit = random.choice([0, 1, 2, 10, 100]) if link.credit < 200 else 0
            peer.grant(session, link, credit, drain=random.random() < 0.15, echo=random.random() < 0.1)

    def _open_window(self) -> None:
        for peer in self.peers:
            for session in self._sessions(peer):
                if ahead(session.incoming_limit or 0, session.incoming_id) < 30:
                    peer.open_window(session, self.random.choice([1, 30, 300]))

    def _settle(self) -> None:
        random = self.random
        sessions = [(peer, each) for peer in self.peers for each in self._sessions(peer) if each.to_settle]
        if not sessions:
            return
        peer, session = random.choice(sessions)
        first = random.choice([number for number, each in session.to_settle.items() if not each.outcome] or [-1])
        if first >= 0:
            last = peer.range_from(session, first, random.choice([1, 1, 5, 50]))
            outcome = random.choice(["accepted"] * 8 + ["released", "rejected", "modified"])
            peer.settle(session, first, last, outcome, settled=random.random() < 0.8)

    def _settle_sent(self) -> None:
        for peer in self.peers:
            for session in self._sessions(peer):
                while known := [number for number, each in session.unsettled.items() if each.outcome]:
                    last = known[0]
                    while (last + 1) % SERIAL in known:
                        last = (last + 1) % SERIAL
                    peer.settle_sent(session, known[0], last)

    def _tell(self) -> None:
        """Let a sender send its numbers."""
        links = self._links(sends=True)
        if links:
            peer, session, link = self.random.choice(links)
            peer.flow(session, link, available=len(link.outbox), echo=self.random.random() < 0.3 or None)

    def _leave(self) -> None:
        peer = self.random.choice(self.peers)
        sessions = self._sessions(peer)
        if not sessions:
            return
        session = self.random.choice(sessions)
        links = [each for each in session.links.values() if each.is_up and each.frames == 0]
        if links and self.random.random() < 0.8:
            peer.detach(session, self.random.choice(links))
        else:
            peer.end(session)

    def _move(self) -> bool:
        """Move bytes, in chunks of any length. Return whether there were any."""
        moved = False
        for peer in self.peers:
            is_client = peer is self.client
            heard = self.relay.take(is_client)
            for at in self._cuts(heard):
                peer.take(heard[at[0] : at[1]])
            said, peer.out = bytes(peer.out), bytearray()
            for at in self._cuts(said):
                self.relay.give(is_client, said[at[0] : at[1]], self.random)
            moved = moved or bool(heard or said)
        self._answer_drain()
        return moved

    def _cuts(self, data: bytes) -> list[tuple[int, int]]:
        if not data:
            return []
        inner = (
            self.random.sample(range(1, len(data)), min(len(data) - 1, self.random.randrange(5)))
            if self._in_chunks
            else []
        )
        cuts = sorted({0, len(data), *inner})
        return list(pairwise(cuts))

    def _come_to_rest(self) -> None:
        """Send and settle everything, until nothing changes."""
        for _ in range(_MAX_ROUNDS):
            busy = self._move()
            for peer, session, link in self._links(sends=True):
                while peer.may_send(session, link):
                    peer.send(session, link)
                    busy = True
            for peer, session, link in self._links(sends=False):
                if link.credit < 50 and not link.drains:
                    peer.grant(session, link, 100)
                    busy = True
            for peer in self.peers:
                for session in self._sessions(peer):
                    if ahead(session.incoming_limit or 0, session.incoming_id) < 200:
                        peer.open_window(session, 1000)
                        busy = True
                    for number in [number for number, each in session.to_settle.items() if not each.outcome]:
                        peer.settle(session, number, number, "accepted")
                        busy = True
            self._settle_sent()
            self.relay.rest()
            waits = self._waiting()
            if not busy and not waits:
                return
        raise RuleBrokenError(f"no rest: {self._waiting()}")

    def _waiting(self) -> list[object]:
        """Return the unfinished items."""
        waits: list[object] = [link.name for _, _, link in self._links(sends=True) if link.outbox]
        if self._closes:
            return waits
        waits += [
            message.number
            for peer in self.peers
            for each in peer.sessions.values()
            for message in each.unsettled.values()
        ]
        waits += [link.name for _, _, link in self._links(sends=False) if link.in_flight]
        return waits

    def _check_messages(self) -> None:
        for peer, link in self._made:
            self._note_received(peer, link)

    def _note_received(self, peer: Peer, link: Link) -> None:
        """Compare sent and received messages of a link."""
        if not link.sends:
            return
        other = self.broker if peer is self.client else self.client
        came = self._received(other, link)
        if came is None:
            return
        expected = [each.payload for each in link.sent if each.outcome != "aborted" and not self._is_refused(each)]
        got = [each.payload for each in came]
        if self._closes:
            expected = expected[: len(got)]
        check(
            got == expected, link.name, "of", peer.name, [each[:20] for each in got], [each[:20] for each in expected]
        )
        for each in came:
            message = next(message for message in link.sent if message.payload == each.payload)
            if not self._closes or message.outcome:
                check(message.outcome == (each.outcome or "settled"), message, each)
                check(message.detail == each.detail, message, each)

    def _is_refused(self, message: Message) -> bool:
        refused = message.outcome == "rejected" and self._refused(message.detail)
        check(not (refused and message.settled), message)
        return refused

    def _received(self, peer: Peer, link: Link) -> list[Message] | None:
        return next(
            (
                each.received
                for session in peer.sessions.values()
                for each in session.links.values()
                if each.name == link.name and each.sends is not link.sends
            ),
            None,
        )
