"""A broker with a clock of its own, clients to talk to it, and the recorded connections."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.wire_bytes import decode_all
from stored_records import Record, decode_records

from admin.demo.broker.broker import Broker
from admin.demo.broker.channel import Channel
from proxy.protocols.rocketmq.wire.codes import HEADER_JSON, RequestCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

_CAPTURES = Path(__file__).parents[4] / "captures" / "rocketmq"
WALL_MS = 1_700_000_000_000


class Client:
    """One connection to the broker, without a socket."""

    def __init__(self, bench: "Bench", header_type: int) -> None:
        self._bench = bench
        self._opaque = 0
        self._header_type = header_type
        self._data = bytearray()
        self.channel = Channel("127.0.0.1", 40_000)

    def send(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        flag: int = 0,
        version: int = 513,
    ) -> int:
        """Send a request and return its number."""
        self._opaque += 1
        command = RemotingCommand(
            code=code,
            opaque=self._opaque,
            flag=flag,
            version=version,
            fields={name: str(value) for name, value in (fields or {}).items()},
            body=body,
            header_type=self._header_type,
        )
        self.send_bytes(encode(command))
        return self._opaque

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._data += data
        self._bench.broker.receive(self.channel, self._data, self._bench.now_s)

    def answers(self) -> list[RemotingCommand]:
        """Return what came since the last look."""
        return list(decode_all(self.channel.take()))

    def call(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", **more: int
    ) -> RemotingCommand:
        """Send a request and return its answer, which must be all that came."""
        opaque = self.send(code, fields, body, **more)
        (answer,) = self.answers()
        assert answer.opaque == opaque
        assert answer.flag == 1
        assert answer.header_type == HEADER_JSON
        return answer

    def produce(
        self, topic: str = "orders", body: bytes = b"body", *, queue_id: int = 0, properties: str = "", **more: object
    ) -> RemotingCommand:
        """Send a message as the Java client does."""
        fields = {
            "a": "producers",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue_id,
            "f": 0,
            "g": WALL_MS,
            "h": 0,
            "i": properties,
            "j": 0,
            "k": "false",
            "m": "false",
            "n": "broker",
            **more,
        }
        return self.call(RequestCode.SEND_MESSAGE_V2, fields, body)

    def pull_fields(
        self, topic: str = "orders", queue_id: int = 0, offset: int = 0, **more: object
    ) -> dict[str, object]:
        """Return the fields of a pull that brings its subscription and may be held for 15 s."""
        return {
            "consumerGroup": "readers",
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 6,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15000,
            "subscription": "*",
            "subVersion": 1,
            **more,
        }

    def pull(self, topic: str = "orders", queue_id: int = 0, offset: int = 0, **more: object) -> int:
        """Send a pull and return its number; the answer may come later."""
        return self.send(RequestCode.PULL_MESSAGE, self.pull_fields(topic, queue_id, offset, **more))

    def consume(self, topic: str = "orders", queue_id: int = 0, offset: int = 0, **more: object) -> list[Record]:
        """Pull without waiting and return the messages."""
        more.setdefault("sysFlag", 4)
        answer = self.call(RequestCode.PULL_MESSAGE, self.pull_fields(topic, queue_id, offset, **more))
        return list(decode_records(answer.body))

    def heartbeat(
        self, group: str = "readers", topics: Iterable[str] = ("orders",), client_id: str = "client", **more: Any
    ) -> int:
        """Send a heartbeat of a consumer and return its number."""
        subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
        consumer = {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions}
        body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer], **more}
        return self.send(RequestCode.HEART_BEAT, body=msgspec.json.encode(body))

    def close(self) -> None:
        """End the connection."""
        self._bench.broker.disconnect(self.channel)


class Bench:
    """A broker and its time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.broker = Broker()
        self.broker.advertise("127.0.0.2:10911")

    def client(self, *, header_type: int = HEADER_JSON) -> Client:
        """Return a new connection."""
        return Client(self, header_type)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.broker.end_long_polls(self.now_s)


@pytest.fixture
def bench() -> Bench:
    """A broker."""
    return Bench()


@pytest.fixture
def client(bench: Bench) -> Client:
    """A connection to that broker."""
    return bench.client()


@pytest.fixture(scope="session")
def captures() -> Path:
    """The recorded connections, one folder for each client."""
    assert _CAPTURES.is_dir(), f"{_CAPTURES} is missing: it belongs to the repository"
    return _CAPTURES


@pytest.fixture(scope="session")
def pulled_bodies(captures: Path) -> list[bytes]:
    """The bodies of all pulls that a real broker answered with messages."""

    def bodies() -> Iterator[bytes]:
        for path in sorted(captures.glob("*/broker-*-to-client.bin")):
            for command in decode_all(path.read_bytes()):
                if command.remark == "FOUND":
                    yield command.body

    return list(bodies())
