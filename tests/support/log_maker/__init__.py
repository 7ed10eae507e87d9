"""Rejection logs made up for tests and benches: always the same for the same arguments, and fast enough for millions.

``make`` writes clean logs of one of the ``SHAPES``, ``soil`` adds what logs of the real world have: copies, broken
lines, files that come late. What is written is what ``admin.rejection_log.records`` defines, without going through it:
it would take too long.
"""

from log_maker.dirt import soil
from log_maker.making import Made, make
from log_maker.shapes import SHAPES, Shape

__all__ = ["SHAPES", "Made", "Shape", "make", "soil"]
