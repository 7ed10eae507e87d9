"""Retries: how much of the demand is the same requests again, sent because they were refused.

**Measured.** Where messages have ids, the sidecar counts those that had been refused a moment ago and came again
(``repeated``), and the refused requests with an id (``identified``). The demand is what came, less the repeats.

**Assumed.** For refused requests without an id the log has only the language of the client, whose default number of
attempts T is known. If each attempt is admitted with the chance p, the admitted share of the second, a request makes on
average ``E = 1 + (1-p) + … + (1-p)^(T-1) = (1 - (1-p)^T) / p`` attempts, or T for p = 0. The demand is what came
divided by E, but at least what was admitted. Each language counts by its part of the refused requests, which is its
part of all attempts as p is the same for all. Requests refused without an answer (one-way) are not retried.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MEASURED_SHARE: Final = 0.95
"""With ids on this share of the refused requests, all count as measured."""


def default_attempts() -> dict[str, int]:
    """Return how often clients try when refused as busy, by language.

    Only where Sluice is installed: Spark's executors have the package but no entry points.
    """
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - not on executors

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}


class Shares(NamedTuple):
    """The part of each second's messages that is not retries.

    Attributes:
        measured: refused requests whose retries were counted.
        assumed: refused requests whose retries were assumed.
    """

    left: NDArray[np.float64]
    measured: int = 0
    assumed: int = 0


def shares(  # noqa: PLR0917 - columns of one minute
    admitted: NDArray[np.int64],
    refused: NDArray[np.int64],
    repeated: NDArray[np.int64],
    refused_requests: int,
    identified: int,
    busy_answers: int,
    languages: Mapping[str, tuple[int, int]],
    attempts: Mapping[str, int],
) -> Shares:
    """Return the part of a minute's messages that is not retries.

    Args:
        admitted: messages by second.
        refused: messages by second.
        repeated: messages by second; may be empty.
        refused_requests: refused and dropped in the minute.
        identified: how many of them had a message id.
        busy_answers: refusals that were answered.
        languages: requests and refused requests by language.
        attempts: how often a client tries in all, by language; others try once.
    """
    asked = np.maximum(1, admitted + refused)
    left = np.ones(len(asked)) if not len(repeated) else np.maximum(0.0, 1.0 - repeated / asked)
    identified = min(identified, refused_requests)
    unknown = 0 if identified >= MEASURED_SHARE * refused_requests else refused_requests - identified
    parts = _parts(languages, busy_answers, attempts) if unknown else {}
    if parts and refused.any():
        missed = refused / asked
        again = sum(part - part / sum(missed**before for before in range(most)) for most, part in parts.items())
        # Repeats with an id are counted already; the others are assumed to repeat for their part of the refusals.
        left = np.maximum(left - again * (unknown / refused_requests), np.minimum(left, admitted / asked))
    return Shares(left, identified if unknown else refused_requests, unknown if parts else 0)


def _parts(
    languages: Mapping[str, tuple[int, int]], busy_answers: int, attempts: Mapping[str, int]
) -> dict[int, float]:
    """Return the part of the refused requests by number of attempts, if more than one."""
    refused = sum(its for _, its in languages.values())
    told = min(1.0, busy_answers / refused) if refused else 0.0
    found: dict[int, float] = {}
    for language, (_, its) in languages.items():
        most = attempts.get(language, 1)
        if most > 1 and its and told:
            found[most] = found.get(most, 0.0) + told * its / refused
    return found
