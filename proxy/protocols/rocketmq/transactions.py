"""Tracks half messages, which belong to transactions that have not ended, so that each is committed only once.

A commit names an offset. The broker commits any message that it finds there, even repeatedly
(``EndTransactionProcessor``). Sluice therefore forwards a commit only if the broker itself has sent the offset, either
in its answer to a send or when it asked about a transaction.

Each time it asks, the broker stores another copy of the half message, and it accepts the offset of any copy. All copies
are therefore tracked until one of them is committed, and then forgotten together.

Clients choose transaction ids, so transactions are also identified by producer group and topic.
"""

import struct
from typing import Final, NamedTuple, Self

import msgspec

from proxy.protocols.rocketmq.batch_body import decode_properties
from proxy.protocols.rocketmq.wire.codes import (
    HEADER_BINARY,
    HEADER_JSON,
    MAX_NAME_CHARS,
    RemoteProtocolError,
    RequestCode,
    ResponseCode,
)
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode_header
from proxy.protocols.rocketmq.wire.frame import HalfSend

# Maximum per broker, including copies. Each takes about 500 bytes plus its names. The broker asks again about half
# messages that have been forgotten.
MAX_HALVES: Final = 65_536

_COMMIT: Final = 8
_STORED: Final = frozenset({ResponseCode.SUCCESS.value, 10, 11, 12})
# A message id is an address of 4 or 16 bytes, a port and an offset, in hexadecimal.
_ID_CHARS: Final = frozenset({2 * (4 + 4 + 8), 2 * (16 + 4 + 8)})
_OFFSET_CHARS: Final = 16
# From all other requests, the broker stores a normal message, whatever its properties are.
_PROPERTIES_AT: Final = {RequestCode.SEND_MESSAGE.value: "properties", RequestCode.SEND_MESSAGE_V2.value: "i"}
# The layout of a stored message. The hosts and _BESIDES_HOSTS_BYTES other bytes precede the length of its body.
_FLAGS_AT: Final = 36
_HOSTS_IN_IPV6: Final = (0x10, 0x20)
_HOST_BYTES: Final = 8
_MORE_IN_IPV6_BYTES: Final = 12
_BESIDES_HOSTS_BYTES: Final = 68
_i32_at = struct.Struct(">i").unpack_from
# A message with one of these properties is not stored as a half message.
_DELAYS: Final = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})


class EndOfTransaction(msgspec.Struct, frozen=True):
    group: str
    offset: int  # in the commit log
    queue_offset: int
    commits: bool

    @classmethod
    def read(cls, header: bytes, header_type: int) -> Self | None:
        try:
            fields = decode_header(header, header_type).fields
            commits = int(fields["commitOrRollback"]) == _COMMIT
            offset, queue_offset = int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"])
            return cls(fields["producerGroup"], offset, queue_offset, commits)
        except (RemoteProtocolError, KeyError, ValueError):
            return None


def read_half(header: bytes, header_type: int, topic: str) -> HalfSend | None:
    """Read a half message's group and topic. Return None if the broker would not store it as a half message."""
    try:
        send = decode_header(header, header_type)
    except RemoteProtocolError:
        return None
    properties = decode_properties(send.fields.get(_PROPERTIES_AT.get(send.code, ""), ""))
    if properties.get("TRAN_MSG", "").lower() != "true" or not _DELAYS.isdisjoint(properties):
        return None
    return _half_of(properties.get("PGROUP"), topic)


def _half_of(group: str | None, topic: str | None) -> HalfSend | None:
    if group is None or topic is None or max(len(group), len(topic)) > MAX_NAME_CHARS:
        return None
    return HalfSend(group, topic)


class Question:
    """The broker's request 39, which asks a client about a transaction.

    ``feed`` takes its body, the stored half message, in pieces.
    """

    def __init__(self, request: RemotingCommand) -> None:
        self.fields = request.fields
        # At first the bytes before the message's body, later those after it.
        self._kept = bytearray()
        self._behind = False
        self._skip = 0

    def feed(self, piece: memoryview) -> None:
        kept = self._kept
        kept += piece[self._skip :]
        self._skip = max(0, self._skip - len(piece))
        if self._behind or len(kept) < _FLAGS_AT + 4:
            return
        flags = _i32_at(kept, _FLAGS_AT)[0]
        hosts_bytes = sum(_HOST_BYTES + (_MORE_IN_IPV6_BYTES if flags & each else 0) for each in _HOSTS_IN_IPV6)
        length_at = _BESIDES_HOSTS_BYTES + hosts_bytes
        if len(kept) >= length_at + 4:
            end = length_at + 4 + max(0, _i32_at(kept, length_at)[0])
            self._skip = max(0, end - len(kept))
            del kept[:end]
            self._behind = True

    def half(self) -> HalfSend | None:
        if not self._behind or not self._kept:
            return None
        # The properties follow a byte with the topic's length, the topic, and two bytes with their own length.
        properties = decode_properties(self._kept[1 + self._kept[0] + 2 :].decode(errors="replace"))
        return _half_of(properties.get("PGROUP"), properties.get("REAL_TOPIC"))


