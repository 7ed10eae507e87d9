"""One client's connection as the broker sees it: bytes in, answers out; no socket.

It cuts the frames, decodes the commands and keeps what waits to be written. What a request means is decided
by the handlers, which get the channel to answer on.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final

from admin.demo.broker.store import pack_host
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import RemoteProtocolError
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

#: The version that the answers name: 5.5.0.
VERSION: Final = 513
LANGUAGE: Final = "JAVA"
_MAX_REMARK: Final = 500


class Role(Enum):
    """Which of the two servers a connection came to."""

    BROKER = "broker"
    NAME_SERVER = "name server"


class Refused(Exception):  # noqa: N818 - an answer, not a failure of ours
    """The request is answered with a code other than success.

    Attributes:
        code: the answer's code.
        remark: a sentence for whoever reads the client's log.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class Channel:
    """One connection.

    Args:
        role: which server it came to.
        host: the peer's IP address.
        port: the peer's port.
        wake: called when something waits to be written.

    Attributes:
        born_host: the peer's address as stored messages name it.
        groups: names of the consumer groups it is a member of.
        waiting_bytes: bytes that wait to be written.
    """

    __slots__ = ("_input", "_outbox", "_wake", "born_host", "groups", "open", "role", "waiting_bytes")

    def __init__(self, role: Role, host: str, port: int, wake: Callable[[], None]) -> None:
        self.role = role
        self.born_host = pack_host(host, port)
        self.groups: set[str] = set()
        self.open = True
        self.waiting_bytes = 0
        self._input = bytearray()
        self._outbox: list[bytes] = []
        self._wake = wake

    def frames(self, chunk: bytes) -> Iterator[RemotingCommand]:
        """Add what came from the peer and return the commands that are complete.

        Raises:
            RemoteProtocolError: the bytes break the framing, or a header cannot be read.
        """
        data = self._input
        data += chunk
        at, size = 0, len(data)
        while size - at >= codes.PREFIX_BYTES:
            length = int.from_bytes(data[at : at + 4], "big")
            if not codes.MIN_LENGTH <= length <= codes.MAX_FRAME_BYTES - 4:
                raise RemoteProtocolError("bad_frame", f"a frame of {length} bytes")
            end = at + 4 + length
            if end > size:
                break
            yield decode(bytes(data[at:end]))
            at = end
        del data[:at]

    def send(self, frame: bytes) -> None:
        """Queue a frame for the peer; nothing happens once it is gone."""
        if self.open:
            self._outbox.append(frame)
            self.waiting_bytes += len(frame)
            self._wake()

    def take(self) -> bytes:
        """Hand out, once, everything that waits to be written."""
        waiting, self._outbox = self._outbox, []
        self.waiting_bytes = 0
        return b"".join(waiting)


def answer(
    request: RemotingCommand,
    code: int = codes.ResponseCode.SUCCESS,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """Return the frame that answers a request; always with a JSON header, as a real broker's."""
    return encode(
        RemotingCommand(
            code=code,
            language=LANGUAGE,
            version=VERSION,
            opaque=request.opaque,
            flag=codes.FLAG_RESPONSE,
            # What a client wrote is repeated in remarks, but not at any length.
            remark=remark and remark[:_MAX_REMARK],
            fields=fields or {},
            body=body,
        )
    )


def text(fields: Mapping[str, str], name: str) -> str:
    """Return a field that the request must have.

    Raises:
        Refused: it is missing.
    """
    value = fields.get(name)
    if value is None:
        raise Refused(codes.ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is missing")
    return value


def number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a whole number of 64 bits; without a default the request must have it.

    Raises:
        Refused: it is missing, or no such number.
    """
    value = fields.get(name)
    if value is None or value == "":
        if default is None:
            raise Refused(codes.ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is missing")
        return default
    try:
        found = int(value)
    except ValueError:
        found = 1 << 63
    if not -(1 << 63) <= found < 1 << 63:
        raise Refused(codes.ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is no number: {value[:40]}")
    return found


def truth(fields: Mapping[str, str], name: str) -> bool:
    """Return a yes or no as Java reads it: only ``true`` is yes, so that the ``1`` of C++ is no."""
    return fields.get(name, "").lower() == "true"
