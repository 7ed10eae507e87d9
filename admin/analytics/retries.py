"""Retries: how much of the demand is the same requests again, sent because they were refused.

**Measured.** Where messages have ids, the sidecar counts those that had been refused a moment ago and came again
(``repeated``), and the refused requests with an id (``identified``). The demand is what came, less the repeats.

**Assumed.** For refused requests without an id the log has only the language of the client, whose default number of
attempts T is known. If each attempt is admitted with the chance p, the admitted share of the second, a request makes on
average ``E = 1 + (1-p) + … + (1-p)^(T-1)`` attempts. The demand is what came divided by E, but at least what was
admitted. Each language counts by its part of the refused requests, which is its part of all attempts as p is the same
for all. Requests refused without an answer (one-way) are not retried.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

MEASURED_SHARE: Final = 0.95
"""With ids on this share of the refused requests of a minute, all count as measured."""
_Values = NDArray[np.float64]
_Ints = NDArray[np.int64]


class _Rows(Protocol):
    """Rows of the table ``minutes``: by minute, and by second with the minute's row."""

    row: _Ints

    def __getitem__(self, name: str) -> Any: ...

    def seconds(self, name: str) -> _Ints: ...

    def languages(self) -> tuple[_Ints, list[str], _Ints]: ...


def default_attempts() -> dict[str, int]:
    """Return how often clients try when refused as busy, by language.

    Only where Sluice is installed: Spark's executors have the package but no entry points.
    """
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - not on executors

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}


def left_of(rows: _Rows, attempts: Mapping[str, int]) -> tuple[_Values, int, int]:
    """Return the part of each second that is not retries.

    Args:
        rows: minutes.
        attempts: how often a client tries in all, by language; others try once.

    Returns:
        The parts, and how many refused requests had their retries counted, and assumed.
    """
    row, admitted, refused = rows.row, rows.seconds("admitted"), rows.seconds("refused")
    asked = np.maximum(1, admitted + refused)
    left = np.maximum(0.0, 1.0 - rows.seconds("repeated") / asked)
    requests = rows["refused_requests"] + rows["dropped_requests"]
    identified = np.minimum(rows["identified"], requests)
    unknown = np.where(identified >= MEASURED_SHARE * requests, 0, requests - identified)
    measured = int(np.where(unknown > 0, identified, requests).sum())
    parts = _parts(rows, attempts, len(requests)) if unknown.any() else {}
    if not parts:
        return left, measured, 0
    missed = refused / asked
    again = sum(
        part[row] * (1 - 1 / sum(missed**before for before in range(most))) for most, part in sorted(parts.items())
    )
    # Repeats with an id are counted already; the others are assumed to repeat for their part of the refusals.
    by_ids = (unknown / np.maximum(1, requests))[row]
    left = np.maximum(left - again * by_ids, np.minimum(left, admitted / asked))
    return left, measured, int(unknown[sum(parts.values()) > 0].sum())


def _parts(rows: _Rows, attempts: Mapping[str, int], count: int) -> dict[int, _Values]:
    """Return each minute's part of the refused requests by number of attempts, if more than one."""
    row, languages, refused = rows.languages()
    total = np.bincount(row, refused, count)
    answered = np.minimum(1.0, rows["busy_answers"] / np.maximum(1, total))
    most = np.array([attempts.get(language, 1) for language in languages], np.int64)
    return {
        each: answered * np.bincount(row, refused * (most == each), count) / np.maximum(1, total)
        for each in np.unique(most).tolist()
        if each > 1
    }
