"""Credit-based flow control between stages, which bounds all queues.

A stage is a place where messages can queue. Messages flow from left to right, and credit flows from right to left::

    connection  →  channel  →  resource  →  writer
    (reads)                             →  store

``send`` uses a follower's credit, and ``ack`` returns it. A stage that has used up a follower's credit is *out of
credit*. It still forwards messages but grants no credit, so its senders run out in turn, all the way back to the
connections. **A connection checks ``out_of_credit`` after each batch, and does not read while it is true.**
``on_credit`` tells it when to resume.

The algorithm is that of RabbitMQ's ``credit_flow.erl``. For each pair of a sender and its follower:

- The sender's balance starts at ``initial``. Sending reduces it, even below 0. While it is not positive, the follower
  blocks the sender.
- After every ``more_after`` acks, the follower grants that much credit. If the follower is out of credit itself, the
  grant is deferred.
- While the follower is stalled by a full socket or a slow disk, it blocks the sender, too.

A stage is out of credit while any follower blocks it. When the last follower unblocks it, it makes its deferred grants,
then calls ``on_credit``.

Rules for callers:

- Connected stages belong to one thread and must not form cycles.
- A follower acks each message once: when it has forwarded or answered the message, or put it into a bounded queue. A
  writer acks when the socket has accepted the last byte. A store acks when the message is written, or synced if that is
  guaranteed. A closed follower need not ack.
- Do not enforce heartbeats on a paused connection.
- Call ``close`` when a stage ends. A reconnected broker is a new stage.
- ``on_credit`` must not call any stage.
"""
# ruff: noqa: SLF001 - a pair belongs to two stages, and each changes both sides

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from proxy.flow.periods import Periods

Kind = Literal["connection", "channel", "resource", "writer", "store"]
State = Literal["running", "throttled", "flow", "blocked"]
"""See ``StageState``. If more than one state applies, the last one is shown."""
STATES: Final[tuple[State, ...]] = get_args(State)


class Credit(NamedTuple):
    initial: int  # in messages
    more_after: int  # number of acks before each grant, and number of messages granted. From 1 to ``initial``


DEFAULT_CREDIT: Final = Credit(400, 200)
"""RabbitMQ's ``credit_flow_default_credit``."""
STORE_CREDIT: Final = Credit(4000, 800)
"""RabbitMQ's ``msg_store_credit_disc_bound``."""
_CREDITS: Final[Mapping[Kind, Credit]] = {"store": STORE_CREDIT}
_BYTES_PER_CREDIT: Final = 16 * 1024
_NS_PER_S: Final = 1_000_000_000
RECENT_NS: Final = _NS_PER_S
"""How long ``flow`` and ``throttled`` remain visible after they end."""
_NO_PERIODS: Final = Periods()
CONNECTION_RECENT_NS: Final = 5_000_000_000


class _Pair:
    __slots__ = ("balance", "follower", "sender", "stalled", "until_grant")

    def __init__(self, sender: "Stage", follower: "Stage") -> None:
        self.sender = sender
        self.follower = follower
        self.balance, self.until_grant = follower.gives
        self.stalled = False


_Pairs = _Pair | dict["Stage", _Pair] | None
"""Most stages have only one follower and one sender, for which a dict of 224 bytes would be wasteful."""


class StageState(msgspec.Struct, frozen=True, gc=False):
    """A stage that messages pass through. Counts and times never decrease. Times include the current period.

    Attributes:
        state: ``running``, ``flow`` (recently stopped because a later stage accepted no more messages), ``throttled``
            (delayed by a limit) or ``blocked`` (stopped by an alarm).
        flow_total: how often later stages stopped this stage.
        flow_s: how long later stages stopped this stage, in seconds.
        throttled_total: how often limits started to delay messages.
        throttled_s: how long limits delayed messages, in seconds.
        blocked_total: how often alarms stopped this stage.
        blocked_s: how long alarms stopped this stage, in seconds.
        waits_for: stages that this stage waits for, each as ``KIND NAME``.
        text: how often and how long this stage was stopped, in words.
    """

    kind: Kind
    name: str
    state: State = "running"
    flow_total: int = 0
    flow_s: float = 0.0
    throttled_total: int = 0
    throttled_s: float = 0.0
    blocked_total: int = 0
    blocked_s: float = 0.0
    waits_for: tuple[str, ...] = ()
    text: str = ""


