"""What every test run shares: generated cases are the same from run to run, unless more are asked for."""

import os

from hypothesis import settings

_FACTOR = max(1, int(os.environ.get("SLUICE_FUZZ_FACTOR", "1")))
"""SLUICE_FUZZ_FACTOR=20 makes twenty times the fuzz cases of a normal run, all of them drawn anew."""

# A run that passes here passes there: what a change broke is told apart from what a new draw has found.
settings.register_profile("sluice", max_examples=100 * _FACTOR, derandomize=_FACTOR == 1, deadline=None)
settings.load_profile("sluice")
