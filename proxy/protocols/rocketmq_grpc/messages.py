"""Messages of ``apache.rocketmq.v2`` in protobuf's wire format, without gRPC's prefix.

Functions that parse a message raise ValueError if it is invalid. Parsing is strict: encodings that the Proxy's parser
accepts but no client writes (overlong varints, groups) are errors, so that a request cannot mean different things to
Sluice and the Proxy. If a singular field repeats, its values are joined, because that is how protobuf merges messages.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from limiter.rules.resource import Resource
from proxy.deciding.batch import Refusal
from proxy.protocols.rocketmq.wire.codes import (
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    KIND_TRANSACTION,
    MAX_NAME_CHARS,
    RETRY_PREFIX,
    SUBSCRIPTION_MARK,
)

Buffer = bytes | bytearray | memoryview

OK: Final = 20_000
MESSAGE_NOT_FOUND: Final = 40_404
TOO_MANY_REQUESTS: Final = 42_900

CONSUMING: Final = frozenset({"ReceiveMessage", "PullMessage"})
"""Methods whose answer is a stream of messages, after a long poll."""
STORING: Final = frozenset({"SendMessage", "ForwardMessageToDeadLetterQueue", "ChangeInvisibleDuration"})
"""Methods that are refused while an alarm is raised."""
LIMITED: Final = CONSUMING | STORING | {"EndTransaction"}
"""Methods whose request is kept back until it is decided."""
ROUTES: Final = frozenset({"QueryRoute", "QueryAssignment"})
"""The only methods whose answers contain addresses."""
READ: Final = CONSUMING | {"SendMessage"}
"""Methods whose answers Sluice reads."""

# Keys of the wire format: field number << 3 | wire type.
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_1: Final = 1 << 3 | _BYTES
_2: Final = 2 << 3 | _BYTES
_3: Final = 3 << 3 | _BYTES
_4: Final = 4 << 3 | _BYTES
_NUMBER_1: Final = 1 << 3 | _VARINT
_NUMBER_2: Final = 2 << 3 | _VARINT
_USER_AGENT: Final = 7 << 3 | _BYTES
_MESSAGE_GROUP: Final = 17 << 3 | _BYTES
_MESSAGE_GROUP_WRITTEN: Final = b"\x8a\x01"

_MAX_LENGTH: Final = (1 << 31) - 1
_ENDLESS: Final = 1 << 32
# More than a serialized ``Resource`` with a name of MAX_NAME_CHARS characters and a namespace.
_MAX_RESOURCE_BYTES: Final = 4096
# The client's endpoints are repeated for each queue in an answer, so they must be short.
_MAX_ENDPOINTS_BYTES: Final = 1024


class Asked(NamedTuple):
    """The content of a request, as fields of ``proxy.deciding.batch.Request``."""

    resources: tuple[Resource, ...]
    messages: int
    refusal: Refusal = "answered"
    consumes: bool = False  # whether the messages in the answer are charged
    order_key: str | None = None  # topic and message group of a FIFO message


def read_request(method: str, message: Buffer, *, is_cut: bool = False) -> Asked | None:
    """Read a request of a LIMITED method. Return None if it can pass because the Proxy will refuse it.

    If ``is_cut``, ``message`` is only the beginning of the request. Only a SendMessage whose first topic is in this
    part can then be read, and only messages that begin in it are counted. MessageCounter counts all messages.
    """
    if method == "SendMessage":
        return _read_send(message, _ENDLESS if is_cut else len(message))
    if is_cut:
        # The rest could change the names, because parts with the same key are merged.
        raise ValueError("a request that is too long")
    # A group, or the topic of a transaction.
    name = _name_of(_joined(message, _1))
    if not name:
        return None
    if method in CONSUMING:
        topic = _name_of(_joined(_joined(message, _2), _1))
        subscription = _resources(KIND_SUBSCRIPTION, f"{name}{SUBSCRIPTION_MARK}{topic}")
        return Asked(subscription, 0, consumes=True) if topic else None
    if method == "EndTransaction":
        return Asked(_resources(KIND_TRANSACTION, name), 1, "impossible")
    return Asked(_resources(KIND_RETRY_GROUP, name), 1)


def _read_send(message: Buffer, end: int) -> Asked | None:
    count = 0
    first: tuple[int, int] | None = None
    for key, start, stop in _fields(message, 0, end):
        if key == _1:
            count += 1
            first = first or (start, stop)
    if first is None:
        return None
    size = len(message)
    topic = b""
    group: bytes | None = None
    for key, start, stop in _fields(message, *first):
        if stop <= size:
            if key == _1:
                topic += bytes(message[start:stop])
            elif key == _3 and _MESSAGE_GROUP_WRITTEN in bytes(message[start:stop]):
                for inner, begins, ends in _fields(message, start, stop):
                    group = bytes(message[begins:ends]) if inner == _MESSAGE_GROUP else group
    if not topic and first[1] > size:
        raise ValueError("a message whose beginning contains no topic")
    resources = _sent_to(topic)
    if resources is None:
        return None
    return Asked(resources, count, order_key=None if group is None else f"{resources[0].name}\n{group.decode()}")


def message_id(message: Buffer) -> bytes:
    """Return the id that the client gave the first message of a SendMessage request. Empty if there is none."""
    for key, start, stop in _fields(message, 0, _ENDLESS):
        if key != _1:
            continue
        for inner, at, end in _fields(message, start, stop):
            if inner == _3:
                for innermost, begins, ends in _fields(message, at, end):
                    if innermost == _3 and ends <= len(message):
                        return bytes(message[begins:ends])[:MAX_NAME_CHARS]
        break
    return b""


@lru_cache(maxsize=1024)
def _sent_to(topic: bytes) -> tuple[Resource, ...] | None:
    name = _name_of(topic)
    if name.startswith(RETRY_PREFIX):
        return (Resource(KIND_RETRY_GROUP, name.removeprefix(RETRY_PREFIX)),)
    return (Resource(KIND_TOPIC, name),) if name else None


@lru_cache(maxsize=1024)
def _resources(kind: str, name: str) -> tuple[Resource, ...]:
    return (Resource(kind, name),)


def _name_of(resource: bytes) -> str:
    """Return the name of a serialized ``Resource``. The Proxy ignores its namespace."""
    if len(resource) > _MAX_RESOURCE_BYTES:
        raise ValueError(f"a resource of {len(resource)} bytes; the maximum is {_MAX_RESOURCE_BYTES}")
    name = ""
    for key, start, stop in _fields(resource, 0, len(resource)):
        if key == _2:
            name = resource[start:stop].decode()
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"a name of {len(name)} characters; the maximum is {MAX_NAME_CHARS}")
    return name


class MessageCounter:
    """Counts the messages of a SendMessage request that is read in pieces.

    The Proxy refuses requests whose messages have different topics, so only the first message's topic is read.
    """

    def __init__(self) -> None:
        self.count = 0
        # An incomplete key and length at the end of the last piece.
        self._left = b""
        # Missing bytes of the current value, and of the message that contains it.
        self._skip = 0
        self._message = 0
        self._topics = 0

    def feed(self, piece: Buffer) -> None:
        data, at = self._left + bytes(piece) if self._left else bytes(piece), 0
        size = len(data)
        while True:
            step = min(self._skip, size - at)
            at, self._skip = at + step, self._skip - step
            if at == size:
                self._left = b""
                return
            began, inside = at, self._message > 0
            found = _key_and_length(data, at)
            if found is None:
                self._left = data[at:]
                return
            key, at, length = found
            if inside:
                self._message -= at - began + length
                if self._message < 0:
                    raise ValueError("a field that extends past the end of its message")
                if key == _1 and self.count == 1:
                    self._topics += 1
                    if self._topics > 1:
                        raise ValueError("a message with two topics")
            elif key == _1:
                self.count += 1
                self._message = length
                continue
            self._skip = length


def _key_and_length(data: bytes, at: int) -> tuple[int, int, int] | None:
    try:
        key, at = _small_varint(data, at)
        kind = key & 7
        if kind == _BYTES:
            length, at = _small_varint(data, at)
            return key, at, length
        if kind == _VARINT:
            return key, at, _varint_end(data, at) - at
    except IndexError:
        return None
    return key, at, _fixed_bytes(key)


def read_target(method: str, message: Buffer) -> bytes | None:
    """Return the endpoints to which a client says that it connected, or None if they are missing or too long."""
    target = _joined(message, _3 if method == "QueryAssignment" else _2)
    return target if len(target) <= _MAX_ENDPOINTS_BYTES and _joined(target, _2) else None


def endpoints_of(host: str, port: int) -> bytes:
    try:
        scheme = _SCHEMES[ip_address(host).version]
    except ValueError:
        scheme = _DOMAIN_NAME
    address = _text(_1, host) + _number(_NUMBER_2, port)
    return _number(_NUMBER_1, scheme) + _part(_2, address)


_SCHEMES: Final = {4: 1, 6: 2}
_DOMAIN_NAME: Final = 3


def rewrite_routes(method: str, message: Buffer, to: bytes) -> bytes:
    """Return a route answer in which ``to`` replaces the endpoints of each broker. Everything else is unchanged."""
    # The path to the broker: the assignment, if any, and the message queue.
    path = (_2, _1, _4) if method == "QueryAssignment" else (_2, _4)
    return _rewritten(bytes(message), path, to, {})


def _rewritten(data: bytes, path: Sequence[int], to: bytes, known: dict[bytes, bytes]) -> bytes:
    """Rewrite the brokers at ``path``. ``known`` caches results, because many queues have the same broker."""
    pieces: list[bytes] = []
    begins = copied = 0
    wanted = path[0] if path else _3
    for key, start, stop in _fields(data, 0, len(data)):
        if key == wanted:
            part = data[start:stop]
            if not path:
                instead = to
            elif len(path) > 1:
                instead = _rewritten(part, path[1:], to, known)
            else:
                instead = known.get(part) or known.setdefault(part, _rewritten(part, (), to, known))
            pieces += (data[copied:begins], _part(key, instead))
            copied = stop
        begins = stop
    return b"".join((*pieces, data[copied:]))


def refuse(method: str, text: str, *, was_held: bool = False) -> bytes:
    """Return the answer that refuses a request. A held consumer is told that there are no messages."""
    code = TOO_MANY_REQUESTS
    if was_held and method in CONSUMING:
        code, text = MESSAGE_NOT_FOUND, "no new message"
    return _part(_1, _number(_NUMBER_1, code) + _text(_2, text))


class Answered(NamedTuple):
    code: int  # 0 if there is no status
    messages: int  # 0 unless a consumer receives them


def read_answer(method: str, message: Buffer) -> Answered:
    code = messages = 0
    for key, start, stop in _fields(message, 0, len(message)):
        if key == _1:
            for inner, at, end in _fields(message, start, stop):
                if inner == _NUMBER_1:
                    code = _varint(message, at, end)
        elif key == _2 and method in CONSUMING:
            messages += 1
    return Answered(code, messages)


# Names of ``Language`` values, by number.
_LANGUAGES: Final = (
    *("", "JAVA", "CPP", "DOT_NET", "GOLANG", "RUST", "PYTHON", "PHP", "NODE_JS"),
    *("RUBY", "OBJECTIVE_C", "DART", "KOTLIN"),
)


def printable(text: str) -> str:
    """Truncate a client's text for display. Return an empty string if it is not printable."""
    return text[:MAX_NAME_CHARS] if text.isprintable() else ""


