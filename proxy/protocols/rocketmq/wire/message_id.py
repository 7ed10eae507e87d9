"""Finds the id that a client gave a message. Retries of a send have the same id.

The id is in the property ``UNIQ_KEY`` of a send, and in the field ``originMsgId`` of a send-back. If a send-back is
refused, Java clients send the message to the retry topic with the same id.

The header is searched instead of parsed, because no decision depends on the id. The compiled extension does the same
(``native/core/src/message_id.rs``).
"""

from typing import Final

from proxy.protocols.rocketmq.wire.codes import HEADER_JSON

_JSON_MARK: Final = rb"UNIQ_KEY\u0001"
_JSON_END: Final = rb"\u0002"
_BINARY_MARK: Final = b"UNIQ_KEY\x01"
_BINARY_END: Final = 0x02
_JSON_FIELD: Final = b'"originMsgId":"'
# The field's name is preceded by its length and followed by the length of the id.
_BINARY_FIELD: Final = b"\x00\x0boriginMsgId"
_LENGTH_BYTES: Final = 4
_QUOTE: Final = ord('"')
ANOTHER_EACH_TIME: Final = frozenset({"CPP"})
MAX_BYTES: Final = 255  # longer ids are truncated


def message_id(header: bytes, header_type: int) -> bytes:
    is_json = header_type == HEADER_JSON
    mark = _JSON_MARK if is_json else _BINARY_MARK
    at = header.find(mark)
    if at > 0:
        before = header[at - 1]
        if is_json:
            if before != _QUOTE and not header.endswith(_JSON_END, 0, at):
                return b""
        # The first property follows the total length of the properties, which is below 64 KiB.
        elif before != _BINARY_END and not header.endswith(b"\0\0", 0, max(0, at - 2)):
            return b""
        at += len(mark)
    elif is_json:
        at = header.find(_JSON_FIELD) + len(_JSON_FIELD)
        if at < len(_JSON_FIELD):
            return b""
    else:
        at = header.find(_BINARY_FIELD) + len(_BINARY_FIELD) + _LENGTH_BYTES
        if at < len(_BINARY_FIELD) + _LENGTH_BYTES:
            return b""
    most = header[at : at + MAX_BYTES]
    # This is three times as fast as a regular expression.
    return most.partition(b"\\" if is_json else b"\x02")[0].partition(b'"' if is_json else b"\0")[0]
