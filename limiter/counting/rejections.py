"""What became of requests, second by second: the words of what the data path hands out for the rejection log.

There is one entry for each resource, and one for each (resource, client, user, product, producer group, rule, verdict)
that a rule had a word with. All of it is plain data, which can cross a process boundary.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

from limiter.rules.resource import Resource

Outcome = Literal["admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped"]
"""What became of requests. A held request is counted again when it is admitted, shadowed, refused or dropped; all
other outcomes are counted once for each request. admitted + shadowed + bypassed + exempt went to the broker; with
refused + dropped they are the demand. Who must wait for credit is held, with as many messages as it is then granted;
these are admitted when they come, if they do. Requests are counted when they are decided: if a connection breaks, the
broker may never have read its last ones, as without Sluice."""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""In the order in which they are numbered; see ``limiter.counting.row``."""
NUMBERS: Final = {outcome: number for number, outcome in enumerate(OUTCOMES)}
"""Their numbers."""
RejectionVerdict = Literal["refuse", "shadow", "hold"]
"""What a rule can do to a request. One that is held may be refused later, and counts for both."""
DID: Final[dict[RejectionVerdict, Outcome]] = {"refuse": "refused", "shadow": "shadowed", "hold": "held"}
"""What becomes of a request to which a rule does something."""

OTHER: Final = "_other"
"""Stands for the names beyond a bound."""
DEFAULT_TOLD_APART: Final = 2_500
"""The bound on resources, and on entries of what rules said, unless another one is given."""


Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""A number of one second or minute. A larger one would be a broken line, and sums of these cannot overflow."""


class Amount(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An amount of traffic; written as ``[requests, messages, bytes]``.

    Attributes:
        requests: of clients.
        messages: a batch counts as those it holds.
        size_bytes: on the wire, framing included; as limits count them, so that what consumes is charged by its answer.
    """

    requests: Count = 0
    messages: Count = 0
    size_bytes: Count = 0


def add_up(one: Amount, other: Amount) -> Amount:
    """Return the sum of both."""
    return Amount(one.requests + other.requests, one.messages + other.messages, one.size_bytes + other.size_bytes)


class ResourceSecond(msgspec.Struct, gc=False):
    """What became of one resource's requests in one second.

    Attributes:
        resource: whose; the name is ``_other`` for all that are beyond the bound.
        outcomes: what is zero is left out.
        busy_answers: refusals that a client was told of; those of one-way requests are silent.
        languages: requests and, of these, refused ones, by what clients say they are written in, as the protocol
            spells it; empty where a client did not say, ``_other`` for what is beyond a bound of languages or clients.
        clients: addresses of its clients; a bounded number of them.
        more_clients: there were more than the bound.
        repeated: of all outcomes together, what had been refused a moment ago, as its id tells, and came again.
        identified: of the refused and dropped requests, so many have an id, and a repeat of them will be seen.
    """

    resource: Resource
    outcomes: dict[Outcome, Amount]
    busy_answers: int
    languages: dict[str, tuple[int, int]]
    clients: tuple[str, ...]
    more_clients: bool
    repeated: Amount = Amount()
    identified: int = 0


class Rejection(msgspec.Struct, gc=False):
    """What one rule did to one client's requests for one resource in one second.

    Attributes:
        resource: what the requests were for.
        client: the client's address; ``_other`` beyond the bound.
        producer_group: as the protocol has it, or empty; ``_other`` beyond the bound.
        rule: name of the rule.
        verdict: what it did.
        amount: how much of that.
        wait_max_us: the longest wait stated, in microseconds; 0 for a verdict that states none.
        user: that the client has logged in as, or empty; ``_other`` beyond the bound.
        product: what the client says it is, with its version, or empty; ``_other`` beyond the bound.
    """

    resource: Resource
    client: str
    producer_group: str
    rule: str
    verdict: RejectionVerdict
    amount: Amount
    wait_max_us: int
    user: str = ""
    product: str = ""


class TrafficSecond(msgspec.Struct, gc=False):
    """One second of a data path.

    Attributes:
        at_s: its beginning, in seconds since 1970 UTC.
        resources: of which something was asked for.
        rejections: in no order.
        other: how often some requests were counted under ``_other`` because a bound was reached.
        seconds: it is of so many seconds: more than one if nobody took any for long.
        stepped_s: the wall clock was set forward by so much since the last one; below 0: back.
    """

    at_s: int
    resources: tuple[ResourceSecond, ...]
    rejections: tuple[Rejection, ...]
    other: int
    seconds: int = 1
    stepped_s: int = 0
