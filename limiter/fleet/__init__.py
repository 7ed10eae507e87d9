"""One limit for many processes: the members of a fleet lease permits from a bucket that Redis keeps.

No message waits for Redis: members lease ahead of their demand, and decide by what they hold
(``limiter.buckets.fleet``). ``bucket.lua`` is the bucket; a ``Member`` says what to ask it, and takes the answers.
Neither does I/O.

**What others do.** Envoy's RLQS assigns each data plane a rate, and Doorman (YouTube) leases a part of the capacity for
a time. Both go by the demand that is reported, and admit too much or too little while it moves. Here permits are
leased, not rates: each is granted once, so the sum is bounded whatever the members do.

**The bound.** The store in Redis has room for the capacity C less what members hold, and less a reserve for their
*advances*: what a member may spend of a bucket before it has a lease there. A debt of an advance that is spent leaves
the store as much more room. ``slots = min(floor(0.75 * (C - 1)), 8)`` members have an advance of one permit, those
whose slot is below ``slots``. If C / 2 has two permits more than that, a member has ``floor((C / 2 - slots) * part)``
besides. The script sees to it that slots are distinct and that the parts of all members are at most 1; a member keeps
its part until it owes no more than a smaller one would allow. So ::

    permits admitted in t seconds <= rate * t + C + sum over members of (largest request - 1)

C is the whole burst: the store, what is held, and the advances. The rate is the largest that any member had in that
time, and so is the capacity. Beyond that

- a member that dies has spent its advance at most, which the bucket pays when it notices (3 s). Until that is minted,
  a member that starts in its place may spend its own. One that dies before it has asked for a name adds its advance
  there, once for each such death. So it is with what a process holds that stands still for longer than that;
- Redis that comes back empty adds C at most if the first to ask for a name is new in the fleet; otherwise the bucket
  begins with what has accrued since that member's last answer. Until all members have come again (0.2 s), a new one may
  have an advance that others have, too. One that has lost its last seconds only (a fail-over) adds nothing: members say
  what they hold and have spent in all, and grants that Redis has forgotten are charged then;
- Redis's clock, set forward, adds what accrues in that time, C at most. Set back, it adds nothing;
- a member without Redis decides alone (``when_away``), and that is not charged later.

**The shares.** What accrues goes to the members that want it by their demand: the virtual time of generalized processor
sharing (Parekh and Gallager, 1993) grows by ``minted / sum of weights``, and a member's claim by its weight times that,
so each call costs the same however many members there are. What a member does not want of its claim is anybody's. The
weight is the demand in permits per second, but never so small that a member would get less than about one permit in 8 s
where an equal share is more. Permits are whole: while the store cannot meet all claims, the member that has waited
longest gets one as soon as it has a claim to any part of it, and its claim is negative until it is made up for.

**Messages that get lost.** A call says what the member has spent in all and what it keeps, not what has changed. So
what was granted in an answer that got lost, or given back in a call that got lost, is back in store with the next one.
Calls are numbered, and a late one does nothing.
"""
