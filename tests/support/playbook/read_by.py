"""A fixture that runs each test of a module with every reader of the client's stream."""

from collections.abc import Iterator

import pytest

from playbook.playbook import READ_BY, READINGS


@pytest.fixture(autouse=True, params=READINGS, ids=lambda reading: reading.replace(" ", "_"))
def read_by(request: pytest.FixtureRequest) -> Iterator[None]:
    """A client on trial in a session that can be lent, and in one for Python alone."""
    token = READ_BY.set(request.param)
    yield
    READ_BY.reset(token)
