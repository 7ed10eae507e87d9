"""Conversations of real clients and a real Proxy, through a session that passes everything."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import grpc_talk
import pytest
from fuzz_targets.rocketmq_grpc import split

from proxy.deciding.batch import Side
from proxy.protocols.base import Description, WireCounters
from proxy.protocols.rocketmq_grpc import http2
from proxy.protocols.rocketmq_grpc.session import RocketMQGrpcSession

_CAPTURES = Path(__file__).parents[4] / "captures" / "rocketmq_grpc"
_NAMES = sorted(path.stem for path in _CAPTURES.glob("*.order"))
_LANGUAGES = {"java": ("JAVA", "5.0.8"), "node": ("NODE_JS", "1.0.8"), "python": ("PYTHON", "5.1.2")}


class _Played(NamedTuple):
    said: dict[Side, bytes]
    given: dict[Side, bytes]  # to each side
    asked: Counter[str]
    counters: WireCounters
    description: Description


def _play(name: str) -> _Played:
    counters = WireCounters()
    session = RocketMQGrpcSession(grpc_talk.context(counters=counters))
    said = {
        Side.CLIENT: (_CAPTURES / f"{name}-to-broker.bin").read_bytes(),
        Side.BROKER: (_CAPTURES / f"{name}-to-client.bin").read_bytes(),
    }
    given, at, asked = dict.fromkeys(Side, b""), dict.fromkeys(Side, 0), Counter[str]()
    for line in (_CAPTURES / f"{name}.order").read_text(encoding="ascii").splitlines():
        side = Side.CLIENT if line[0] == ">" else Side.BROKER
        rest = memoryview(said[side])[at[side] : at[side] + int(line[2:])]
        at[side] += len(rest)
        while rest:
            batch = session.receive(side, rest, 0)
            if batch is not None:
                asked.update(str(request.resources[0]) for request in batch.requests)
                session.decided(batch, 0)
            for each in Side:
                given[each] += b"".join(map(bytes, session.take(each)))
            rest = rest[len(rest) - session.left_bytes(side) :]
    return _Played(said, given, asked, counters, session.describe(0))


def _by_stream(stream: bytes) -> dict[int, list[bytes]]:
    """Sort frames without window updates, of which a session makes its own."""
    found = defaultdict(list)
    for frame in split(stream):
        if frame[3] != http2.WINDOW_UPDATE:
            found[int.from_bytes(frame[5:9])].append(frame)
    return found


@pytest.mark.parametrize("name", _NAMES)
def test_everything_is_forwarded_unchanged_except_addresses(name: str) -> None:
    played = _play(name)
    to_broker, to_client = played.given[Side.BROKER], played.given[Side.CLIENT]
    assert _by_stream(to_broker) == _by_stream(played.said[Side.CLIENT])
    told, answered = _by_stream(to_client), _by_stream(played.said[Side.BROKER])
    assert told.keys() == answered.keys()
    changed = [stream for stream, frames in answered.items() if told[stream] != frames]
    assert len(changed) == played.counters.routes.get("rewritten", 0)
    assert "unread" not in played.counters.routes
    assert not played.counters.undecodable


@pytest.mark.parametrize("name", _NAMES)
def test_the_client_is_known(name: str) -> None:
    client = _play(name).description.client
    assert (client.language, client.version) == _LANGUAGES[name.partition("-")[0]]
    assert client.id


def test_requested_resources() -> None:
    found = Counter[str]()
    for name in _NAMES:
        found += _play(name).asked
    assert found == {
        "topic:recorded": 185,
        "topic:kinds-normal": 21,
        "topic:kinds-fifo": 22,
        "topic:kinds-delay": 2,
        "topic:kinds-transaction": 3,
        # The broker asks about each of them, too.
        "transaction:kinds-transaction": 8,
        "subscription:kinds-push@kinds-normal": 3,
        "subscription:kinds-simple@kinds-normal": 3,
        "subscription:kinds-fifo@kinds-fifo": 5,
        "subscription:kinds-dead@kinds-fifo": 6,
        "subscription:kinds-delay@kinds-delay": 2,
        "subscription:kinds-transaction@kinds-transaction": 3,
        "retry_group:kinds-push": 1,
        "retry_group:kinds-simple": 1,
        "retry_group:kinds-dead": 1,
    }
