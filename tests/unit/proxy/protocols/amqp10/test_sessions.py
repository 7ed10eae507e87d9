"""Sessions and links interleaved, chunks cut anywhere, verdicts at random: neither peer sees a rule broken.

Both peers hold each other to the rules of the specification. In the end all that was not refused has arrived as it was
sent, in order, and its sender knows the outcome that its receiver gave it.
"""

import os
from random import Random

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import Described, ULong
from amqp10_playbook.driver import BROKER, BUSY, CLIENT, Driver
from amqp10_playbook.session_peers import ACCEPTED, ALL, REJECTED, RELEASED, Delivery, LinkEnd, Peer, SessionEnd

from limiter.rules.resource import Resource
from proxy.deciding.batch import Grant, Hold, Request, Side, Ticket, Verdict
from proxy.protocols.amqp10.options import AMQP10Options
from proxy.protocols.base import Terms
from proxy.protocols.options import ScanName

FACTOR = max(1, int(os.environ.get("SLUICE_FUZZ_FACTOR", "1")))
QUEUES = {
    "free": Terms(),
    "shaped": Terms(delays=True),
    "refused": Terms(refuses=True),
    "both": Terms(delays=True, refuses=True),
    "bytes": Terms(delays=True, most_bytes=1000),
}
BUSY_STATE = "SYSTEM_BUSY"


