"""One client's connection as the broker sees it, without a socket, and what handlers need to read and to answer."""

from collections.abc import Mapping
from typing import Final

import trio

from admin.demo.broker.store import pack_host
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

#: The version that the answers name: 5.5.0.
VERSION: Final = 513
LANGUAGE: Final = "JAVA"
_MAX_REMARK: Final = 500


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
        host: the peer's IPv4 address.
        port: the peer's port.

    Attributes:
        born_host: the peer's address as stored messages name it.
        wake: set when something waits to be written.
    """

    def __init__(self, host: str, port: int) -> None:
        self.born_host = pack_host(host, port)
        self.wake = trio.Event()
        self._outbox: list[bytes] = []

    def send(self, frame: bytes) -> None:
        """Queue a frame for the peer."""
        self._outbox.append(frame)
        self.wake.set()

    def take(self) -> bytes:
        """Hand out, once, everything that waits to be written."""
        waiting, self._outbox = self._outbox, []
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
    """Return a whole number; without a default the request must have it.

    Raises:
        Refused: it is missing, or no number.
    """
    value = fields.get(name) or (text(fields, name) if default is None else str(default))
    try:
        return int(value)
    except ValueError:
        raise Refused(
            codes.ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is no number: {value[:40]}"
        ) from None
