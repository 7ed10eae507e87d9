"""Shares one limit among many processes. The members of a fleet lease permits from a bucket in Redis.

Messages never wait for Redis: members lease permits ahead of demand and spend them locally (``limiter.buckets.fleet``).
``bucket.lua`` implements the bucket. Unlike with leased rates (Envoy's RLQS, YouTube's Doorman), each permit is granted
only once, so the total is bounded.

**The bound.** The bucket in Redis has room for the capacity C, minus the permits held by members, minus a reserve for
their *advances*. An advance is the number of permits that a member may spend before it has a lease. Spending it creates
a debt, which frees the same amount of room. Members whose slot is below ``slots = min(floor(0.75 * (C - 1)), 8)`` have
an advance of one permit. If C / 2 exceeds ``slots`` by two or more, each member also has ``floor((C / 2 - slots) *
part)``. The script ensures that slots are distinct and that the parts add up to at most 1. A member whose part shrinks
keeps the old part until its debt fits within the new one. Hence ::

    permits admitted in t seconds <= rate * t + C + sum over members of (largest request - 1)

where rate and C are the largest values that any member had during that time. ``docs/fleet.md`` lists the cases in which
more permits may be admitted.

**The shares.** Accrued permits are shared in proportion to demand, using generalized processor sharing (Parekh and
Gallager, 1993). Virtual time grows by ``minted / sum of weights``, and each member's claim grows by its weight times
that. A member's weight is its demand in permits per second, but at least about one permit in 8 s or an equal share,
whichever is less. While the bucket cannot meet all claims, the member that has waited longest gets a permit as soon as
it has a claim to part of one.

**Lost messages.** Each call reports the permits spent so far and the permits kept. If a response that grants permits or
a call that returns permits is lost, the bucket recovers the permits in the next call. Calls are numbered, and late
calls are ignored.
"""
