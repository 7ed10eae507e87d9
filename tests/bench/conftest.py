"""The bench's modules are scripts beside each other, not a package. Its tests find them as the scripts do."""

import sys
from pathlib import Path

BENCH = str(Path(__file__).resolve().parent)
if BENCH not in sys.path:
    sys.path.append(BENCH)
