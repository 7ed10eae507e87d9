"""Cuts what a peer has sent into RocketMQ commands; for the demo's clients and its embedded broker."""

from collections.abc import Iterator

from proxy.protocols.rocketmq.wire.codes import MAX_FRAME_BYTES, MIN_LENGTH, PREFIX_BYTES, RemoteProtocolError
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode


def cut(data: bytearray) -> Iterator[RemotingCommand]:
    """Take the complete frames off the front of ``data`` and yield them decoded.

    Raises:
        RemoteProtocolError: the bytes break the framing, or a header cannot be read.
    """
    at = 0
    try:
        while len(data) - at >= PREFIX_BYTES:
            length = int.from_bytes(data[at : at + 4], "big")
            if not MIN_LENGTH <= length <= MAX_FRAME_BYTES - 4:
                raise RemoteProtocolError("bad_frame", f"a frame of {length} bytes")
            end = at + 4 + length
            if end > len(data):
                break
            yield decode(bytes(data[at:end]))
            at = end
    finally:
        del data[:at]
