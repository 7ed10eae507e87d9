"""Rejection logs whose truth is known, and a count of logs in plain Python: two opinions on what a report says."""

from log_truth.counting import count
from log_truth.making import Made, make
from log_truth.truth import Amount, Resource, Storm, Truth

__all__ = ["Amount", "Made", "Resource", "Storm", "Truth", "count", "make"]
