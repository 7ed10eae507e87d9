"""Rejection logs made up for tests and benches: always the same for the same arguments, and fast enough for
millions.
"""

from log_maker.dirt import soil
from log_maker.making import Made, make
from log_maker.shapes import SHAPES, Shape

__all__ = ["SHAPES", "Made", "Shape", "make", "soil"]
