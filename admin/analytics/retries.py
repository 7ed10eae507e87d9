"""Retries: how much of what was asked for is the same again, sent anew because it was refused.

**Measured.** Where the protocol gives messages an id, the sidecar counts those that had been refused a moment ago and
came again (``repeated``), and says how many of what it refused had an id (``identified``). Where nearly all of them had
one, what was wanted is what was asked for less what came again, second by second.

**Assumed.** Otherwise the log says only which language clients are written in, and how often such a client tries by
default is known. With up to T attempts, each admitted with the same chance p (the share of the second that was
admitted), an original request makes on average ``E = 1 + (1-p) + … + (1-p)^(T-1) = (1 - (1-p)^T) / p`` attempts, T for
p = 0. What was wanted is what was asked for divided by E; it is never less than what was admitted. Of several
languages, each takes the part of the refused requests that it made: within a second all have the same p, so that this
is its part of all attempts, too. Who was refused without being told (one-way requests) does not try again.

Pure: no Spark and no I/O.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

MEASURED_SHARE: Final = 0.95
"""At least this share of the refused requests had a message id where retries count as measured."""


def default_attempts() -> dict[str, int]:
    """Return how often clients try when they are refused as busy, by the language they name, as protocols know it.

    Only where Sluice is installed: Spark's Python elsewhere has the package, but no entry points.
    """
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - executors go without it

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}


class Traffic(Protocol):
    """What is needed of a minute: fields of ``TrafficRecord``, languages as pairs of requests and refused requests."""

    @property
    def busy_answers(self) -> int:
        """Refusals that were answered."""
        ...

    @property
    def languages(self) -> Mapping[str, tuple[int, int]]:
        """Requests and refused requests by language."""
        ...

    @property
    def identified(self) -> int:
        """Refused requests with a message id."""
        ...

    @property
    def second_admitted(self) -> Sequence[int]:
        """Messages that were admitted, by second."""
        ...

    @property
    def second_refused(self) -> Sequence[int]:
        """Messages that were not."""
        ...

    @property
    def second_repeated(self) -> Sequence[int]:
        """Messages that came again; may be empty."""
        ...


def shares(minute: Traffic, refused_requests: int, attempts: Mapping[str, int]) -> list[float] | None:
    """Return which share of each second's messages is left without retries; None if all of it is.

    Args:
        minute: with its seconds.
        refused_requests: refused and dropped in it.
        attempts: how often a client tries in all, by language; all others try once.
    """
    known = _without_repeats(minute)
    if is_measured(refused_requests, minute.identified):
        return known
    # Where some of the refused have ids, at least these repeats are known.
    if not any(minute.second_refused):
        return known
    parts = _parts(minute, attempts)
    if not parts:
        return known
    assumed = [
        _left(admitted, refused, parts)
        for admitted, refused in zip(minute.second_admitted, minute.second_refused, strict=True)
    ]
    return assumed if known is None else [min(each) for each in zip(assumed, known, strict=True)]


def _without_repeats(minute: Traffic) -> list[float] | None:
    """Return which share of each second's messages did not come again; None if all did not."""
    if not any(minute.second_repeated):
        return None
    return [
        max(0.0, 1.0 - again / (admitted + refused)) if admitted + refused else 1.0
        for admitted, refused, again in zip(
            minute.second_admitted, minute.second_refused, minute.second_repeated, strict=True
        )
    ]


def is_measured(refused_requests: int, identified_requests: int) -> bool:
    """Say whether retries are known by counting them."""
    return bool(refused_requests) and identified_requests >= MEASURED_SHARE * refused_requests


def _parts(minute: Traffic, attempts: Mapping[str, int]) -> dict[int, float]:
    """Return the part of the refused requests that makes each number of attempts above one; the rest makes one."""
    refused = sum(each[1] for each in minute.languages.values())
    if not refused:
        return {}
    told = min(1.0, minute.busy_answers / refused)
    found: dict[int, float] = {}
    for language, (_, its) in minute.languages.items():
        most = attempts.get(language, 1)
        if most > 1 and its and told:
            found[most] = found.get(most, 0.0) + told * its / refused
    return found


def _left(admitted: int, refused: int, parts: Mapping[int, float]) -> float:
    """Return which share of a second's messages is left.

    Args:
        admitted: messages of the second.
        refused: likewise.
        parts: see ``_parts``.
    """
    if not refused:
        return 1.0
    missed = refused / (admitted + refused)
    left = 1.0
    for most, part in parts.items():
        expected = sum(missed**before for before in range(most))
        left -= part - part / expected
    return left
