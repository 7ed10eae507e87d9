"""How hard the fuzz tests try: FUZZ_FACTOR=20 makes twenty times the cases of a normal run."""

import os

import pytest

_FACTOR = max(1, int(os.environ.get("FUZZ_FACTOR", "1")))


@pytest.fixture(scope="session")
def factor() -> int:
    """How many times the cases of a normal run are wanted."""
    return _FACTOR
