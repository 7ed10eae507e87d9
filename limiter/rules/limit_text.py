"""Parses limits that the command line accepts in the form ``KIND:NAME=RATE/s``."""

import re
from collections.abc import Callable
from typing import Final

from limiter.rules.errors import RuleError
from limiter.rules.rule import Rule

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_RATE = re.compile(rf"({_NUMBER})/s")
_BARE_NUMBER = re.compile(_NUMBER)
_OTHER_UNIT = re.compile(rf"{_NUMBER}/[a-z]+", re.IGNORECASE)
_NEGATIVE = re.compile(rf"-{_NUMBER}(/s)?")
_ALLOWED: Final = "KIND:NAME=RATE/s (messages per second), KIND:NAME=0/s or KIND:NAME=unlimited"


def parse_limit(text: str, make: Callable[[str, str, float | None], Rule] = Rule, example: str = "") -> Rule:
    """Parse ``KIND:NAME=RATE/s``, ``KIND:NAME=0/s`` or ``KIND:NAME=unlimited``. Error messages include ``example``.

    The name may contain ``:``, but not ``=``, ``,`` or white space, because these separate limits in a list.

    Raises:
        RuleError: the text does not have this form, or the rule is invalid.
    """
    allowed = f"{_ALLOWED}, e.g. {example}" if example else _ALLOWED
    target, equals, rate = text.rpartition("=")
    kind, colon, pattern = target.partition(":")
    if not (equals and colon and kind and pattern):
        raise RuleError(f"limit {text!r} does not have the form KIND:NAME=RATE/s", allowed)
    if any(character in "=," or character.isspace() for character in target):
        raise RuleError(
            f"limit {text!r}: {pattern!r} contains '=', a comma or white space; write the limit in the"
            " configuration file",
            allowed,
        )
    if rate == "unlimited":
        rate_per_s = None
    elif number := _RATE.fullmatch(rate):
        rate_per_s = float(number[1])
    else:
        raise RuleError(f"limit {text!r}: {_why_no_rate(rate)}", allowed)
    try:
        return make(kind, pattern, rate_per_s)
    except RuleError as error:
        raise RuleError(f"limit {text!r}: {error.what}", error.allowed, error.attribute) from None


def _why_no_rate(text: str) -> str:
    if _BARE_NUMBER.fullmatch(text):
        return f"the rate needs a unit: {text}/s"
    if _OTHER_UNIT.fullmatch(text):
        return f"rate {text!r} has an unknown unit; rates are per second"
    if _NEGATIVE.fullmatch(text):
        return f"rate {text!r} is negative; 0/s refuses everything"
    if text.lower() == "unlimited":
        return f"rate {text!r} must be in lower case: unlimited"
    return f"invalid rate {text!r}"