class Stage:
    """A stage that messages pass through. Counts are in messages. Times are monotonic.

    Args:
        gives: credit to grant to each sender. The default depends on ``kind``.
        on_credit: called when the stage has credit again. Only connections need it.

    Raises:
        ValueError: ``gives.more_after`` is not between 1 and ``initial``, so a sender could wait forever.
    """

    __slots__ = (
        "_blocked",
        "_blockers",
        "_deferred",
        "_flow",
        "_followers",
        "_last",
        "_senders",
        "_throttled",
        "_waited_for",
        "gives",
        "kind",
        "name",
        "on_credit",
    )

    def __init__(
        self, kind: Kind, name: str = "", gives: Credit | None = None, on_credit: Callable[[], object] | None = None
    ) -> None:
        self.kind: Kind = kind
        self.name = name
        self.gives = gives or _CREDITS.get(kind, DEFAULT_CREDIT)
        if not 1 <= self.gives.more_after <= self.gives.initial:
            raise ValueError(f"invalid credit {tuple(self.gives)}: the second number must be between 1 and the first")
        self.on_credit = on_credit
        self._followers: _Pairs = None
        self._senders: _Pairs = None
        self._last: _Pair | None = None
        self._blockers: dict[_Pair, None] | None = None
        self._waited_for: _Pair | None = None
        self._deferred: dict[_Pair, int] | None = None
        self._flow: Periods | None = None
        self._throttled: Periods | None = None
        self._blocked: Periods | None = None

    def send(self, to: "Stage", count: int, now_ns: int) -> None:
        """Record that ``count`` messages were sent, even if there was no credit for them."""
        pair = self._last
        if pair is None or pair.follower is not to:
            pair = self._last = self._find(to) or self._meet(to)
        before = pair.balance
        pair.balance = after = before - count
        if after <= 0 < before and not pair.stalled:
            self._block_by(pair, now_ns)

    def ack(self, sender: "Stage", count: int, now_ns: int) -> None:
        """Record that ``count`` messages from ``sender`` were handled. Ignored if the sender has closed."""
        pair = sender._last
        if pair is None or pair.follower is not self:
            pair = sender._find(self)
            if pair is None:
                return
        left = pair.until_grant - count
        if left > 0:
            pair.until_grant = left
            return
        more_after = self.gives.more_after
        quantity = (-left // more_after + 1) * more_after
        pair.until_grant = left + quantity
        if self._blockers is None:
            sender._bump(pair, quantity, now_ns)
        else:
            if self._deferred is None:
                self._deferred = {}
            self._deferred[pair] = self._deferred.get(pair, 0) + quantity

    def stall(self, follower: "Stage", now_ns: int, *, on: bool) -> None:
        """Record whether a follower is unable to accept messages for now. Idempotent."""
        pair = self._find(follower)
        if pair is None:
            if not on:
                return
            pair = self._meet(follower)
        if pair.stalled is on:
            return
        pair.stalled = on
        if pair.balance > 0:
            if on:
                self._block_by(pair, now_ns)
            else:
                self._unblock(pair, now_ns)

    def part(self, peer: "Stage", now_ns: int) -> None:
        """Disconnect two stages because one of them has ended. Call this once, on either stage."""
        for sender, follower in ((self, peer), (peer, self)):
            pair = sender._find(follower)
            if pair is None:
                continue
            sender._followers = _without(sender._followers, follower)
            follower._senders = _without(follower._senders, sender)
            if sender._last is pair:
                sender._last = None
            if follower._deferred is not None:
                follower._deferred.pop(pair, None)
            if pair.balance <= 0 or pair.stalled:
                sender._unblock(pair, now_ns)
            if sender._waited_for is pair:
                sender._waited_for = None

    def close(self, now_ns: int) -> None:
        self.on_credit = None
        for pair in _each(self._senders):
            self.part(pair.sender, now_ns)
        for pair in _each(self._followers):
            self.part(pair.follower, now_ns)

    @property
    def out_of_credit(self) -> bool:
        return self._blockers is not None

    def credit(self, to: "Stage") -> int:
        pair = self._find(to)
        return to.gives.initial if pair is None else max(0, pair.balance)

    def in_flight(self, to: "Stage") -> int:
        pair = self._find(to)
        if pair is None:
            return 0
        initial, more_after = to.gives
        return initial - pair.balance - more_after + pair.until_grant - to.deferred(self)

    def deferred(self, sender: "Stage") -> int:
        pair = sender._find(self)
        return self._deferred.get(pair, 0) if pair is not None and self._deferred is not None else 0

    def followers(self) -> tuple["Stage", ...]:
        return tuple(pair.follower for pair in _each(self._followers))

    def waits_for(self) -> tuple["Stage", ...]:
        """Return the stages that block this one, or the last stage that did if none does now."""
        if self._blockers is not None:
            return tuple(pair.follower for pair in self._blockers)
        return () if self._waited_for is None else (self._waited_for.follower,)

    def throttle(self, now_ns: int, *, on: bool) -> None:
        """Record whether a limit delays messages.

        Call this on the limited resource's stage, and on the stage of the channel that sends the messages. If the
        protocol has no channels, use the connection's stage instead.
        """
        self._throttled = _switch(self._throttled, now_ns, on=on)

    def block(self, now_ns: int, *, on: bool) -> None:
        self._blocked = _switch(self._blocked, now_ns, on=on)

    def waited_until_ns(self, now_ns: int) -> int:
        """Return when the stage was last out of credit: ``now_ns`` if it still is, 0 if it never was."""
        if self._blockers is not None:
            return now_ns
        return 0 if self._flow is None else self._flow.ended_ns

    def state(self, now_ns: int, recent_ns: int = 0, min_share: float = 0.0) -> State:
        """Return the state to show.

        ``flow`` and ``throttled`` remain visible for ``recent_ns``, or for a default time if it is 0. For
        ``min_share``, see ``Survey``.
        """
        if self._blocked is not None and self._blocked.since_ns is not None:
            return "blocked"
        recent_ns = recent_ns or (CONNECTION_RECENT_NS if self.kind == "connection" else RECENT_NS)
        flow = self._flow
        if flow is not None and flow.is_recent(now_ns, recent_ns) and flow.share(now_ns) >= min_share:
            return "flow"
        if self._throttled is not None and self._throttled.is_recent(now_ns, recent_ns):
            return "throttled"
        return "running"

    def waited_ns(self, now_ns: int) -> dict[State, int]:
        of_states = zip(STATES[1:], (self._throttled, self._flow, self._blocked), strict=True)
        return {state: periods.total_ns(now_ns) for state, periods in of_states if periods is not None}

    def figures(self, now_ns: int) -> StageState:
        state, waits_for = self.state(now_ns), self.waits_for()
        flow, throttled, blocked = (periods or _NO_PERIODS for periods in (self._flow, self._throttled, self._blocked))
        return StageState(
            kind=self.kind,
            name=self.name,
            state=state,
            flow_total=flow.total,
            flow_s=flow.total_ns(now_ns) / _NS_PER_S,
            throttled_total=throttled.total,
            throttled_s=throttled.total_ns(now_ns) / _NS_PER_S,
            blocked_total=blocked.total,
            blocked_s=blocked.total_ns(now_ns) / _NS_PER_S,
            waits_for=tuple(f"{each.kind} {each.name}".rstrip() for each in waits_for) if state == "flow" else (),
        )

    def _find(self, follower: "Stage") -> _Pair | None:
        pairs = self._followers
        if isinstance(pairs, dict):
            return pairs.get(follower)
        return pairs if pairs is not None and pairs.follower is follower else None

    def _meet(self, follower: "Stage") -> _Pair:
        pair = _Pair(self, follower)
        if self._followers is None:
            self._followers = pair
        else:
            if isinstance(self._followers, _Pair):
                self._followers = {self._followers.follower: self._followers}
            self._followers[follower] = pair
        if follower._senders is None:
            follower._senders = pair
        else:
            if isinstance(follower._senders, _Pair):
                follower._senders = {follower._senders.sender: follower._senders}
            follower._senders[self] = pair
        return pair

    def _bump(self, pair: _Pair, quantity: int, now_ns: int) -> None:
        before = pair.balance
        pair.balance = after = before + quantity
        if before <= 0 < after and not pair.stalled:
            self._unblock(pair, now_ns)

    def _block_by(self, pair: _Pair, now_ns: int) -> None:
        if self._blockers is None:
            self._blockers = {}
            if self._flow is None:
                self._flow = Periods()
            self._flow.begin(now_ns)
        self._blockers[pair] = None

    def _unblock(self, pair: _Pair, now_ns: int) -> None:
        blockers, flow = self._blockers, self._flow
        assert blockers is not None and flow is not None  # noqa: S101, PT018 - both exist while a pair blocks
        del blockers[pair]
        if blockers:
            return
        self._blockers = None
        self._waited_for = pair
        flow.end(now_ns)
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            for owed, quantity in deferred.items():
                owed.sender._bump(owed, quantity, now_ns)
        if self.on_credit is not None:
            self.on_credit()


def credit_for(size_bytes: int) -> int:
    """Return the credit that a message uses. Large messages use more, because a few hundred could be gigabytes."""
    return 1 + size_bytes // _BYTES_PER_CREDIT


def _switch(periods: Periods | None, now_ns: int, *, on: bool) -> Periods | None:
    if on:
        periods = periods or Periods()
        periods.begin(now_ns)
    elif periods is not None:
        periods.end(now_ns)
    return periods


def _each(pairs: _Pairs) -> tuple[_Pair, ...]:
    if isinstance(pairs, dict):
        return tuple(pairs.values())
    return () if pairs is None else (pairs,)


def _without(pairs: _Pairs, peer: Stage) -> _Pairs:
    if not isinstance(pairs, dict):
        return None
    del pairs[peer]
    return pairs or None
