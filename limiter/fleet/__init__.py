"""One limit for many processes: the members of a fleet lease permits from a bucket in Redis.

No message waits for Redis: members lease ahead of demand and decide by the permits they hold
(``limiter.buckets.fleet``). ``bucket.lua`` implements the bucket. ``Member`` builds the calls and takes the answers.
Envoy's RLQS and Doorman (YouTube) lease rates, which admit too much or too little while the demand moves. Here each
permit is granted once, so the sum is bounded whatever the members do.

**The bound.** The bucket in Redis has room for the capacity C, minus the permits held by members, minus a reserve for
their *advances*. An advance is the number of permits that a member may spend before it has a lease. The debt of a spent
advance frees the same room. Members whose slot is below ``slots = min(floor(0.75 * (C - 1)), 8)`` have an advance of
one permit. If C / 2 exceeds ``slots`` by two or more, each member also has ``floor((C / 2 - slots) * part)``. The
script keeps slots distinct and the sum of parts at most 1. A member keeps its part until its debt fits a smaller one.
Hence ::

    permits admitted in t seconds <= rate * t + C + sum over members of (largest request - 1)

with the largest rate and C of any member in that time. Exceptions:

- A member that dies has spent at most its advance. The bucket pays for that after 3 s. Until the permits are minted, a
  replacement may spend its own advance. The advance of a member that dies before its first call for a name is extra.
  So are the permits held by a process stopped for more than 3 s.
- Redis comes back empty: at most C is added if the first caller for a name is a new member. Otherwise the bucket starts
  with the permits accrued since that member's last answer. Until all members have called again (0.2 s), the advance of
  a new member may overlap with others. A fail-over that loses the last seconds adds nothing: members report their held
  permits and total spending, and the bucket charges grants that it has forgotten.
- The clock of Redis is set forward: the permits of that time are added, at most C. Set back, it adds nothing.
- A member without Redis decides alone (``when_away``). This is not charged later.

**The shares.** Accrued permits go to the members that want them, by demand: generalized processor sharing (Parekh and
Gallager, 1993). Virtual time grows by ``minted / sum of weights``, and a member's claim by its weight times that, so
the cost of a call does not depend on the number of members. Unwanted permits of a claim are available to all. The
weight is the demand in permits per second, at least about one permit in 8 s or the equal share if that is less. Permits
are whole. While the bucket cannot meet all claims, the member that has waited longest gets a permit once it has a claim
to any part of one. Its claim is then negative until it catches up.

**Lost messages.** A call reports totals, the permits spent so far and the permits kept. So permits granted in a lost
answer, or returned in a lost call, are back in the bucket with the next call. Calls are numbered: a late one does
nothing.
"""
