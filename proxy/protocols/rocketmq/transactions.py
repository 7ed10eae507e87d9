"""Transactions: tracks half messages until their end, so that each is committed once.

A broker stores whatever is at the offset named by a commit, as often as it is named (``EndTransactionProcessor``). So a
commit is forwarded only for a half message that the broker itself has named: in its answer to the send, or when it
asked about the transaction. For an unknown one, the broker asks again.

Each time it asks, the broker stores a copy, and accepts the offset of any. So all copies are known until one is
committed, and none afterwards.

Clients choose transaction ids. A transaction is also identified by producer group and topic, so that no client can
affect another's.
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

# Per broker, including copies, about 500 bytes each plus names. The broker asks again about a forgotten one.
MAX_HALVES: Final = 65_536

_COMMIT: Final = 8
_STORED: Final = frozenset({ResponseCode.SUCCESS.value, 10, 11, 12})
# Hexadecimal: address of 4 or 16 bytes, port, and offset.
_ID_CHARS: Final = frozenset({2 * (4 + 4 + 8), 2 * (16 + 4 + 8)})
_OFFSET_CHARS: Final = 16
# Other requests store a plain message, whatever the properties say.
_PROPERTIES_AT: Final = {RequestCode.SEND_MESSAGE.value: "properties", RequestCode.SEND_MESSAGE_V2.value: "i"}
# Of a stored message. Before its body's length come the hosts and _BESIDES_HOSTS_BYTES.
_FLAGS_AT: Final = 36
_HOSTS_IN_IPV6: Final = (0x10, 0x20)
_HOST_BYTES: Final = 8
_MORE_IN_IPV6_BYTES: Final = 12
_BESIDES_HOSTS_BYTES: Final = 68
_i32_at = struct.Struct(">i").unpack_from
# With one of these a half message would be stored elsewhere.
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
    """None if the broker does not store the send as one."""
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
    """The broker's question about a transaction (request 39). Its body, in pieces, is the stored half message."""

    def __init__(self, request: RemotingCommand) -> None:
        self.fields = request.fields
        # The bytes before the message's body, then those after it.
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
        # The topic, after a byte with its length, then the length of the properties.
        properties = decode_properties(self._kept[1 + self._kept[0] + 2 :].decode(errors="replace"))
        return _half_of(properties.get("PGROUP"), properties.get("REAL_TOPIC"))


class _Half(msgspec.Struct, frozen=True):
    queue_offset: int
    send: HalfSend
    transaction: int  # a hash


class _Open(msgspec.Struct):
    offsets: set[int]  # of all copies
    paid: int  # commits that were charged with their sends


class Ended(NamedTuple):
    transaction: int
    halves: dict[int, _Half]  # with all copies, by offset
    topic: str  # to be charged for the commit. Empty if a send was charged


class Transactions:
    """The uncommitted half messages of one broker, on all its listeners, as they share a commit log."""

    def __init__(self) -> None:
        self._halves: dict[int, _Half] = {}
        self._open: dict[int, _Open] = {}
        # Number of commits. The broker may store another copy before it has recorded one.
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
        # An unseen send was charged, too. Without an id it might be counted twice.
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
        """Commit a transaction. None if this group may not. Call ``undo`` if the request is not forwarded."""
        half = self._halves.get(end.offset)
        if not end.commits or half is None or half.queue_offset != end.queue_offset or half.send.group != end.group:
            return None
        transaction = self._open[half.transaction]
        is_paid = transaction.paid > 0
        transaction.paid -= is_paid
        # If several sends were charged, there are several messages.
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
