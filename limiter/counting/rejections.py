"""The counts of one second, as plain data for the rejection log.

There is one entry per resource, and one per (resource, client, user, product, producer group, rule, verdict).
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

from limiter.rules.resource import Resource

Outcome = Literal["admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped"]
"""Outcomes of requests.

A held request is counted again when it is admitted, shadowed, refused or dropped. All other outcomes are counted once.
admitted + shadowed + bypassed + exempt went to the broker. With refused + dropped they are the demand. A request for
credit is held with the number of messages that it is then granted. The messages are admitted when they arrive. Requests
are counted when they are decided: if a connection breaks, the broker may not have read the last ones.
"""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""In order of their numbers. See ``limiter.counting.row``."""
NUMBERS: Final = {outcome: number for number, outcome in enumerate(OUTCOMES)}
RejectionVerdict = Literal["refuse", "shadow", "hold"]
"""A held request may be refused later, and counts for both."""
DID: Final[dict[RejectionVerdict, Outcome]] = {"refuse": "refused", "shadow": "shadowed", "hold": "held"}

OTHER: Final = "_other"
"""Replaces the names beyond a bound."""
DEFAULT_TOLD_APART: Final = 2_500
"""Default bound on resources, and on entries of rules."""


Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""Bounded so that sums cannot overflow."""


class Amount(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Written as ``[requests, messages, bytes]``. Bytes as limits count them, consumption by its answer."""

    requests: Count = 0
    messages: Count = 0
    size_bytes: Count = 0


def add_up(one: Amount, other: Amount) -> Amount:
    return Amount(one.requests + other.requests, one.messages + other.messages, one.size_bytes + other.size_bytes)


class ResourceSecond(msgspec.Struct, gc=False):
    resource: Resource
    outcomes: dict[Outcome, Amount]  # without zeros
    busy_answers: int  # answered refusals. Those of one-way requests are silent
    # (requests, refused requests) by client language, in the protocol's spelling. Empty if unknown, ``_other`` beyond a
    # bound.
    languages: dict[str, tuple[int, int]]
    clients: tuple[str, ...]  # client addresses, up to a bound
    more_clients: bool
    repeated: Amount = Amount()  # repeats of recently refused messages by id, all outcomes
    identified: int = 0  # refused and dropped requests with an id, whose repeats will be recognized


class Rejection(msgspec.Struct, gc=False):
    """Actions of one rule on one client's requests for one resource.

    ``client``, ``producer_group``, ``user`` and ``product`` are ``_other`` beyond a bound. All but ``client`` are empty
    if unknown.
    """

    resource: Resource
    client: str
    producer_group: str
    rule: str
    verdict: RejectionVerdict
    amount: Amount
    wait_max_us: int  # in microseconds, 0 if the verdict states none
    user: str = ""
    product: str = ""  # name and version of the client


class TrafficSecond(msgspec.Struct, gc=False):
    at_s: int  # start, in seconds since 1970 UTC
    resources: tuple[ResourceSecond, ...]
    rejections: tuple[Rejection, ...]
    other: int  # requests counted under ``_other`` because of a bound
    seconds: int = 1  # more than one if it was collected late
    stepped_s: int = 0  # seconds that the wall clock was set forward since the last one. Negative: back
