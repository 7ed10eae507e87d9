"""A session that is lent to the compiled extension for one chunk at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.deciding.batch import Side
from proxy.flow.broker_signals import BrokerSignals
from proxy.protocols.base import Session, WireCounters

SIDES = list(Side)


@dataclass
class Loan:
    """Lends a session.

    ``judge``: a ``proxy.deciding.judge.Judge``, or a stand-in. ``counters``: for frames. ``signals``: for answers.
    ``write``: takes data for a peer.
    """

    session: Session
    judge: Any
    counters: WireCounters
    signals: BrokerSignals
    write: Callable[[Side, bytes], None]
    # Chunks that the compiled extension read from.
    taken: int = 0

    def read(self, side: Side, data: bytes, now_ns: int, second: Any) -> bytes:
        """Let the compiled extension read a chunk if the session is plain. Return the rest for the session."""
        lent = self.session.lend(self.judge)
        if lent is None:
            return data
        number, kept = SIDES.index(side), lent.take_kept()
        chunk = kept[number] + data
        pieces, stop, _, frames, _, round_trips, (answers, busy) = lent.feed(
            number, chunk, now_ns, lambda: now_ns, second
        )
        for each, of_peer, count in zip(SIDES, pieces, frames, strict=True):
            self.counters.frames[each] += count
            for piece in of_peer:
                self.write(each, piece if isinstance(piece, bytes) else chunk[slice(*piece)])
        self.signals.answers += answers
        self.signals.busy += busy
        for took_ns in round_trips:
            self.counters.round_trip.observe(took_ns)
        self.session.count_lent(*lent.take_counts())
        unanswered = lent.unanswered()
        self.session.returned(lent.give_back())
        assert self.session.unanswered() >= unanswered
        if kept[1 - number]:
            self.session.put_back(side.other, kept[1 - number], now_ns)
        self.taken += stop > 0
        return chunk[stop:]
