"""Makes batch bodies and properties, and parses complete streams and bodies."""

from collections.abc import Iterable, Iterator, Mapping

from proxy.protocols.rocketmq.answers import RecordCounter
from proxy.protocols.rocketmq.batch_body import (
    _HEAD,
    _I16,
    _NAME_END,
    _VALUE_END,
    MAX_PROPERTIES_BYTES,
    MIN_MESSAGE_BYTES,
    BatchMessage,
    BatchReader,
)
from proxy.protocols.rocketmq.wire.codes import LocalProtocolError
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode


def count_records(body: bytes) -> int:
    """As RecordCounter counts."""
    counter = RecordCounter()
    counter.feed(memoryview(body))
    return counter.count


def count_messages(body: bytes | memoryview) -> int:
    """As BatchReader counts."""
    reader = BatchReader()
    reader.resume(body)
    return reader.count


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    parts: list[bytes] = []
    for message in messages:
        properties = message.properties.encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise LocalProtocolError("bad_batch", f"{len(properties)} bytes of properties do not fit a message")
        total_bytes = MIN_MESSAGE_BYTES + len(message.body) + len(properties)
        parts += (
            _HEAD.pack(total_bytes, 0, 0, message.flag, len(message.body)),
            message.body,
            _I16.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def encode_properties(properties: Mapping[str, str]) -> str:
    for text in (*properties.keys(), *properties.values()):
        if _NAME_END in text or _VALUE_END in text:
            raise LocalProtocolError("bad_properties", f"{text!r} holds a separator of the properties string")
    return "".join(f"{name}{_NAME_END}{value}{_VALUE_END}" for name, value in properties.items())


def decode_all(data: bytes) -> Iterator[RemotingCommand]:
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield decode(data[at:end])
        at = end
