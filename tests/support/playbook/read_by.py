"""A fixture that lets each test of a module read the client's stream in every way there is."""

from collections.abc import Iterator

import pytest

from playbook.playbook import READ_BY, READINGS


@pytest.fixture(autouse=True, params=READINGS, ids=lambda reading: reading.replace(" ", "_"))
def read_by(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read as of a client on trial in a session that may be lent, and in one for Python alone."""
    token = READ_BY.set(request.param)
    yield
    READ_BY.reset(token)
