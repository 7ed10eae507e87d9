"""Sessions read by Python alone, and lent to the compiled extension wherever possible."""

import pytest
from amqp_playbook.driver import Driver

from limiter.compiled import COMPILED


@pytest.fixture(autouse=True, params=["python", *(["compiled"] if COMPILED else [])])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Selects the reader of frames. Each test runs with both."""
    monkeypatch.setattr(Driver, "lends", request.param == "compiled")
    name: str = request.param
    return name
