"""One limit for many processes: the members of a fleet lease permits from a bucket in Redis.

No message waits for Redis: members lease permits ahead of demand and decide with those they hold
(``limiter.buckets.fleet``). ``bucket.lua`` implements the bucket. ``Member`` builds the calls and processes the
responses. Envoy's RLQS and Doorman (YouTube) lease rates, which admit too much or too little while demand changes.
Here, each permit is granted once, so the total is bounded whatever the members do.

**The bound.** The bucket in Redis has room for the capacity C, minus the permits held by members, minus a reserve for
their *advances*. An advance is the number of permits that a member may spend before it has a lease. When it is spent,
the resulting debt frees the same room. Members whose slot is below ``slots = min(floor(0.75 * (C - 1)), 8)`` have an
advance of one permit. If C / 2 exceeds ``slots`` by two or more, each member also has
``floor((C / 2 - slots) * part)``. The script keeps slots distinct and the sum of parts at most 1. A member keeps its
part until its debt fits a smaller one. Hence ::

    permits admitted in t seconds <= rate * t + C + sum over members of (largest request - 1)

where rate and C are the largest of any member in that time. Exceptions:

- A member dies. It has spent at most its advance, which the bucket pays for after 3 s. Until those permits accrue
  again, a replacement may spend its own advance. If the member dies before its first call for a name, its advance is
  extra. So are the permits held by a process stopped for more than 3 s.
- Redis comes back empty. If the first caller for a name is a new member, at most C is added. Otherwise the bucket
  starts with the permits accrued since the last response to that member. Until all members have called again (0.2 s),
  the advance of a new member may overlap with others. A fail-over that loses the last seconds adds nothing: members
  report their held permits and total spending, and the bucket charges grants that it has forgotten.
- The clock of Redis is set forward. The permits for that time are added, at most C. Setting it back adds nothing.
- A member without Redis decides alone (``when_away``). This is not charged later.

**The shares.** Accrued permits go to the members that want them, by demand: generalized processor sharing (Parekh and
Gallager, 1993). Virtual time grows by ``minted / sum of weights``, and a member's claim by its weight times that, so
the cost of a call does not depend on the number of members. Permits that a member has a claim to but does not want are
available to all. The weight is the demand in permits per second, at least about one permit in 8 s or the equal share if
that is less. Permits are indivisible. While the bucket cannot meet all claims, the member that has waited longest gets
a whole permit once it has a claim to part of one. Its claim is then negative until it catches up.

**Lost messages.** A call reports totals: the permits spent so far and those kept. Permits granted in a lost response,
or returned in a lost call, are therefore back in the bucket after the next call. Calls are numbered, and late ones are
ignored.
"""
