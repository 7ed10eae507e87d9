"""The id that a client has given its message: the same in each attempt of one send.

A send has it in its properties, as ``UNIQ_KEY``; Java gives one to a batch as a whole, too. A send-back names the
message that it is about, as ``originMsgId``; Java sends it to the retry topic, under the same id, when it is refused.
Node gives no id. C++ gives one, but another in each attempt: by its ids no repeat is ever seen.

The bytes of the header are searched, not read: nothing is decided by it, so a header that spells it oddly has no id.
The compiled part does the same (``native/core/src/message_id.rs``).
"""

from typing import Final

from proxy.protocols.rocketmq.wire.codes import HEADER_JSON

#: What stands before the id, and what before that, if it is not the first property: each property ends so.
_JSON_MARK: Final = rb"UNIQ_KEY\u0001"
_JSON_END: Final = rb"\u0002"
_BINARY_MARK: Final = b"UNIQ_KEY\x01"
_BINARY_END: Final = 0x02
_JSON_FIELD: Final = b'"originMsgId":"'
#: Behind the length of the key; between it and the id stands the length of that.
_BINARY_FIELD: Final = b"\x00\x0boriginMsgId"
_LENGTH_BYTES: Final = 4
_QUOTE: Final = ord('"')
ANOTHER_EACH_TIME: Final = frozenset({"CPP"})
"""Languages whose clients give each attempt another id: it is as good as none."""
MAX_BYTES: Final = 255
"""An id is cut after so many."""


def message_id(header: bytes, header_type: int) -> bytes:
    """Return the id of the message that a send or send-back is about; empty if it has none.

    Args:
        header: exactly the frame's header bytes, which were read before.
        header_type: the high byte of the frame's second word.
    """
    is_json = header_type == HEADER_JSON
    mark = _JSON_MARK if is_json else _BINARY_MARK
    at = header.find(mark)
    if at > 0:
        before = header[at - 1]
        if is_json:
            if before != _QUOTE and not header.endswith(_JSON_END, 0, at):
                return b""
        # The first property stands behind the length of them all, which is below 64 KiB.
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
    # Two searches take a third of the time of a regular expression.
    return most.partition(b"\\" if is_json else b"\x02")[0].partition(b'"' if is_json else b"\0")[0]
