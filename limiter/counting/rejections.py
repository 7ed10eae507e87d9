"""Data types for one second of the rejection log."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from limiter.rules.resource import Resource

Outcome = Literal["admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped"]
"""Outcomes of requests.

A held request is counted as held, and again when it is admitted, shadowed, refused or dropped. All other requests are
counted once. Forwarded requests are admitted + shadowed + bypassed + exempt. Adding refused + dropped gives the demand.
A request for credit is counted as held, with the number of messages granted. These messages are counted as admitted
when they arrive. If a connection breaks, the broker may not have read the last requests that were counted.
"""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
NUMBERS: Final = {outcome: number for number, outcome in enumerate(OUTCOMES)}
RejectionVerdict = Literal["refuse", "shadow", "hold"]
"""A held request that is later refused counts under both verdicts."""
DID: Final[dict[RejectionVerdict, Outcome]] = {"refuse": "refused", "shadow": "shadowed", "hold": "held"}

OTHER: Final = "_other"
"""Names beyond a maximum number are counted under this name."""
DEFAULT_TOLD_APART: Final = 2_500


Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""The upper bound keeps sums from overflowing."""


class Amount(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Counts, encoded as ``[requests, messages, bytes]``. For consumers, the bytes are the size of the answers."""

    requests: Count = 0
    messages: Count = 0
    size_bytes: Count = 0


def add_up(one: Amount, other: Amount) -> Amount:
    return Amount(one.requests + other.requests, one.messages + other.messages, one.size_bytes + other.size_bytes)


class ResourceSecond(msgspec.Struct, gc=False):
    resource: Resource
    outcomes: dict[Outcome, Amount]
    busy_answers: int  # refusals sent to clients. One-way requests get no answer
    # (requests, refused requests) for up to ``MAX_LANGUAGES`` client languages. An unknown language is empty.
    languages: dict[str, tuple[int, int]]
    clients: tuple[str, ...]  # at most ``MAX_SENDERS`` addresses
    more_clients: bool
    repeated: Amount = Amount()
    identified: int = 0  # refused and dropped requests whose repeats will be recognized


class Rejection(msgspec.Struct, gc=False):
    """One rule's verdicts on a client's requests for a resource. Strings are empty if unknown."""

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
    at_s: int  # start time, in seconds since 1970 UTC
    resources: tuple[ResourceSecond, ...]
    rejections: tuple[Rejection, ...]
    other: int  # runs of requests counted as ``_other`` because a bound was reached
    seconds: int = 1
    stepped_s: int = 0  # change of the wall clock since the previous second. Negative if it was set back
