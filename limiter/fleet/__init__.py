"""One limit for many processes. The members of a fleet lease permits from a bucket in Redis.

Messages do not wait for Redis. Members lease permits ahead of demand and decide with the permits that they hold
(``limiter.buckets.fleet``). ``bucket.lua`` implements the bucket. ``Member`` builds the calls and processes the
responses. Unlike with leased rates (Envoy's RLQS, YouTube's Doorman), each permit is granted only once, so the total is
bounded.

**The bound.** The bucket in Redis has room for the capacity C, minus the permits held by members, minus a reserve for
their *advances*. An advance is the number of permits that a member may spend before it has a lease. Spending it creates
a debt, which frees as much room. Members whose slot is below ``slots = min(floor(0.75 * (C - 1)), 8)`` have an advance
of one permit. If C / 2 exceeds ``slots`` by two or more, each member also has ``floor((C / 2 - slots) * part)``. The
script keeps slots distinct and the sum of parts at most 1. If a member's part shrinks, it keeps the old part until its
debt fits the new one. Hence ::

    permits admitted in t seconds <= rate * t + C + sum over members of (largest request - 1)

where rate and C are the largest values that any member had in that time. More permits may be admitted if a member dies
or cannot reach Redis, if Redis restarts empty, or if its clock is set forward. ``docs/fleet.md`` lists these cases.
After Redis restarts empty, a new member's advance may also overlap with another's for 0.2 s, until all members have
called again.

**The shares.** Accrued permits are shared among the members by demand, using generalized processor sharing (Parekh and
Gallager, 1993). Virtual time grows by ``minted / sum of weights``. Each member's claim grows by its weight times that,
so the cost of a call does not depend on the number of members. Permits that a member does not want are available to
all. A member's weight is its demand in permits per second, with a minimum of about one permit in 8 s or an equal share,
whichever is less. While the bucket cannot meet all claims, the member that has waited longest gets a permit as soon as
it has a claim to part of one.

**Lost messages.** Each call reports the permits spent so far and the permits kept. If a response that grants permits or
a call that returns permits is lost, the bucket recovers the permits in the next call. Calls are numbered, and late
calls are ignored.
"""
