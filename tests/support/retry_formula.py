"""The correction for retries as it is written down, in plain Python, for tests that compare the kernels with it."""

from collections.abc import Mapping


def weights(
    languages: Mapping[str, tuple[int, int]], busy_answers: int, attempts: Mapping[str, int]
) -> dict[int, float]:
    """Return which part of the refused requests makes how many attempts; the rest makes one."""
    refused = sum(refused for _, refused in languages.values())
    found: dict[int, float] = {}
    for language, (_, count) in languages.items():
        most = attempts.get(language, 1)
        if most > 1 and count:
            found[most] = found.get(most, 0.0) + min(1.0, busy_answers / refused) * count / refused
    return found


def corrected(admitted: float, refused: float, parts: Mapping[int, float]) -> float:
    """Return what was wanted in a second with this many messages admitted and refused."""
    asked = admitted + refused
    if not refused:
        return asked
    wanted = 1.0 - sum(parts.values())
    for attempts, part in sorted(parts.items()):
        wanted += part / sum((refused / asked) ** before for before in range(attempts))
    return asked * wanted
