"""How hard the fuzz tests try: SLUICE_FUZZ_FACTOR=20 makes twenty times the cases of a normal run."""

import os

import pytest
from hypothesis import settings

_FACTOR = max(1, int(os.environ.get("SLUICE_FUZZ_FACTOR", "1")))

settings.register_profile("fuzz", max_examples=100 * _FACTOR, deadline=None)


@pytest.fixture(scope="session")
def factor() -> int:
    """How many times the cases of a normal run are wanted."""
    return _FACTOR
