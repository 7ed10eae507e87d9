"""Requests to Sluice itself and clients' heartbeats, among others, in random chunks, valid and damaged."""

import json
from dataclasses import dataclass
from ipaddress import ip_network
from random import Random

import pytest
from playbook import frames
from playbook.playbook import open_session
from playbook.trial import random_pieces

from proxy.control import LimitCommandReply, ListedLimit
from proxy.deciding.batch import Side
from proxy.protocols.base import Close, CommandRequest, CommandStatus, Description
from proxy.protocols.rocketmq.limit_commands import MAX_OPEN_OF_CONNECTION as MAX_OPEN
from proxy.protocols.rocketmq.options import Networks

EVERYBODY = Networks((ip_network("0.0.0.0/0"),))
LIMITS = tuple(ListedLimit("topic", f"t{number}", number or None, 0, 0) for number in range(5))
LONGEST = (1, 7, 30, 100, 1000, 100_000)


@dataclass
class Outcome:
    asks: list[tuple[object, ...]]
    to_broker: bytes
    to_client: bytes
    description: Description
    closed: str | None

    def own(self) -> list[bytes]:
        """Return Sluice's own answers, in the order of their numbers, as they may overtake each other."""
        given = [
            whole for whole in frames.split(self.to_client) if b'"language":"JAVA","version":513,"opaque"' in whole
        ]
        return sorted(given, key=lambda whole: int(str(frames.read_header(whole)["opaque"])))


def play(to_broker: bytes, to_client: bytes, random: Random, longest: int, networks: Networks = EVERYBODY) -> Outcome:
    """Play both directions in pieces of random lengths, and answer questions at random times, in time."""
    asks: list[CommandRequest] = []
    waiting: list[CommandRequest] = []

    def ask(asked: CommandRequest) -> CommandStatus:
        asks.append(asked)
        waiting.append(asked)
        return "taken"

    session = open_session(ask=ask, remote_view_from=networks, remote_update_from=networks)
    out = {side: bytearray() for side in Side}
    left = {
        Side.CLIENT: random_pieces(to_broker, random, longest),
        Side.BROKER: random_pieces(to_client, random, longest),
    }

    def take() -> None:
        for side in Side:
            for part in session.take(side):
                out[side] += part

    closed = None
    try:
        while left:
            side = random.choice(list(left))
            piece = next(left[side], None)
            if piece is None:
                del left[side]
                continue
            while piece:
                chunk = memoryview(bytearray(piece))
                batch = session.receive(side, chunk, 0)
                if batch is not None:
                    session.decided(batch, 0)
                take()
                chunk[:] = b"\xee" * len(chunk)
                piece = piece[len(piece) - session.left_bytes(side) :]
            while waiting and (len(waiting) > MAX_OPEN // 2 or random.random() < 0.4):
                asked = waiting.pop(random.randrange(len(waiting)))
                failed = asked.verb == "update_limit" and asked.rate_per_s == 7
                session.replied(asked, LimitCommandReply("no" if failed else "", 3, LIMITS), 0)
                take()
    except Close as close:
        closed = close.reason
    for asked in waiting:
        session.replied(asked, LimitCommandReply("", 3, LIMITS), 0)
    if closed is None:
        session.end(Side.CLIENT, 0)
    take()
    told = [(asked.verb, asked.kind, asked.name, asked.rate_per_s) for asked in asks]
    return Outcome(told, bytes(out[Side.BROKER]), bytes(out[Side.CLIENT]), session.describe(0), closed)


def heartbeat_body(random: Random) -> bytes:
    """Return the body of a heartbeat. Most are invalid."""
    body = json.dumps({"clientID": f"client@{random.randrange(3)}", "consumerDataSet": [{"x": "y" * 300}]}).encode()
    match random.randrange(5):
        case 0:
            return body
        case 1:
            return body[: random.randrange(len(body))]
        case 2:
            return random.randbytes(random.choice((0, 1, 50, 3000)))
        case 3:
            return random.choice(
                (b"[" * 5000, b"null", b'{"clientID":[]}', b'{"clientID":"\xff"}', b'{"clientID":1e999}')
            )
        case _:
            at = random.randrange(len(body))
            return body[:at] + random.randbytes(2) + body[at:]


def request(random: Random, opaque: int) -> tuple[bytes, bool]:
    """Return one frame of a client, and whether it is for Sluice."""
    flag = frames.ONEWAY if random.random() < 0.2 else 0
    binary = random.random() < 0.4
    body = b"x" * random.choice((0, 0, 5, 200))
    match random.randrange(7):
        case 0:
            return frames.heartbeat(opaque, body=heartbeat_body(random), binary=binary), False
        case 1:
            make = frames.binary_frame if binary else frames.json_frame
            return make(35, {"clientID": f"client@{random.randrange(3)}"}, opaque=opaque), False
        case 2:
            return frames.view_limits(opaque, flag=flag, body=body, binary=binary), True
        case 3 | 4:
            topic = random.choice(("orders", "%RETRY%g", "*", "", "x" * 300, "naïve"))
            qps = random.choice(("0", "5.0", "7", "-1", "NaN", "1e99", "", "five"))
            return frames.update_limit(topic, qps, opaque, flag=flag, body=body, binary=binary), True
        case 5:
            return frames.json_frame(random.choice((9002, 9003)), opaque=opaque, flag=frames.RESPONSE, body=body), False
        case _:
            return frames.send("orders", opaque, body=body, flag=flag, binary=binary), False


def answers(random: Random) -> bytes:
    return b"".join(
        frames.frame(b'{"code":0,"flag":1,"language":"JAVA","opaque":%d}' % number, b"y" * random.choice((0, 60, 900)))
        for number in range(1000, 1000 + random.randint(0, 10))
    )


@pytest.mark.parametrize("block", range(4))
def test_any_chunking_asks_and_answers_the_same(block: int, factor: int) -> None:
    for case in range(60 * factor):
        seed = block * 1_000_000 + case
        random = Random(seed)
        stream = [request(random, opaque) for opaque in range(random.randint(1, 20))]
        to_broker, to_client = b"".join(whole for whole, _ in stream), answers(random)
        # A frame at a time, so that the bound on open ones is never reached.
        whole = play(to_broker, to_client, Random(0), 40)
        pieces = play(to_broker, to_client, random, random.choice(LONGEST[:4]))
        for outcome in (whole, pieces):
            assert outcome.closed is None, f"seed {seed}"
            assert outcome.to_broker == b"".join(each for each, own in stream if not own), f"seed {seed}"
            theirs = [each for each in frames.split(outcome.to_client) if each not in outcome.own()]
            assert b"".join(theirs) == to_client, f"seed {seed}"
        wanted = [each for each, own in stream if own]
        oneway = sum(bool(_flag(each) & frames.ONEWAY) for each in wanted)
        assert len(pieces.own()) == len(wanted) - oneway, f"seed {seed}"
        assert pieces.asks == whole.asks, f"seed {seed}"
        assert pieces.description == whole.description, f"seed {seed}"


def _flag(whole: bytes) -> int:
    if whole[4]:
        return int.from_bytes(whole[17:21])
    return int(str(frames.read_header(whole)["flag"]))
