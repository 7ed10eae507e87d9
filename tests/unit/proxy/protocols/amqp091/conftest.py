"""Sessions, read by Python and by the compiled part."""

import pytest
from amqp_playbook.driver import Driver

from limiter.compiled import COMPILED


@pytest.fixture(autouse=True, params=["python", *(["compiled"] if COMPILED else [])])
def scan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Say what reads the frames in a test; each is run with both."""
    monkeypatch.setattr(Driver, "scans", request.param == "compiled")
    name: str = request.param
    return name
