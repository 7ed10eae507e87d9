"""A client that sends given frames, and the frames of RocketMQ's clients, in the proxy's own codec."""

import itertools
import socket
import struct
from collections.abc import Iterable
from typing import Final, Self

from harness.wire_bytes import encode_batch
from proxy.protocols.rocketmq.batch_body import BatchMessage
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

# Longer than any hold.
_TIMEOUT_S: Final = 60.0
_SUBSCRIPTION: Final = 4
_SUSPEND: Final = 2

_opaques = itertools.count(1)


def send(
    topic: str, *, group: str = "producers", body: bytes = b"hello", batch: int = 0, oneway: bool = False
) -> RemotingCommand:
    """Return a send to the topic's only queue, encoded like Java's. ``batch``: number of messages, 0: not a batch."""
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
    return [send(topic, group=group) for _ in range(count)]


def send_back(group: str) -> RemotingCommand:
    """Return a consumer's send-back of a message that no broker has. A broker rejects it."""
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
    """Return a pull from the topic's only queue. The broker may let it wait this long for a message."""
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
    """Return a heartbeat of a client without producers and consumers."""
    command = _request(RequestCode.HEART_BEAT)
    command.body = b'{"clientID":"%s"}' % client.encode()
    return command


def query_offset(group: str, topic: str) -> RemotingCommand:
    """Return a query of a group's offset in the topic's only queue."""
    return _request(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId="0")


def update_offset(group: str, topic: str, offset: int) -> RemotingCommand:
    """Return an update of a group's offset."""
    return _request(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId="0", commitOffset=str(offset)
    )


def _request(code: int, **fields: str) -> RemotingCommand:
    return RemotingCommand(code=code, opaque=next(_opaques), fields=fields)


def stored(answers: Iterable[RemotingCommand]) -> int:
    return sum(answer.code == ResponseCode.SUCCESS for answer in answers)


def refused(answers: Iterable[RemotingCommand]) -> list[RemotingCommand]:
    """Return the rate limit's refusals."""
    return [answer for answer in answers if (answer.remark or "").startswith("[RateLimit]")]


class FrameClient:
    def __init__(self, address: str, *, source: str = "") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S, (source, 0) if source else None)

    def write(self, *commands: RemotingCommand) -> None:
        """Send commands in one write."""
        self._socket.sendall(b"".join(map(encode, commands)))

    def read(self, count: int = 1) -> list[RemotingCommand]:
        """Return this many commands of the other side, in order."""
        return [self._read() for _ in range(count)]

    def ask(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        """Send commands in one write and return as many answers, in order."""
        self.write(*commands)
        return self.read(len(commands))

    def read_until_answered(self, request: RemotingCommand) -> list[RemotingCommand]:
        """Return everything up to and including the answer to a request."""
        commands = self.read()
        while commands[-1].opaque != request.opaque:
            commands += self.read()
        return commands

    def read_to_end(self) -> list[RemotingCommand]:
        """Return everything until the other side closes the connection."""
        commands = []
        try:
            while True:
                commands.append(self._read())
        except ConnectionResetError:
            return commands

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
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
    """Spend the ten stored permits, and then the fraction of one that accrued."""
    assert stored(client.ask(*sends(10, topic))) == 10
    assert stored(client.ask(send(topic))) == 1
