"""Recorded AMQP 1.0 connections through a session without limits: the peers see no difference."""

from random import Random

import pytest
from playbook.amqp_one_captures import AMQP_ONE_CAPTURES, OneCapture

from proxy.deciding.batch import ConnectionInfo, Side
from proxy.protocols.amqp10 import PROTOCOL
from proxy.protocols.base import Session, SessionContext, WireCounters


class _Between:
    """A session and its output to either side."""

    def __init__(self) -> None:
        connection = ConnectionInfo(1, "main", "default", "192.0.2.1:4000", "192.0.2.1", False)
        self.counters = WireCounters()
        self.woken = False
        self.written, self.unread = ({side: bytearray() for side in Side} for _ in range(2))
        self.now_ns = 1_000_000_000
        context = SessionContext(
            connection, self.counters, self._wake, False, lambda _: False, PROTOCOL.options(), hub=PROTOCOL.open_hub()
        )
        self.session: Session = PROTOCOL.open_session(context)

    def give(self, side: Side, data: bytes, random: Random, longest: int) -> None:
        self.unread[side] += data
        while self.unread[side] and not self.session.paused(side):
            # While the other side waits for this one's data, it may read on after each byte.
            self._read(side, random, 1 if self.unread[side.other] else longest)
            while self.unread[side.other] and not self.session.paused(side.other):
                self._read(side.other, random, longest)

    def _read(self, side: Side, random: Random, longest: int) -> None:
        unread = self.unread[side]
        most = min(self.session.max_bytes(side), random.randint(1, longest))
        chunk = bytes(unread[:most])
        del unread[:most]
        room = bytearray(chunk)
        batch = self.session.receive(side, memoryview(room), self.now_ns)
        while True:
            if batch is not None:
                batch.add_verdicts({})
                self.session.decided(batch, self.now_ns)
            self._take()
            if not self.woken:
                break
            self.woken = False
            batch = self.session.tick(self.now_ns)
        # The session must not keep slices of a buffer, which is read into again.
        room[:] = b"\xaa" * len(room)
        if left := self.session.left_bytes(side):
            unread[:0] = chunk[len(chunk) - left :]

    def _wake(self) -> None:
        self.woken = True

    def _take(self) -> None:
        for side, written in self.written.items():
            for each in self.session.take(side):
                written.extend(each)


@pytest.mark.parametrize("longest", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("capture", AMQP_ONE_CAPTURES, ids=str)
def test_recorded_connection_passes_byte_for_byte(capture: OneCapture, longest: int) -> None:
    between, random = _Between(), Random(longest)

    for side, data in capture.steps:
        between.give(side, data, random, longest)

    assert between.written[Side.BROKER] == capture.sent(Side.CLIENT)
    assert between.written[Side.CLIENT] == capture.sent(Side.BROKER)
    assert between.session.between_frames(Side.CLIENT)
    assert between.session.between_frames(Side.BROKER)
    assert between.counters.undecodable == {}
