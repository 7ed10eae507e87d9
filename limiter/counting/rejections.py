"""The counts of one second, as plain data for the rejection log.

There is one entry for each resource, and one for each (resource, client, user, product, producer group, rule, verdict).
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

from limiter.rules.resource import Resource

Outcome = Literal["admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped"]
"""What became of requests. A held request is counted again when it is admitted, shadowed, refused or dropped; all other
outcomes are counted once. admitted + shadowed + bypassed + exempt went to the broker; with refused + dropped they are
the demand. A request for credit is held with as many messages as it is then granted; the messages are admitted when
they come. Requests are counted when they are decided: if a connection breaks, the broker may not have read the last
ones.
"""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""In the order of their numbers; see ``limiter.counting.row``."""
NUMBERS: Final = {outcome: number for number, outcome in enumerate(OUTCOMES)}
RejectionVerdict = Literal["refuse", "shadow", "hold"]
"""What a rule can do to a request. A held request may be refused later, and counts for both."""
DID: Final[dict[RejectionVerdict, Outcome]] = {"refuse": "refused", "shadow": "shadowed", "hold": "held"}
"""The outcome of a request by what a rule does to it."""

OTHER: Final = "_other"
"""Stands for the names beyond a bound."""
DEFAULT_TOLD_APART: Final = 2_500
"""Default bound on resources, and on entries of rules."""


Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""Bounded so that sums cannot overflow."""


class Amount(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Traffic, written as ``[requests, messages, bytes]``; bytes as limits count them, consumption by its answer."""

    requests: Count = 0
    messages: Count = 0
    size_bytes: Count = 0


def add_up(one: Amount, other: Amount) -> Amount:
    return Amount(one.requests + other.requests, one.messages + other.messages, one.size_bytes + other.size_bytes)


class ResourceSecond(msgspec.Struct, gc=False):
    """The counts of one resource in one second."""

    resource: Resource
    outcomes: dict[Outcome, Amount]  # without zeros
    busy_answers: int  # refusals that were answered; those of one-way requests are silent
    # Requests and refused ones by client language, as the protocol spells it; empty if unknown, ``_other`` beyond a
    # bound.
    languages: dict[str, tuple[int, int]]
    clients: tuple[str, ...]  # addresses of its clients, up to a bound
    more_clients: bool
    repeated: Amount = Amount()  # of all outcomes, repeats of messages that were refused a moment ago, by their id
    identified: int = 0  # refused and dropped requests with an id, whose repeats will be recognised


class Rejection(msgspec.Struct, gc=False):
    """What one rule did to one client's requests for one resource in one second.

    ``client``, ``producer_group``, ``user`` and ``product`` are ``_other`` beyond a bound, and but for ``client`` empty
    if unknown.
    """

    resource: Resource
    client: str
    producer_group: str
    rule: str
    verdict: RejectionVerdict
    amount: Amount
    wait_max_us: int  # the longest wait stated, in microseconds; 0 for a verdict that states none
    user: str = ""
    product: str = ""  # name and version of the client


class TrafficSecond(msgspec.Struct, gc=False):
    """One second of a data path."""

    at_s: int  # its beginning, in seconds since 1970 UTC
    resources: tuple[ResourceSecond, ...]
    rejections: tuple[Rejection, ...]
    other: int  # how often requests were counted under ``_other`` because of a bound
    seconds: int = 1  # its length; more than one if it was collected late
    stepped_s: int = 0  # how far the wall clock was set forward since the last one; negative: back
