"""Figures that several answers of the HTTP API have."""

import msgspec


class Verdicts(msgspec.Struct, frozen=True):
    """How much of what was asked for came to what end: counts, or rates per second.

    Attributes:
        passed: past the limits, with what is shadowed.
        refused: over a limit.
        shadowed: of what passed, what a shadow rule would have refused.
        bypassed: passed, since a handler was skipped.
        exempt: passed, since the client is never limited.
        dropped: was held, and then its client left.
    """

    passed: float = 0
    refused: float = 0
    shadowed: float = 0
    bypassed: float = 0
    exempt: float = 0
    dropped: float = 0


class RuleRates(msgspec.Struct, frozen=True):
    """What one rule does, in messages per second; what it lets pass is not counted.

    Attributes:
        refused: over its limit.
        held: made to wait.
        shadowed: passed, though the rule would have refused it.
    """

    refused: float = 0
    held: float = 0
    shadowed: float = 0


class History(msgspec.Struct, frozen=True):
    """Messages per second over the last minutes, oldest first.

    Attributes:
        step_s: seconds between two points.
        passed: mean of each step, with what a shadow rule would have refused.
        refused: mean of each step.
    """

    step_s: float
    passed: tuple[float, ...]
    refused: tuple[float, ...]