class _Half(msgspec.Struct, frozen=True):
    queue_offset: int
    send: HalfSend
    transaction: int


class _Open(msgspec.Struct):
    offsets: set[int]
    paid: int  # number of sends that were charged. Each pays for one commit


class Ended(NamedTuple):
    transaction: int
    halves: dict[int, _Half]  # all copies, by offset
    topic: str  # topic to charge for the commit. Empty if the send was charged


class Transactions:
    """One broker's uncommitted half messages, shared by all listeners in front of that broker."""

    def __init__(self) -> None:
        self._halves: dict[int, _Half] = {}
        self._open: dict[int, _Open] = {}
        # Commits per transaction. The broker may store another copy before it has processed a commit.
        self._committed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def answered(self, half: HalfSend, answer: RemotingCommand) -> None:
        fields = answer.fields
        message_id = fields.get("msgId", "")
        if answer.code not in _STORED or len(message_id) not in _ID_CHARS:
            return
        try:
            offset, queue_offset = int(message_id[-_OFFSET_CHARS:], 16), int(fields["queueOffset"])
        except (KeyError, ValueError):
            return
        transaction = _transaction(fields.get("transactionId"), offset, half)
        self._put(offset, _Half(queue_offset, half, transaction)).paid += 1

    def asked(self, question: Question) -> None:
        fields, send = question.fields, question.half()
        try:
            offset, queue_offset = int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"])
        except (KeyError, ValueError):
            return
        if send is None:
            return
        transaction_id = fields.get("transactionId") or fields.get("msgId")
        transaction = _transaction(transaction_id, offset, send)
        is_new = bool(transaction_id) and transaction not in self._open and transaction not in self._committed
        # A new transaction's send was charged, although its answer was not seen. Without an id, it might count twice.
        self._put(offset, _Half(queue_offset, send, transaction)).paid += is_new

    def _put(self, offset: int, half: _Half) -> _Open:
        known = self._halves.get(offset)
        if known is not None and known.transaction != half.transaction:
            self._forget(offset)
        transaction = self._open.setdefault(half.transaction, _Open(set(), 0))
        transaction.offsets.add(offset)
        self._halves[offset] = half
        if len(self._halves) > MAX_HALVES:
            self._forget(next(iter(self._halves)))
        return transaction

    def _forget(self, offset: int) -> _Half:
        half = self._halves.pop(offset)
        transaction = self._open[half.transaction]
        transaction.offsets.remove(offset)
        if not transaction.offsets:
            del self._open[half.transaction]
        return half

    def end(self, end: EndOfTransaction) -> Ended | None:
        """Record a commit. Return None for a rollback, and for a commit that must be refused.

        Call ``undo`` if the request is not forwarded after all.
        """
        half = self._halves.get(end.offset)
        if not end.commits or half is None or half.queue_offset != end.queue_offset or half.send.group != end.group:
            return None
        transaction = self._open[half.transaction]
        is_paid = transaction.paid > 0
        transaction.paid -= is_paid
        # If more sends were charged, the other offsets belong to different messages.
        offsets = (end.offset,) if transaction.paid else tuple(transaction.offsets)
        if half.transaction not in self._committed and len(self._committed) >= MAX_HALVES:
            del self._committed[next(iter(self._committed))]
        self._committed[half.transaction] = self._committed.get(half.transaction, 0) + 1
        halves = {offset: self._forget(offset) for offset in offsets}
        return Ended(half.transaction, halves, "" if is_paid else half.send.topic)

    def undo(self, ended: Ended) -> None:
        count = self._committed.pop(ended.transaction, 0)
        if count > 1:
            self._committed[ended.transaction] = count - 1
        for offset, half in ended.halves.items():
            self._put(offset, half)
        self._open[ended.transaction].paid += not ended.topic


def _transaction(transaction_id: str | None, offset: int, send: HalfSend) -> int:
    return hash((transaction_id or offset, send))


def read_about_half(header: bytes | memoryview) -> RemotingCommand | None:
    header = bytes(header)
    try:
        return decode_header(header, HEADER_JSON if header[:1] == b"{" else HEADER_BINARY)
    except RemoteProtocolError:
        return None
