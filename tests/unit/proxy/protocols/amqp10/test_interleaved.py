"""Two peers that hold each other to the rules of sessions and links, with a session of Sluice's between them.

What they do, in which order, how it is cut into chunks and what is decided of it is random.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import Described, Said, UInt, ULong, say
from amqp10_playbook.driver import BROKER, BUSY, CLIENT, ORDERS, Driver, hold

from limiter.rules.resource import Resource
from proxy.deciding.batch import Grant, Request, Side, Verdict
from proxy.protocols.amqp10.session import AMQP10Options
from proxy.protocols.base import Terms
from proxy.protocols.options import ScanName

ACCEPTED = Described(ULong(0x24), [])
WINDOW = 40
SERIAL = 1 << 32
#: Of each link its address, and whether messages say it themselves.
ADDRESSES = ["/queues/orders", "/queues/picky", "/queues/large", "/queues/free", None]
TERMS = {
    ORDERS: Terms(delays=True),
    Resource("queue", "picky"): Terms(delays=True, refuses=True),
    Resource("queue", "large"): Terms(delays=True, most_bytes=900),
    Resource("delivery", "orders"): Terms(delays=True),
}


def ahead(first: int, second: int) -> int:
    """Return by how much a serial number is ahead of another."""
    return (first - second + SERIAL // 2) % SERIAL - SERIAL // 2


@dataclass
class End:
    """One end of a link.

    Attributes:
        theirs: the other end's handle.
        count: delivery-count.
        limit: delivery-count + link-credit, as far as this end knows, or has said.
        frames: of the sender, what is still to be sent of a delivery.
        drains: the receiver wants credit used up.
    """

    handle: int
    theirs: int
    address: str | None
    count: int
    limit: int
    frames: deque[dict[str, Any]] = field(default_factory=deque)
    drains: bool = False
    payload: bytes = b""
    under_way: int | None = None


class Peer:
    """The client or the broker."""

    def __init__(self, side: Side, channel: int, first: int, theirs: int, random: Random) -> None:
        self.side, self.channel, self.random = side, channel, random
        self.out = bytearray()
        self.next_outgoing, self.next_incoming = first, theirs
        self.window_ends = (first + WINDOW) % SERIAL
        self.window_given = (theirs + WINDOW) % SERIAL
        self.delivery_id, self.expected_id = first, None
        self.sends: dict[int, End] = {}
        self.takes: dict[int, End] = {}
        self.sent: dict[int, bytes] = {}
        self.came: list[tuple[int, bytes]] = []
        self.unsettled: dict[int, None] = {}
        self.outcomes: dict[int, int] = {}

    def say(self, name: str, payload: bytes = b"", /, **fields: Any) -> None:
        self.out += say(self.channel, name, payload, **fields)

    def session(self) -> dict[str, int]:
        left = ahead(self.window_given, self.next_incoming)
        return {
            "next_incoming_id": self.next_incoming,
            "incoming_window": left,
            "next_outgoing_id": self.next_outgoing,
            "outgoing_window": 1000,
        }

    # --- What it does -----------------------------------------------------------------------------

    def open_window(self) -> None:
        self.window_given = (self.next_incoming + WINDOW) % SERIAL
        self.say("flow", **self.session())

    def begin_delivery(self, link: End) -> None:
        if ahead(link.limit, link.count) <= 0 or link.frames or ahead(self.window_ends, self.next_outgoing) <= 0:
            return
        random = self.random
        to = random.choice(["/queues/orders", "/queues/picky", "/queues/free"]) if link.address is None else None
        payload = codec.message(random.randbytes(random.choice([1, 50, 700, 1500])), to=to)
        number, self.delivery_id = self.delivery_id, (self.delivery_id + 1) % SERIAL
        settled = random.random() < 0.1
        size = random.choice([7, 100, 2000])
        parts = list(codec.in_chunks(payload, size)) if len(payload) // size < 20 else [payload]
        for at, part in enumerate(parts):
            first = {"delivery_id": number, "delivery_tag": b"t", "settled": settled} if at == 0 else {}
            again = {"delivery_id": number} if at and random.random() < 0.2 else {}
            link.frames.append({"payload": part, "more": at + 1 < len(parts), **first, **again})
        self.sent[number] = payload
        if not settled:
            self.unsettled[number] = None
        self.send_frame(link)

    def send_frame(self, link: End) -> None:
        if not link.frames or ahead(self.window_ends, self.next_outgoing) <= 0:
            return
        frame = link.frames.popleft()
        self.next_outgoing = (self.next_outgoing + 1) % SERIAL
        self.say("transfer", frame.pop("payload"), handle=link.handle, **frame)
        if not frame["more"]:
            link.count = (link.count + 1) % SERIAL

    def answer_drain(self, link: End) -> None:
        if link.drains and not link.frames:
            link.count = link.limit
            self.say(
                "flow",
                **self.session(),
                handle=link.handle,
                delivery_count=link.count,
                link_credit=0,
                available=0,
                drain=True,
            )
            link.drains = False

    def give_credit(self, link: End, more: int, *, drain: bool = False, echo: bool = False) -> None:
        if link.drains:
            return
        link.limit = (max(ahead(link.limit, link.count), 0) + more + link.count) % SERIAL
        link.drains = drain
        credit = ahead(link.limit, link.count)
        self.say(
            "flow",
            **self.session(),
            handle=link.handle,
            delivery_count=link.count,
            link_credit=credit,
            drain=drain or None,
            echo=echo or None,
        )

    def accept(self) -> None:
        """Accept some of what came, the first or one in the middle."""
        unsettled = list(self.unsettled_of_theirs)
        if not unsettled:
            return
        at = self.random.randrange(len(unsettled))
        first = last = unsettled[at]
        for each in unsettled[at + 1 : at + 6]:
            if each != (last + 1) % SERIAL:
                break
            last = each
        for number in range((last - first) % SERIAL + 1):
            del self.unsettled_of_theirs[(first + number) % SERIAL]
        self.say("disposition", role=True, first=first, last=last, settled=True, state=ACCEPTED)

    # --- What it hears ----------------------------------------------------------------------------

    @property
    def unsettled_of_theirs(self) -> dict[int, None]:
        return self.__dict__.setdefault("_theirs", {})  # type: ignore[no-any-return]

    def hear(self, said: Said) -> None:
        match said.name:
            case "flow":
                self.hear_flow(said)
            case "transfer":
                self.hear_transfer(said)
            case "disposition":
                self.hear_disposition(said)

    def hear_flow(self, said: Said) -> None:
        # All that the other side has sent came before.
        assert said["next_outgoing_id"] == self.next_incoming
        assert 0 <= ahead(self.next_outgoing, said["next_incoming_id"]) < 1 << 20
        self.window_ends = (said["next_incoming_id"] + said["incoming_window"]) % SERIAL
        link = next((each for each in self.sends.values() if each.theirs == said["handle"]), None)
        if link is not None:
            limit = (said["delivery_count"] + (said["link_credit"] or 0)) % SERIAL
            # Nobody here takes credit away.
            assert ahead(limit, link.limit) >= 0, (link, said)
            link.limit = limit
            link.drains = said["drain"] is True
        link = next((each for each in self.takes.values() if each.theirs == said["handle"]), None)
        if link is not None:
            assert ahead(said["delivery_count"], link.limit) <= 0
            # What is under way counts for who counts first frames.
            if ahead(said["delivery_count"], link.count) > 0:
                assert link.drains
                assert said["drain"] is True
                assert said["delivery_count"] == link.limit
                link.count = said["delivery_count"]
                link.drains = False

    def hear_transfer(self, said: Said) -> None:
        assert ahead(self.window_given, self.next_incoming) > 0
        self.next_incoming = (self.next_incoming + 1) % SERIAL
        link = next(each for each in self.takes.values() if each.theirs == said["handle"])
        if link.under_way is None:
            number = said["delivery_id"]
            if self.expected_id is not None:
                assert number == self.expected_id
            self.expected_id = (number + 1) % SERIAL
            assert ahead(link.limit, link.count) > 0
            link.under_way = number
            if not said["settled"]:
                self.unsettled_of_theirs[number] = None
        elif said["delivery_id"] is not None:
            assert said["delivery_id"] == link.under_way
        link.payload += said.payload
        if not said["more"]:
            self.came.append((link.handle, link.payload))
            link.payload, link.under_way = b"", None
            link.count = (link.count + 1) % SERIAL

    def hear_disposition(self, said: Said) -> None:
        first, last = said["first"], said["first"] if said["last"] is None else said["last"]
        code = int(said["state"].descriptor)
        for at in range((last - first) % SERIAL + 1):
            number = (first + at) % SERIAL
            assert number in self.unsettled, f"{number} is settled already, or was never sent"
            del self.unsettled[number]
            self.outcomes[number] = code


class Trial:
    def __init__(self, seed: int, scan: ScanName, terms: dict[Resource, Terms]) -> None:
        random = self.random = Random(seed)
        self.calm = self.within = False
        self.driver = Driver(self.decide, terms=terms, options=AMQP10Options(scan=scan))
        self.driver.between = self.between
        # As open does it, but with numbers that wrap soon.
        starts = {side: random.choice([0, SERIAL - 10, 12345]) for side in Side}
        counts = [random.choice([0, SERIAL - 3]) for _ in ADDRESSES]
        client = self.client = Peer(CLIENT, 1, starts[CLIENT], starts[BROKER], random)
        broker = self.broker = Peer(BROKER, 5, starts[BROKER], starts[CLIENT], random)
        self.peers = {CLIENT: client, BROKER: broker}
        for peer in self.peers.values():
            said = {} if peer is client else {"properties": codec.RABBITMQ}
            peer.out += codec.HEADER + say(0, "open", container_id=peer.side.value, **said)
            self.deliver(peer)
        for peer in self.peers.values():
            remote = {} if peer is client else {"remote_channel": 1}
            peer.say(
                "begin", next_outgoing_id=peer.next_outgoing, incoming_window=WINDOW, outgoing_window=1000, **remote
            )
            self.deliver(peer)
        for handle, (address, count) in enumerate(zip(ADDRESSES, counts, strict=True)):
            link = {"name": f"out-{handle}", "target": Described(ULong(0x29), [address])}
            client.say("attach", handle=handle, role=False, initial_delivery_count=count, **link)
            broker.say("attach", handle=handle + 7, role=True, **link)
            client.sends[handle] = End(handle, handle + 7, address, count, count)
            broker.takes[handle] = End(handle + 7, handle, address, count, count)
        for handle, address in [(20, "/queues/orders"), (21, "/queues/free")]:
            link = {"name": f"in-{handle}", "source": Described(ULong(0x28), [address])}
            client.say("attach", handle=handle, role=True, **link)
            broker.say("attach", handle=handle + 7, role=False, initial_delivery_count=SERIAL - 5, **link)
            client.takes[handle] = End(handle, handle + 7, address, SERIAL - 5, SERIAL - 5)
            broker.sends[handle] = End(handle + 7, handle, address, SERIAL - 5, SERIAL - 5)
        self.deliver(client)
        self.deliver(broker)

    def decide(self, request: Request) -> Verdict | None:
        chance = self.random.random()
        if request.most:
            if self.calm or chance < 0.3:
                return None
            return hold(request) if chance < 0.7 else Grant(self.random.randint(1, request.most))
        return None if self.calm or chance < 0.5 else BUSY

    def between(self) -> None:
        """Go on while a chunk is decided: with the other side, or with a request that was held."""
        if self.within or self.random.random() < 0.5:
            return
        self.within = True
        if self.driver.held:
            self.driver.resolve(1)
        self.within = False

    def deliver(self, peer: Peer, most: int | None = None) -> None:
        data = bytes(peer.out[:most])
        del peer.out[: len(data)]
        self.driver.give(peer.side, data, self.random, longest=3000)
        assert self.driver.closed is None, self.driver.closed
        for each in self.peers.values():
            for said in self.driver.to(each.side):
                each.hear(said)

    def step(self) -> None:
        random = self.random
        peer = random.choice([self.client, self.client, self.broker])
        sends, takes = random.choice([*peer.sends.values()]), random.choice([*peer.takes.values()])
        match random.randrange(15):
            case 0 | 1 | 2:
                peer.begin_delivery(sends)
            case 3 | 4:
                peer.send_frame(sends)
            case 5:
                peer.give_credit(takes, random.randint(0, 9), drain=random.random() < 0.2, echo=random.random() < 0.1)
            case 6:
                peer.open_window()
            case 7:
                peer.accept()
            case 8:
                peer.answer_drain(sends)
            case 9:
                if self.driver.held:
                    request = next(iter(self.driver.held.values()))[0]
                    self.driver.resolve(random.randint(1, request.most))
            case 10:
                self.driver.now_ns += random.choice([1, 300_000_000])
                self.driver.tick()
            case _:
                self.deliver(peer, random.randint(1, 4000))

    def finish(self) -> None:
        """Let all go on that is under way."""
        self.calm = True
        for _ in range(300):
            while self.driver.held:
                request = next(iter(self.driver.held.values()))[0]
                self.driver.resolve(request.most)
            self.driver.tick()
            for peer in self.peers.values():
                peer.open_window()
                for link in peer.sends.values():
                    peer.send_frame(link)
                    peer.answer_drain(link)
                peer.accept()
                self.deliver(peer)
            if not any(link.frames for peer in self.peers.values() for link in peer.sends.values()) and not any(
                peer.unsettled for peer in self.peers.values()
            ):
                break


LATER = [pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 60)]


@pytest.mark.parametrize("scan", ["python", "compiled"])
@pytest.mark.parametrize("seed", [*range(6), 1000, 1015, 1029, 1048, 1050, 1061, 1077, 1145, *LATER])
def test_both_peers_believe_the_same(seed: int, scan: ScanName) -> None:
    trial = Trial(seed, scan, TERMS)
    for _ in range(3000):
        trial.step()
    trial.finish()
    client, broker = trial.client, trial.broker
    for peer, other in ((client, broker), (broker, client)):
        assert not peer.unsettled
        refused = {number for number, code in peer.outcomes.items() if code == 0x25}
        went = [payload for number, payload in peer.sent.items() if number not in refused]
        assert sorted(payload for _, payload in other.came) == sorted(went)
        assert peer.next_outgoing == other.next_incoming or refused
    assert not any(code == 0x25 for code in broker.outcomes.values())
    driver = trial.driver
    assert driver.session.in_flight() == 0
    for link in driver.session.describe().links:
        assert link.credit >= 0
    # What is charged is what came, once nobody has credit any more.
    client.say("end")
    trial.deliver(client)
    driver.tick()
    charged = dict.fromkeys(TERMS, 0)
    came = dict.fromkeys(TERMS, 0)
    for batch in driver.batches:
        for index, request in enumerate(batch.requests):
            passes = index not in batch.verdicts or isinstance(batch.verdicts[index], Grant)
            if request.most or (request.asks == "all" and passes):
                for resource in request.resources:
                    charged[resource] += 0 if id(request) in driver.given_up_ids else request.messages
        for charge in batch.charges:
            for resource in charge.resources:
                if charge.asks != "refusing" and resource in charged:
                    charged[resource] += charge.messages
    for resource in list(TERMS)[:3]:
        address = f"/queues/{resource.name}"
        came[resource] = sum(
            ADDRESSES[handle - 7] == address or (ADDRESSES[handle - 7] is None and address.encode() in payload[:99])
            for handle, payload in broker.came
        )
    came[Resource("delivery", "orders")] = sum(handle == 20 for handle, _ in client.came)
    assert charged == came


@pytest.mark.parametrize("scan", ["python", "compiled"])
@pytest.mark.parametrize("seed", range(100, 110))
def test_nothing_changes_where_nothing_is_limited(seed: int, scan: ScanName) -> None:
    trial = Trial(seed, scan, {})
    sent = {side: bytearray() for side in Side}
    give = trial.driver.give

    def keep(side: Side, data: bytes, random: Random | None = None, longest: int = 1 << 20) -> None:
        sent[side] += data
        give(side, data, random, longest)

    before = {side: len(trial.driver.total[side]) for side in Side}
    trial.driver.give = keep  # type: ignore[method-assign]
    for _ in range(3000):
        trial.step()
    trial.finish()
    for side in Side:
        assert trial.driver.total[side.other][before[side.other] :] == sent[side]
    assert not trial.driver.requests


_ = UInt


def _all_of(trial: Trial) -> tuple[list[Any], list[Any]]:
    """Return what either peer heard, and what was asked, charged and counted, summed by batch."""
    heard: list[Any] = []
    for side in Side:
        data = bytes(trial.driver.total[side])
        said, rest = codec.read(data[len(codec.HEADER) :])
        heard.append([(each.channel, each.name, each.fields, each.payload) for each in said])
        assert not rest
    asked = [
        (
            batch.side,
            [(request.resources, request.most, request.asks) for request in batch.requests],
            sum(charge.messages for charge in batch.charges),
            [(paid.resources, paid.messages, paid.size_bytes) for paid in batch.paid],
        )
        for batch in trial.driver.batches
    ]
    return heard, asked


@pytest.mark.parametrize("seed", range(200, 212))
def test_compiled_code_makes_no_difference(seed: int) -> None:
    said = []
    scans: tuple[ScanName, ...] = ("python", "compiled")
    for scan in scans:
        trial = Trial(seed, scan, TERMS)
        for _ in range(1500):
            trial.step()
        trial.finish()
        said.append(_all_of(trial))
    assert said[0] == said[1]
