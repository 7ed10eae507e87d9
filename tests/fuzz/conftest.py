"""The effort of the fuzz tests: FUZZ_FACTOR=20 makes twenty times the cases of a normal run."""

import os

import pytest

_FACTOR = max(1, int(os.environ.get("FUZZ_FACTOR", "1")))


@pytest.fixture(scope="session")
def factor() -> int:
    """A multiple of the cases of a normal run."""
    return _FACTOR
