"""Rejection logs whose truth is known, and a count of logs in plain Python: two opinions on what a report says.

``make`` writes logs of four sidecars over five days, with what logs of the real world have, and says what is in them
because it has planned it. ``count`` reads logs, any logs, and adds up. Neither shares a line with ``admin.analytics``,
or with the other: what the three agree on is not one mistake made thrice.
"""

from log_truth.counting import count
from log_truth.making import Made, Plan, make
from log_truth.truth import Amount, Resource, Storm, Truth

__all__ = ["Amount", "Made", "Plan", "Resource", "Storm", "Truth", "count", "make"]
