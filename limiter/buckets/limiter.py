"""A limiter: one bucket and one breaker that decide together for one resource.

It decides and remembers its last refusal; it does not know other limiters, rule sets or who asks.
Costs are whole permits, zero or more; that they are is the caller's contract, since checking each one
would cost more than deciding it.

One call decides a batch. ``acquire`` admits the prefix that single calls at the same time would have
admitted one after another. For requests that several limiters must agree on, it comes apart::

    admissions = [limiter.check(now_ns, costs) for limiter in limiters]      # no effect
    admitted = min(admission.admitted for admission in admissions)
    for limiter, admission in zip(limiters, admissions):
        limiter.commit(now_ns, costs[:admitted])                             # spends
        if admission.admitted == admitted < len(costs):
            limiter.refuse(now_ns)                                           # opens the breaker

and ``acquire`` is exactly these three for a single limiter. Where mostly all admit all, ``admits`` asks just that,
and ``spend`` follows once all have said so.

A request may leave a debt, but no more than ``max_debt_s`` of the rule allows. One that would owe more although
something is stored, and one that costs more than the limit can ever admit at once, is refused *alone*: it spends
nothing, the breaker stays as it is, and what comes after it is decided as if it had not been there. An admission
says how many such follow those that are admitted, and ``refuse_alone`` does what their refusal does.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from limiter.buckets.bucket import Bucket, closes_at_ns, free_at_ns, is_open
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Rule

_NS_PER_US: Final = 1_000
_NS_PER_MS: Final = 1_000_000
_TURN_NS: Final = 10 * _NS_PER_MS
"""Of how much of the rate who waits for credit is granted some at once: where few wait there are 100 turns a second."""
_TURN_OF_LINE_NS: Final = _NS_PER_MS // 2
"""At least for so long for each line in which somebody waits: all together have no more than 2 000 turns a second."""
_ROUND_NS: Final = 1000 * _NS_PER_MS
"""How long it may take until all in one line have had their turn, where that does not take too many turns."""
_SHORTEST: Final = 10
"""A turn is not made shorter by more than this for that."""
REFUSE_ALL_WAIT_US: Final = 1_000_000
"""The wait of a request that is never admitted, or of which nobody knows when."""


class Admission(NamedTuple):
    """What a limiter says to a batch.

    Attributes:
        admitted: how many requests from the front are admitted.
        wait_us: 0 if all are; else microseconds, rounded up, until a request would be admitted again.
        alone: so many of the next ones are refused for their own size and nothing else; the rest is to be asked for
            anew. 0: the next one stops all behind it.
    """

    admitted: int
    wait_us: int
    alone: int = 0


class Gate(Bucket, ABC):
    """What decides: a limiter, or one caller's share of it.

    Costs and permits are whole numbers, zero or more. At one ``now_ns``, ``check`` and then ``commit`` of what was
    admitted and ``refuse`` if something was not, do exactly what single requests one after another would. What
    ``admits`` says yes to is spent with ``spend``, if nothing was asked since; its no may be for want of a closer look,
    which ``check`` takes.

    Attributes:
        resource: what the limiter stands under: what it limits, or the overflow of its kind.
        rule: the rule in force.
        key: the key of the share; empty for a limiter.
    """

    __slots__ = ("resource", "rule")

    key: str

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        super().__init__(rule.rate_upermits_per_s, rule.capacity_upermits, now_ns)
        self.resource = resource
        self.rule = rule
        self.max_debt_upermits = rule.max_debt_upermits

    @abstractmethod
    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        """Say how many requests from the front would be admitted, without any effect."""

    @abstractmethod
    def commit(self, now_ns: int, costs: Sequence[int]) -> None:
        """Spend what ``check`` has admitted at the same ``now_ns``, or a prefix of it."""

    @abstractmethod
    def refuse(self, now_ns: int) -> int:
        """Do what a refusal does: open the breaker and remember the refusal; spend nothing.

        Returns:
            Microseconds, rounded up, until a request would be admitted again.
        """

    @abstractmethod
    def refuse_alone(self, now_ns: int, permits: int) -> int:
        """Remember the refusal of a single request that costs too much; the breaker stays as it is.

        Returns:
            Microseconds, rounded up, until it would be admitted; 1 s for one that never will.
        """

    @abstractmethod
    def charge(self, now_ns: int, permits: int) -> None:
        """Debit ``permits`` after the fact, into debt if need be, however deep. Never opens the breaker.

        If it is open, a deeper debt keeps it open for longer.

        Raises:
            ValueError: ``permits`` is negative.
        """

    @abstractmethod
    def wait_us_behind(self, now_ns: int, permits: int, cost: int = 1) -> int:
        """Return how long a request of that cost would wait if others that cost ``permits`` were admitted before it.

        As if there were no breaker, and they spent as soon as they may.

        Returns:
            Microseconds, rounded up; 0 if it would be admitted at once, and the refuse-all wait at rate 0.
        """

    @abstractmethod
    def affords(self, now_ns: int, price: int, most: int) -> int:
        """Say how many requests of one price would be admitted, one after another, without any effect.

        Args:
            now_ns: the time.
            price: what each of them costs, in permits; not 0, and no more than ``rule.most_permits``.
            most: no more than this many.
        """

    @abstractmethod
    def take(self, now_ns: int, price: int, count: int) -> None:
        """Spend what ``affords`` has said yes to at the same ``now_ns``, or less of it."""

    @abstractmethod
    def give_back(self, now_ns: int, permits: int) -> None:
        """Put back what was spent and not used: a debt shrinks, and never more is stored than the capacity.

        A breaker that is open stays so for no longer than the debt keeps it.
        """

    def turn(self, price: int, waiting: int, lines: int) -> int:
        """Return how many requests of one price are enough to be granted together: at least one.

        Granted one by one as permits come, each would cost as much as all of them together do.

        Args:
            price: as in ``affords``.
            waiting: how many wait for this limit: the more do, the shorter is the turn of each.
            lines: for how many limits somebody waits: the more do, the longer is the turn of each.
        """
        longest_ns = max(_TURN_NS, lines * _TURN_OF_LINE_NS)
        turn_ns = max(longest_ns // _SHORTEST, min(longest_ns, _ROUND_NS // waiting)) if waiting else longest_ns
        # Of a full bucket what comes is lost, so nobody waits for it to fill.
        enough = min(self.rate_upermits_per_s * turn_ns // NS_PER_S, self.capacity_upermits // 2)
        return max(1, enough // (price * UPERMITS_PER_PERMIT))

    def open_us(self, now_ns: int) -> int:
        """Return how long an open breaker stays so, in microseconds, rounded up; 0 if it is not."""
        next_free_ns, break_ns = self.open_next_free_ns, self.rule.break_ns
        if next_free_ns is None or not is_open(next_free_ns, break_ns, now_ns):
            return 0
        return until_us(now_ns, closes_at_ns(next_free_ns, break_ns))

    def wait_us_alone(self, now_ns: int, permits: int, before: int = 0) -> int:
        """Return the wait that is stated to a request which costs so much, once ``before`` is spent."""
        if permits > self.rule.most_permits:
            return REFUSE_ALL_WAIT_US
        return max(1, self.wait_us_behind(now_ns, before, permits))

    def _alone(self, now_ns: int, costs: Sequence[int], admitted: int, most: int) -> Admission:
        """Return the admission of those before a request that costs too much; so do those next to it, perhaps."""
        alone = run_of_larger(costs, admitted, most, self.rule.most_permits)
        return Admission(admitted, self.wait_us_alone(now_ns, costs[admitted], sum(costs[:admitted])), alone)


_ALL_ADMITTED: Final = tuple(Admission(count, 0) for count in range(257))
"""The usual answers, made once: making one takes as long as the decision."""


class ShareState(NamedTuple):
    """What an operator sees of one caller's share of a limiter at one moment.

    Attributes:
        key: who asks.
        stored_permits: permits kept for that caller alone; negative is a debt.
        open: whether the share's breaker refuses everything at this moment.
        wait_us: what a request would have to wait at this moment, in microseconds; 0 if it would be admitted.
    """

    key: str
    stored_permits: float
    open: bool
    wait_us: int


class LimiterState(NamedTuple):
    """What an operator sees of a limiter at one moment.

    Attributes:
        resource: what is limited.
        rule: the name of the rule in force.
        rate_per_s: its rate, in permits per second.
        stored_permits: permits in store; negative is a debt.
        open: whether the breaker refuses everything at this moment.
        wait_us: what a request would have to wait at this moment, in microseconds; 0 if it would be admitted.
        last_refused_ns: when a request was last refused, or would have been if the rule only shadows; None if none was.
        last_wait_us: the wait that was stated then, in microseconds.
        shares: the callers that are told apart; none if no difference is made between them.
    """

    resource: Resource
    rule: str
    rate_per_s: float
    stored_permits: float
    open: bool
    wait_us: int
    last_refused_ns: int | None
    last_wait_us: int
    shares: tuple[ShareState, ...] = ()


class Limiter(Gate):
    """The live limit of one resource: a bucket and, in front of it, a breaker. Starts full and closed.

    It is a bucket rather than having one, and holds the registry's bookkeeping, because a hundred thousand of these
    may live: one object each takes half the memory of two or three, and half the collector's time.

    Args:
        resource: what is limited.
        rule: the rule in force; one that limits.
        now_ns: the time from which permits accrue.

    Attributes:
        last_refused_ns: when a request was last refused; None if none was.
        last_wait_us: the wait that was stated then, in microseconds.
        epoch: the registry's: the swap of rules up to which the limiter is up to date.

    Raises:
        ValueError: the rule does not limit; unlimited never has a bucket.
    """

    key = ""

    __slots__ = (
        "epoch",
        "last_refused_ns",
        "last_wait_us",
    )

    def __init__(self, resource: Resource, rule: Rule, now_ns: int) -> None:
        _require_limit(rule)
        super().__init__(resource, rule, now_ns)
        self.last_refused_ns: int | None = None
        self.last_wait_us = 0
        self.epoch = 0
        self.asked_ns = now_ns

    def acquire(self, now_ns: int, costs: Sequence[int]) -> Admission:
        """Admit the longest prefix of ``costs`` and spend it; what is refused spends nothing."""
        if not costs:
            return _ALL_ADMITTED[0]
        if self.open_next_free_ns is not None and self._stays_open(now_ns):
            if costs[0] > self.rule.most_permits:
                self.refuse_alone(now_ns, costs[0])
                return self.check(now_ns, costs)
            return Admission(0, self.refuse(now_ns))
        # The usual case without a loop.
        permits = sum(costs)
        if self.admits(now_ns, permits - costs[-1], permits):
            self.spend(permits)
            count = len(costs)
            return _ALL_ADMITTED[count] if count < len(_ALL_ADMITTED) else Admission(count, 0)
        admission = self.check(now_ns, costs)
        self.commit(now_ns, costs[: admission.admitted])
        if admission.alone:
            self.refuse_alone(now_ns, costs[admission.admitted])
        else:
            self.refuse(now_ns)
        return admission

    def check(self, now_ns: int, costs: Sequence[int]) -> Admission:
        """Say what ``acquire`` would, without any effect."""
        if not costs:
            return Admission(0, 0)
        next_free_ns = self.open_next_free_ns
        if next_free_ns is not None and is_open(next_free_ns, self.rule.break_ns, now_ns):
            if costs[0] > self.rule.most_permits:
                return self._alone(now_ns, costs, 0, self.rule.most_permits)
            return Admission(0, self._wait_us(now_ns, next_free_ns))
        stored, at_ns = self.settled(now_ns)
        # A request is admitted if those before it cost less than what is stored: at most this many permits.
        room = (stored - 1) // UPERMITS_PER_PERMIT
        count = len(costs)
        # After all of them, at most this much may have been spent: it is the last one that leaves a debt.
        most = (stored + self.rule.max_debt_upermits) // UPERMITS_PER_PERMIT
        # The usual case without a loop, as in acquire.
        whole = sum(costs)
        if room >= 0 and whole - costs[-1] <= room and whole <= most:
            return _ALL_ADMITTED[count] if count < len(_ALL_ADMITTED) else Admission(count, 0)
        if not self.rate_upermits_per_s:
            return Admission(0, self.refuse_all_wait_us())
        spent = list(accumulate(costs, initial=0))
        admitted = bisect_right(spent, room, 0, count)
        if admitted and spent[admitted] > most:
            return self._alone(now_ns, costs, admitted - 1, most - spent[admitted - 1])
        if costs[admitted] > self.rule.most_permits:
            return self._alone(now_ns, costs, admitted, self.rule.most_permits)
        left = stored - spent[admitted] * UPERMITS_PER_PERMIT
        return Admission(admitted, self._wait_us(now_ns, free_at_ns(left, at_ns, self.rate_upermits_per_s)))

    def commit(self, now_ns: int, costs: Sequence[int]) -> None:
        """Spend what ``check`` has admitted at the same ``now_ns``, or a prefix of it."""
        if costs:
            self.charge(now_ns, sum(costs))

    def refuse(self, now_ns: int) -> int:
        """Open the breaker and remember the refusal; spend nothing."""
        if not self.rate_upermits_per_s:
            wait_us = self.refuse_all_wait_us()
        else:
            next_free_ns = self.open_next_free_ns
            if next_free_ns is None or not self._stays_open(now_ns):
                self.refill(now_ns)
                next_free_ns = self.next_free_ns()
                if self.rule.break_ns:
                    self.open_next_free_ns = next_free_ns
            wait_us = self._wait_us(now_ns, next_free_ns)
        self.last_refused_ns = now_ns
        self.last_wait_us = wait_us
        return wait_us

    def refuse_alone(self, now_ns: int, permits: int) -> int:
        """Remember the refusal of a single request that costs too much."""
        if self.open_next_free_ns is None or not self._stays_open(now_ns):
            # As any other refusal does: an open breaker waits for nothing that is stored.
            self.refill(now_ns)
        self.last_refused_ns = now_ns
        self.last_wait_us = wait_us = self.wait_us_alone(now_ns, permits)
        return wait_us

    def charge(self, now_ns: int, permits: int) -> None:
        """Debit ``permits`` after the fact, into debt if need be, however deep."""
        if permits < 0:
            raise ValueError(f"cannot spend {permits} permits: a cost is zero or more")
        # Even of nothing: what is decided together with other limiters ends as it does alone, to the nanosecond.
        self.refill(now_ns)
        self.spend(permits)
        self._follow_debt(now_ns)

    def wait_us_behind(self, now_ns: int, permits: int, cost: int = 1) -> int:
        """Return how long a request of that cost would wait if others that cost ``permits`` came before it."""
        if not self.rate_upermits_per_s:
            return self.refuse_all_wait_us()
        stored, at_ns = self.settled(now_ns)
        # What must be stored beyond a first micro-permit, for the debt not to be too great.
        more = max(0, cost * UPERMITS_PER_PERMIT - self.rule.max_debt_upermits - 1)
        left = stored - self.price_upermits(now_ns, permits) - more
        if left > 0:
            return 0
        return until_us(now_ns, self._stored_from_ns(free_at_ns(left, at_ns, self.rate_upermits_per_s)))

    def affords(self, now_ns: int, price: int, most: int) -> int:
        """Say how many requests of one price would be admitted, without any effect."""
        if not self.rate_upermits_per_s or is_open(self.open_next_free_ns, self.rule.break_ns, now_ns):
            return 0
        return min(most, afforded(self.settled(now_ns)[0], self.rule.max_debt_upermits, price))

    def take(self, now_ns: int, price: int, count: int) -> None:
        """Spend what ``affords`` has said yes to at the same ``now_ns``, or less of it."""
        self.charge(now_ns, count * price)

    def give_back(self, now_ns: int, permits: int) -> None:
        """Put back what was spent and not used."""
        self.stored_upermits = min(self.capacity_upermits, self.refill(now_ns) + permits * UPERMITS_PER_PERMIT)
        self._follow_debt(now_ns)

    def debit(self, now_ns: int, upermits: int) -> None:
        """Take off the balance what another process has spent of the same limit; negative gives back.

        An open breaker follows the debt, as in ``charge``.
        """
        self.stored_upermits = min(self.capacity_upermits, self.refill(now_ns) - upermits)
        self._follow_debt(now_ns)

    def price_upermits(self, now_ns: int, permits: int) -> int:  # noqa: ARG002 - for limiters whose prices change
        """Return what ``permits`` take off the balance at ``now_ns``."""
        return permits * UPERMITS_PER_PERMIT

    def share(self, key: str, now_ns: int) -> Gate:  # noqa: ARG002 - for limiters that tell callers apart
        """Return what decides for one caller: the limiter itself, which makes no difference between them."""
        return self

    def reconfigure(self, now_ns: int, rule: Rule) -> None:
        """Put another rule in force from ``now_ns`` on; stored permits and debt carry over as ``Bucket`` says.

        A raised limit that leaves something stored closes the breaker.

        Raises:
            ValueError: the rule does not limit.
        """
        _require_limit(rule)
        self._stays_open(now_ns)
        raised = rule.rate_upermits_per_s > self.rate_upermits_per_s or rule.capacity_upermits > self.capacity_upermits
        self.set_rate(now_ns, rule.rate_upermits_per_s, rule.capacity_upermits)
        if (rule.action == "shadow") is not (self.rule.action == "shadow"):
            # What would have been refused was not, and the other way round.
            self.last_refused_ns, self.last_wait_us = None, 0
        self.rule = rule
        self.max_debt_upermits = rule.max_debt_upermits
        if rule.break_ns and rule.rate_upermits_per_s and not (raised and self.stored_upermits > 0):
            self._follow_debt(now_ns)
        else:
            self.open_next_free_ns = None

    def inherit(self, other: Bucket, now_ns: int) -> None:
        """Store no more, and owe no less, than another bucket of the same rule does at ``now_ns``."""
        if other.refill(now_ns) < self.refill(now_ns):
            self.stored_upermits = other.stored_upermits
            self.at_ns = max(self.at_ns, other.at_ns)
        self.forgiven_upermits = max(self.forgiven_upermits, other.forgiven_upermits)

    def idle_at_ns(self) -> int | None:
        """Return from when on the limiter is full and closed, like a new one, if nothing asks it.

        None is never: a debt at rate 0.
        """
        full_at_ns = self.full_at_ns()
        if full_at_ns is None or self.open_next_free_ns is None:
            return full_at_ns
        return max(full_at_ns, closes_at_ns(self.open_next_free_ns, self.rule.break_ns))

    def state(self, now_ns: int) -> LimiterState:
        """Return what an operator sees at ``now_ns``; changes nothing."""
        stored, _ = self.settled(now_ns)
        return LimiterState(
            resource=self.resource,
            rule=self.rule.name,
            rate_per_s=self.rate_upermits_per_s / UPERMITS_PER_PERMIT,
            stored_permits=stored / UPERMITS_PER_PERMIT,
            open=is_open(self.open_next_free_ns, self.rule.break_ns, now_ns),
            wait_us=self.check(now_ns, (1,)).wait_us,
            last_refused_ns=self.last_refused_ns,
            last_wait_us=self.last_wait_us,
        )

    def _stays_open(self, now_ns: int) -> bool:
        """Close the breaker if it is time to; say whether it is still open."""
        if is_open(self.open_next_free_ns, self.rule.break_ns, now_ns):
            return True
        self.open_next_free_ns = None
        return False

    def _follow_debt(self, now_ns: int) -> None:
        """Let an open breaker follow a debt that has changed otherwise than by time."""
        if self.open_next_free_ns is not None and self._stays_open(now_ns) and self.stored_upermits <= 0:
            self.open_next_free_ns = self.next_free_ns()

    def _wait_us(self, now_ns: int, next_free_ns: int) -> int:
        closes_ns = closes_at_ns(next_free_ns, self.rule.break_ns)
        return until_us(now_ns, max(self._stored_from_ns(next_free_ns), closes_ns))

    def _stored_from_ns(self, next_free_ns: int) -> int:
        # With nothing owed nothing is stored yet either: the first micro-permit takes a moment, too.
        return next_free_ns - (-NS_PER_S // self.rate_upermits_per_s)

    def refuse_all_wait_us(self) -> int:
        """Return the wait stated at rate 0, where no honest one exists: the break, or one second."""
        return -(-self.rule.break_ns // _NS_PER_US) or REFUSE_ALL_WAIT_US


def afforded(stored_upermits: int, max_debt_upermits: int, price: int) -> int:
    """Return how many requests of one price, one after another, a balance admits: the last may leave a debt."""
    price_upermits = price * UPERMITS_PER_PERMIT
    return max(0, min(-(-stored_upermits // price_upermits), (stored_upermits + max_debt_upermits) // price_upermits))


def until_us(now_ns: int, ready_ns: int) -> int:
    """Return the microseconds until ``ready_ns``, rounded up.

    Never 0, which would mean admitted: a caller may refuse what a limiter alone would not have.
    """
    return max(1, -((now_ns - ready_ns) // _NS_PER_US))


def run_of_larger(costs: Sequence[int], start: int, most: int, most_ever: int) -> int:
    """Return how many costs in a row are above ``most``, from ``start`` on; all above ``most_ever``, or none."""
    end, never = start, costs[start] > most_ever
    while end < len(costs) and costs[end] > most and (costs[end] > most_ever) is never:
        end += 1
    return end - start


def _require_limit(rule: Rule) -> None:
    if rule.part("messages") is None:
        raise ValueError(f"rule {rule.name} does not limit: an unlimited resource has no limiter")
