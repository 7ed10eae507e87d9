"""Sessions, read by Python alone, and lent to the compiled part wherever that may read."""

import pytest
from amqp_playbook.driver import Driver

from limiter.compiled import COMPILED


@pytest.fixture(autouse=True, params=["python", *(["compiled"] if COMPILED else [])])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Say what reads the frames in a test; each is run with both."""
    monkeypatch.setattr(Driver, "lends", request.param == "compiled")
    name: str = request.param
    return name