def read_settings(message: Buffer) -> tuple[str, str]:
    """Return the client's language and version from the settings in a TelemetryCommand. Empty if missing."""
    agent = _joined(_joined(message, _2), _USER_AGENT)
    language = version = ""
    for key, start, stop in _fields(agent, 0, len(agent)):
        if key == _NUMBER_1:
            number = _varint(agent, start, stop)
            language = _LANGUAGES[number] if number < len(_LANGUAGES) else str(number)
        elif key == _2:
            version = printable(agent[start:stop].decode(errors="replace"))
    return language, version


# The characters that Java's ``String.trim`` removes.
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_MAX_ACCESS_KEY_CHARS: Final = 255


def access_key(authorization: str) -> str:
    """Return the access key in ``MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=…, Signature=…``, or "".

    It is parsed exactly as in the Proxy, so that the Proxy sees the same user.
    """
    key = ""
    for part in authorization.partition(" ")[2].split(","):
        name, _, value = part.strip(_TRIMMED).partition("=")
        if name == "Credential":
            key = value.partition("/")[0][:_MAX_ACCESS_KEY_CHARS]
    return key


# The wire format, https://protobuf.dev/programming-guides/encoding.

_MAX_VARINT_BYTES: Final = 10
_MAX_SMALL_VARINT_BYTES: Final = 5


