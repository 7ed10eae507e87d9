"""A client that is told frame by frame what to say, and what RocketMQ's clients say in the proxy's own codec."""

import itertools
import socket
import struct
from collections.abc import Iterable
from typing import Final, Self

from harness.wire_bytes import encode_batch
from proxy.protocols.rocketmq.batch_body import BatchMessage
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

#: An answer may have been held; a test that waits for longer than this waits for nothing.
_TIMEOUT_S: Final = 60.0
_SUBSCRIPTION: Final = 4
_SUSPEND: Final = 2

_opaques = itertools.count(1)


def send(
    topic: str, *, group: str = "producers", body: bytes = b"hello", batch: int = 0, oneway: bool = False
) -> RemotingCommand:
    """Return a send to the topic's only queue as Java writes it; of ``batch`` messages if that is not 0."""
    return RemotingCommand(
        code=RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2,
        opaque=next(_opaques),
        flag=FLAG_ONEWAY if oneway else 0,
        fields={
            "a": group,
            "b": topic,
            "c": "TBW102",
            "d": "1",
            "e": "0",
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "m": "true" if batch else "false",
        },
        body=encode_batch([BatchMessage(body)] * batch) if batch else body,
    )


def sends(count: int, topic: str, *, group: str = "producers") -> list[RemotingCommand]:
    """Return that many small sends."""
    return [send(topic, group=group) for _ in range(count)]


def send_back(group: str) -> RemotingCommand:
    """Return a consumer's send-back, of a message that no broker has: it is refused there if it gets there."""
    return _request(RequestCode.CONSUMER_SEND_MSG_BACK, group=group, offset="0", delayLevel="0")


def pull(
    group: str,
    topic: str,
    offset: int,
    *,
    most: int = 32,
    wait_ms: int = 0,
    code: int = RequestCode.PULL_MESSAGE,
) -> RemotingCommand:
    """Return a pull from the topic's only queue; the broker may let it wait for so long until there is a message."""
    return _request(
        code,
        consumerGroup=group,
        topic=topic,
        queueId="0",
        queueOffset=str(offset),
        maxMsgNums=str(most),
        sysFlag=str(_SUBSCRIPTION | (_SUSPEND if wait_ms else 0)),
        suspendTimeoutMillis=str(wait_ms),
        subscription="*",
        expressionType="TAG",
    )


def heartbeat(client: str) -> RemotingCommand:
    """Return a heartbeat of a client with neither producers nor consumers."""
    command = _request(RequestCode.HEART_BEAT)
    command.body = b'{"clientID":"%s"}' % client.encode()
    return command


def query_offset(group: str, topic: str) -> RemotingCommand:
    """Return a question for how far a group has come in the topic's only queue."""
    return _request(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId="0")


def update_offset(group: str, topic: str, offset: int) -> RemotingCommand:
    """Return the word of a group that it has come so far."""
    return _request(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId="0", commitOffset=str(offset)
    )


def _request(code: int, **fields: str) -> RemotingCommand:
    return RemotingCommand(code=code, opaque=next(_opaques), fields=fields)


def stored(answers: Iterable[RemotingCommand]) -> int:
    """Return how many sends were stored."""
    return sum(answer.code == ResponseCode.SUCCESS for answer in answers)


def refused(answers: Iterable[RemotingCommand]) -> list[RemotingCommand]:
    """Return the answers that a rate limit gave."""
    return [answer for answer in answers if (answer.remark or "").startswith("[RateLimit]")]


class FrameClient:
    """One connection, blocking."""

    def __init__(self, address: str, *, source: str = "") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S, (source, 0) if source else None)

    def write(self, *commands: RemotingCommand) -> None:
        """Send commands in one go."""
        self._socket.sendall(b"".join(map(encode, commands)))

    def read(self, count: int = 1) -> list[RemotingCommand]:
        """Return that many commands of the other side, in the order in which they come."""
        return [self._read() for _ in range(count)]

    def ask(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        """Send commands in one go and return as many answers, in the order in which they come."""
        self.write(*commands)
        return self.read(len(commands))

    def read_until_answered(self, request: RemotingCommand) -> list[RemotingCommand]:
        """Return all that comes up to the answer to a request, that included."""
        commands = self.read()
        while commands[-1].opaque != request.opaque:
            commands += self.read()
        return commands

    def read_to_end(self) -> list[RemotingCommand]:
        """Return all that comes until the other side closes the connection."""
        commands = []
        try:
            while True:
                commands.append(self._read())
        except ConnectionResetError:
            return commands

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes the connection."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the connection."""
        self.close()

    def _read(self) -> RemotingCommand:
        length = self._exactly(4)
        return decode(length + self._exactly(*struct.unpack(">i", length)))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("the other side closed the connection")
            parts += part
        return bytes(parts)


def spend_ten(client: FrameClient, topic: str) -> None:
    """Spend ten permits, which is all that a limit has stored, and then the fraction of one that came back."""
    assert stored(client.ask(*sends(10, topic))) == 10
    assert stored(client.ask(send(topic))) == 1
