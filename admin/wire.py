"""What the HTTP API and those who ask it agree on: its paths, and the form of its errors."""

from typing import Final

import msgspec

EXPLAIN: Final = "/api/v1/explain"
"""What would limit a request: GET with ``kind``, ``name`` and, if they matter, ``client``, ``producer_group``,
``listener``, ``at``; the answer is a ``control.Explanation``."""

PROBLEM: Final = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not answered.

    Attributes:
        type: always ``about:blank``: the status says all that a program can make of it.
        title: the status in words.
        status: the HTTP status.
        detail: what is wrong and what is allowed, for people.
        parameter: the query parameter that it is about.
    """

    type: str = "about:blank"
    title: str = "Bad Request"
    status: int = 400
    detail: str
    parameter: str