def _fields(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each field's key and the start and stop offsets of its value.

    If the data is incomplete, ``end`` lies past the end of the data, and the last value's stop offset may too.
    """
    size = min(end, len(data))
    try:
        while at < size:
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = _small_varint(data, at - 1)
            kind = key & 7
            if kind == _BYTES:
                length = data[at]
                at += 1
                if length >= 0x80:
                    length, at = _small_varint(data, at - 1)
            elif kind == _VARINT:
                length = _varint_end(data, at) - at
            else:
                length = _fixed_bytes(key)
            if key < 8 or at + length > end:
                raise ValueError("a field that extends past the end of its message or lacks a number")
            yield key, at, at + length
            at += length
    except IndexError:
        if end <= len(data):
            raise ValueError("a truncated field") from None


def _small_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return a key or length and the offset at which it ends. Raises ValueError if it exceeds 31 bits."""
    value = shift = 0
    for _ in range(_MAX_SMALL_VARINT_BYTES):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MAX_LENGTH:
                break
            return value, at
        shift += 7
    raise ValueError("a key or length that exceeds 31 bits")


def _varint_end(data: Buffer, at: int) -> int:
    for stop in range(at + 1, at + 1 + _MAX_VARINT_BYTES):
        if data[stop - 1] < 0x80:
            return stop
    raise ValueError("a varint that exceeds 10 bytes")


def _varint(data: Buffer, at: int, stop: int) -> int:
    value = 0
    for shift, byte in enumerate(data[at:stop]):
        value |= (byte & 0x7F) << 7 * shift
    return value & _MAX_LENGTH


def _fixed_bytes(key: int) -> int:
    kind = key & 7
    if kind not in {_FIXED64, _FIXED32}:
        raise ValueError("a field whose wire type proto3 does not support")
    return 8 if kind == _FIXED64 else 4


def _joined(data: Buffer, wanted: int) -> bytes:
    return b"".join(bytes(data[start:stop]) for key, start, stop in _fields(data, 0, len(data)) if key == wanted)


def _written(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(key: int, value: int) -> bytes:
    return _written(key) + _written(value)


def _part(key: int, part: bytes) -> bytes:
    return _written(key) + _written(len(part)) + part


def _text(key: int, text: str) -> bytes:
    return _part(key, text.encode())
