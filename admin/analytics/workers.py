"""Spark's Python processes on this machine: what starts them, in place of ``pyspark.daemon``.

All of them are forked from this one, so that what they need is imported once.
"""

import pyarrow as pa
import pyspark.worker  # noqa: F401 - what the processes run
from pyspark.daemon import manager

from admin.analytics import combine, kernels, lines  # noqa: F401 - what they run it with

if __name__ == "__main__":
    # It looks for pandas, which takes longer to import than all else.
    pa.array([0])
    manager()
