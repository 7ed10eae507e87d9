"""The two fixtures of aiormq's tests that its source distribution lacks."""

import os
from types import SimpleNamespace

import pytest
from yarl import URL


@pytest.fixture
def amqp_direct_url() -> URL:
    return URL(os.environ["AMQP_URL"])


@pytest.fixture
def rabbitmq_container() -> SimpleNamespace:
    """Tests with TLS are not run, but the fixture of all addresses requires a port for it."""
    return SimpleNamespace(ports={"5671/tcp": 5671})