class Scenario:
    """A client, a broker and a limiter that agree on nothing but the protocol."""

    def __init__(self, seed: int, *, scan: ScanName = "python") -> None:
        self.random = random = Random(seed)
        self.terms = {Resource("queue", name): terms for name, terms in QUEUES.items()}
        self.terms |= {Resource("delivery", "shaped"): Terms(delays=True)}
        self.driver = Driver(self.decide, terms=dict(self.terms), options=AMQP10Options(scan=scan))
        early = random.random() < 0.5
        self.client = Peer(random, counts_early=early, answers=False)
        self.broker = Peer(random, counts_early=early, answers=True)
        self.heard: dict[Side, list[codec.Said]] = {CLIENT: [], BROKER: []}
        self.begun = dict.fromkeys(Side, False)
        self.serial = 0
        self.refusals = random.choice([0.0, 0.1, 0.5, 1.0])
        self.longest = random.choice([7, 100, 3000, 100_000])
        self.changes_rules = random.random() < 0.3
        self.detaches = random.random() < 0.3
        self.refused = 0

    def peer(self, side: Side) -> Peer:
        return self.client if side is CLIENT else self.broker

    # --- The limiter ------------------------------------------------------------------------------

    def decide(self, request: Request) -> Verdict | None:
        random = self.random
        if not request.most:
            if random.random() < self.refusals:
                return BUSY
            return None
        step = random.random()
        if step < 0.3:
            return Hold(request.resources[0], "rule", Ticket(lambda: None))
        if step < 0.7:
            return Grant(random.randint(1, request.most))
        return None

    def resolve(self) -> None:
        if self.driver.held:
            request = next(iter(self.driver.held.values()))[0]
            self.driver.resolve(self.random.randint(1, request.most))

    def change_rules(self) -> None:
        if self.changes_rules:
            resource = self.random.choice(list(self.terms))
            delivers = resource.kind == "delivery"
            choice = [Terms(), Terms(delays=True)] if delivers else list(QUEUES.values())
            self.driver.terms[resource] = self.random.choice(choice)
            self.driver.version += 1

    # --- The wire ---------------------------------------------------------------------------------

    def give(self, side: Side, longest: int | None = None) -> None:
        """Have Sluice read some of what a peer has sent."""
        out = self.peer(side).out
        count = self.random.randint(1, longest or self.longest)
        data = bytes(out[:count])
        del out[:count]
        if data:
            self.driver.give(side, data, self.random, max(20, self.longest))
        assert self.driver.closed is None, self.driver.closed
        self.read()

    def read(self) -> None:
        for side in Side:
            written = self.driver.written[side]
            if not self.begun[side] and len(written) >= 8:
                assert written[:8] == codec.HEADER
                del written[:8]
                self.begun[side] = True
            if self.begun[side]:
                said, rest = codec.read(bytes(written))
                self.heard[side] += said
                self.driver.written[side] = bytearray(rest)

    def hear(self, side: Side, most: int) -> None:
        heard = self.heard[side]
        for said in heard[:most]:
            self.peer(side).hear(said)
        del heard[:most]

    def tick(self) -> None:
        self.driver.now_ns += self.random.choice([0, 10**6, 3 * 10**8, 2 * 10**9])
        self.driver.tick()
        self.read()

    # --- The peers --------------------------------------------------------------------------------

    def begin(self) -> None:
        if len(self.client.sessions) < 4:
            channel = next(each for each in range(10) if each not in self.client.sessions)
            self.client.begin(channel)

    def session(self, peer: Peer) -> SessionEnd | None:
        sessions = [each for each in peer.sessions.values() if each.answered and not each.ended]
        return self.random.choice(sessions) if sessions else None

    def link(self, peer: Peer, *, sends: bool) -> LinkEnd | None:
        links = [
            each
            for each in peer.links
            if each.sends is sends and not each.closed and not each.session.ended and each.answered
        ]
        return self.random.choice(links) if links else None

    def attach(self) -> None:
        session, random = self.session(self.client), self.random
        if session is None or len(session.links) >= 6:
            return
        handle = next(each for each in range(10) if each not in session.links)
        self.serial += 1
        name = f"link-{self.serial}"
        queue = random.choice(list(QUEUES))
        mine, theirs = (Described(ULong(0x29), []), Described(ULong(0x28), [f"/queues/{queue}"]))
        if random.random() < 0.3:
            link = session.attach(name, handle, sends=False, source=theirs, target=mine)
            self.client.links.append(link)
            if random.random() < 0.5:
                # It does not know the sender's delivery-count yet.
                link.grant(random.randint(1, 50))
            return
        address = None if random.random() < 0.3 else f"/queues/{queue}"
        mode = random.choice([None, 2, 1, 0])
        link = session.attach(
            name,
            handle,
            sends=True,
            snd_settle_mode=None if mode is None else codec.UByte(mode),
            source=Described(ULong(0x28), []),
            target=Described(ULong(0x29), [address]),
        )
        link.mode, link.address = mode, address
        self.client.links.append(link)

    def produce(self, peer: Peer) -> None:
        random = self.random
        link = self.link(peer, sends=True)
        if link is None or len(link.backlog) > 30:
            return
        for _ in range(random.choice([1, 1, 5])):
            self.serial += 1
            body = random.randbytes(
                random.choice([1, 30, 30, 30, 300, 2000, *([70_000] if random.random() < 0.1 else [])])
            )
            to = f"/queues/{random.choice(list(QUEUES))}"
            anonymous = link.address is None
            payload = codec.message(
                body, to=to if anonymous else None, annotations={} if random.random() < 0.5 else None
            )
            size = random.choice([40, 500, 1 << 20, 1 << 20])
            parts = list(codec.in_chunks(payload, max(size, len(payload) // 12 + 1)))
            mode = link.mode
            settled = mode == 1 or (mode != 0 and random.random() < 0.2)
            aborted = len(parts) > 1 and random.random() < 0.1
            link.backlog.append((Delivery(b"%d" % self.serial, payload, settled, aborted=aborted), parts))

    def send(self, peer: Peer) -> None:
        link = self.link(peer, sends=True)
        if link is not None:
            for _ in range(self.random.choice([1, 3, 20])):
                if not link.send():
                    break

    def throw_away(self, peer: Peer) -> None:
        link = self.link(peer, sends=True)
        if link is not None:
            link.throw_away()

    def grant(self, peer: Peer) -> None:
        link = self.link(peer, sends=False)
        if link is not None:
            link.grant(
                self.random.choice([1, 10, 170]), drain=self.random.random() < 0.2, echo=self.random.random() < 0.1
            )

    def tell(self, peer: Peer) -> None:
        link = self.link(peer, sends=True)
        if link is not None:
            link.session.flow(link, echo=self.random.random() < 0.3)

    def settle(self, peer: Peer, most: int = 20) -> None:
        """Say an outcome of some that have come."""
        session, random = self.session(peer), self.random
        if session is None:
            return
        numbers = [number for number, each in session.unsettled.items() if each.outcome is None]
        if not numbers:
            return
        first = random.choice(numbers)
        count = 1
        while count < most and (first + count) & ALL in numbers and random.random() < 0.9:
            count += 1
        session.settle(first, count, random.choice([ACCEPTED, REJECTED, RELEASED]), settled=random.random() < 0.8)

    def settle_sent(self, peer: Peer, most: int = 20) -> None:
        session = self.session(peer)
        if session is None:
            return
        numbers = [number for number, each in session.sent.items() if each.outcome and not each.is_settled]
        if numbers:
            first = self.random.choice(numbers)
            count = 1
            while count < most and (first + count) & ALL in numbers:
                count += 1
            session.settle_sent(first, count)

    def detach(self) -> None:
        if self.detaches and self.random.random() < 0.1:
            link = self.link(self.client, sends=self.random.random() < 0.5)
            if link is not None:
                link.session.detach(link)

    def end(self) -> None:
        session = self.session(self.client)
        if self.detaches and self.random.random() < 0.03 and session is not None:
            session.say("end")
            session.ended = True

    def step(self) -> None:
        random = self.random
        side = random.choice(list(Side))
        peer = self.peer(side)
        action = random.choices(
            [
                "give",
                "hear",
                "send",
                "produce",
                "settle",
                "settle_sent",
                "grant",
                "drain",
                "tell",
                "tick",
                "resolve",
                "rare",
            ],
            [30, 30, 20, 15, 8, 3, 6, 4, 1, 4, 5, 5],
        )[0]
        match action:
            case "give":
                self.give(side)
            case "hear":
                self.hear(side, random.choice([1, 5, 100]))
            case "send":
                self.send(peer)
            case "produce":
                self.produce(peer)
            case "settle":
                self.settle(peer)
            case "settle_sent":
                self.settle_sent(peer)
            case "grant":
                self.grant(peer)
            case "drain":
                self.throw_away(peer)
            case "tell":
                self.tell(peer)
            case "tick":
                self.tick()
            case "resolve":
                self.resolve()
            case _:
                random.choice([self.begin, self.attach, self.attach, self.detach, self.end, self.change_rules])()

    # --- The end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Have all arrive and be settled."""
        for round_ in range(10_000):
            before = self.state()
            for side in Side:
                peer = self.peer(side)
                while peer.out:
                    self.give(side, 100_000)
                self.hear(side, 1 << 30)
            if self.driver.held:
                self.resolve()
            self.tick()
            for side in Side:
                peer = self.peer(side)
                for link in peer.links:
                    if link.closed or link.session.ended or not link.answered:
                        continue
                    if not link.sends and link.credit < 5:
                        link.grant(20, drain=link.drain)
                    while link.sends and link.send():
                        pass
                for _ in range(5):
                    self.settle(peer, 1000)
                    self.settle_sent(peer, 1000)
            peers = (self.client, self.broker)
            busy = any(peer.out or any(each.unsettled for each in peer.sessions.values()) for peer in peers)
            if self.state() == before and round_ > 20 and (not busy or round_ > 2000):
                break
        else:
            raise AssertionError("it does not come to an end")
        for peer in (self.client, self.broker):
            for link in peer.links:
                if link.sends and not link.closed and not link.session.ended and link.answered:
                    assert not link.backlog, (link.name, link.credit, link.session.window_left, len(link.backlog))
                    assert link.partial is None

    def state(self) -> object:
        return (
            len(self.driver.total[CLIENT]),
            len(self.driver.total[BROKER]),
            len(self.client.out),
            len(self.broker.out),
            len(self.driver.held),
        )

    def check(self) -> None:
        refused = 0
        for sender, receiver in ((self.client, self.broker), (self.broker, self.client)):
            ends = {(each.name, each.sends): each for each in receiver.links}
            for link in sender.links:
                if not link.sends:
                    continue
                other = ends.get((link.name, False))
                whole = other is not None and not link.closed and not link.session.ended
                came = [] if other is None else other.deliveries
                busy = [each for each in link.deliveries if each.outcome and each.outcome[1].startswith(BUSY_STATE)]
                refused += len(busy)
                tags = {each.tag for each in busy}
                assert all(each.is_settled and not each.settled for each in busy)
                wanted = [each for each in link.deliveries if each.tag not in tags]
                if not whole:
                    # What was under way may be lost with the link, but no more than that.
                    came = [each for each in came if each.complete]
                    # A refusal that was not heard any more.
                    known = {each.tag for each in came}
                    assert not known & tags
                    wanted = [each for each in wanted if each.tag in known]
                assert [each.tag for each in came] == [each.tag for each in wanted], link.name
                for mine, theirs in zip(wanted, came, strict=True):
                    if not mine.aborted:
                        assert theirs.payload == mine.payload
                    assert theirs.settled is mine.settled
                    if whole and not mine.settled and not theirs.aborted:
                        assert mine.outcome == theirs.outcome is not None
        assert refused <= self.driver.session.describe().refused
        assert self.detaches or refused == self.driver.session.describe().refused


@pytest.mark.parametrize("scan", ["python", "auto"])
@pytest.mark.parametrize("seeds", range(4))
def test_neither_peer_sees_a_rule_broken(seeds: int, scan: ScanName) -> None:
    for seed in range(seeds * 10 * FACTOR, (seeds + 1) * 10 * FACTOR):
        scenario = Scenario(seed, scan=scan)
        try:
            for _ in range(600):
                scenario.step()
            scenario.finish()
            scenario.check()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
