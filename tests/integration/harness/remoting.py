"""The least of RocketMQ's remoting protocol that the harness needs: asking a broker what it holds, filling topics."""

import json
import re
import socket
import struct
from dataclasses import dataclass
from typing import Any, Self

_QUERY_CONSUMER_OFFSET = 14
_UPDATE_AND_CREATE_TOPIC = 17
_GET_ROUTE = 105
_GET_TOPIC_STATS = 202
_SEND_MESSAGE_V2 = 310
_QUEUES = 4
_SUCCESS = 0
_TOPIC_NOT_EXIST = 17
_QUERY_NOT_FOUND = 22


class RemotingError(RuntimeError):
    """The server answered with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


@dataclass(frozen=True)
class Reply:
    """An answer: its header as it came, and its body."""

    header: dict[str, Any]
    body: bytes


class RemotingClient:
    """One blocking connection that sends JSON requests."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 60.0) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._opaque = 0

    def call(self, code: int, fields: dict[str, str]) -> Reply:
        """Send one request and return the answer."""
        self._write([(code, fields, b"")])
        answer = self._answer()
        if answer.header["code"] != _SUCCESS:
            raise RemotingError(answer.header["code"], answer.header.get("remark") or "")
        return answer

    def send(self, topic: str, messages: int) -> int:
        """Send small messages to a topic, all in one go, and return how many of them were stored."""
        words = {"a": "harness", "b": topic, "c": "TBW102", "d": str(_QUEUES), "f": "0", "g": "1", "h": "0", "j": "0"}
        words |= {"k": "false", "m": "false"}
        self._write(
            [
                (_SEND_MESSAGE_V2, {**words, "e": str(key % _QUEUES), "i": f"KEYS\x01{key}\x02"}, b"." * 64)
                for key in range(self._opaque, self._opaque + messages)
            ]
        )
        return sum(self._answer().header["code"] == _SUCCESS for _ in range(messages))

    def create_topic(self, topic: str, *, queues: int = _QUEUES) -> None:
        """Make a topic on a broker, or change its number of queues."""
        self.call(
            _UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )

    def has_route(self, topic: str) -> bool:
        """Return whether a name server knows a broker for the topic."""
        try:
            self.call(_GET_ROUTE, {"topic": topic})
        except RemotingError as error:
            if error.code == _TOPIC_NOT_EXIST:
                return False
            raise
        return True

    def stored_messages(self, topic: str) -> int:
        """Return how many messages of the topic a broker holds, over all its queues."""
        body = self.call(_GET_TOPIC_STATS, {"topic": topic}).body.decode()
        # The keys of the offset table are objects, which no JSON parser reads; every value has both of these.
        ends = [int(value) for value in re.findall(r'"maxOffset":(\d+)', body)]
        starts = [int(value) for value in re.findall(r'"minOffset":(\d+)', body)]
        return sum(ends) - sum(starts)

    def acknowledged_messages(self, group: str, topic: str, *, queues: int = _QUEUES) -> int:
        """Return how many messages of the topic a consumer group has acknowledged, over all the queues."""
        acknowledged = 0
        for queue in range(queues):
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
            try:
                acknowledged += int(self.call(_QUERY_CONSUMER_OFFSET, fields).header["extFields"]["offset"])
            except RemotingError as error:
                if error.code != _QUERY_NOT_FOUND:
                    raise
        return acknowledged

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes the connection."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the connection."""
        self.close()

    def _write(self, requests: list[tuple[int, dict[str, str], bytes]]) -> None:
        """Write requests (code, fields, body) in one go."""
        frames = bytearray()
        for code, fields, body in requests:
            self._opaque += 1
            header = {"code": code, "language": "OTHER", "version": 0, "opaque": self._opaque, "flag": 0}
            encoded = json.dumps({**header, "extFields": fields}).encode()
            frames += struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body
        self._socket.sendall(frames)

    def _answer(self) -> Reply:
        length, header_word = struct.unpack(">II", self._read(8))
        header_length = header_word & 0xFFFFFF
        frame = self._read(length - 4)
        return Reply(json.loads(frame[:header_length]), frame[header_length:])

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("the server closed the connection before it had answered")
            parts += part
        return bytes(parts)
