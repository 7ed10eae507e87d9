"""A broker with a clock of its own, clients to talk to it, and the recorded connections."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.wire_bytes import decode_all
from stored_records import Record, decode_records

from admin.demo.broker.broker import Broker
from admin.demo.broker.channel import Role
from admin.demo.broker.store import LoopbackConfig
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, HEADER_JSON, RequestCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

_CAPTURES = Path(__file__).parents[4] / "captures" / "rocketmq"
_NS_PER_S = 1_000_000_000

WALL_MS = 1_700_000_000_000


class Client:
    """One connection to the broker, without a socket."""

    def __init__(self, bench: "Bench", role: Role, host: str, port: int, header_type: int) -> None:
        self._bench = bench
        self._opaque = 0
        self._header_type = header_type
        self.woken = 0
        self.channel = bench.broker.connect(role, host, port, self._wake)

    def _wake(self) -> None:
        self.woken += 1

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
        self._bench.broker.receive(self.channel, data, self._bench.now_ns)

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

    def __init__(self, config: LoopbackConfig) -> None:
        self.now_ns = 0
        self.broker = Broker(config, lambda: WALL_MS + self.now_ns // 1_000_000)

    def client(
        self,
        role: Role = Role.BROKER,
        *,
        host: str = "127.0.0.1",
        port: int = 40_000,
        header_type: int = HEADER_JSON,
    ) -> Client:
        """Return a new connection."""
        return Client(self, role, host, port, header_type)

    def wait(self, seconds: float) -> None:
        """Let time pass, timer after timer."""
        end_ns = self.now_ns + round(seconds * _NS_PER_S)
        while (due_ns := self.broker.next_timer_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.broker.run_timers(self.now_ns)
        self.now_ns = end_ns


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    """Makes brokers; keywords change the configuration."""

    def make(**changes: Any) -> Bench:
        return Bench(dataclasses.replace(LoopbackConfig(), **changes))

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A broker as configured by default."""
    return make_bench()


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


@pytest.fixture
def oneway() -> int:
    """The flag of a request that wants no answer."""
    return FLAG_ONEWAY
