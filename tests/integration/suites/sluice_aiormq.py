"""The two fixtures of aiormq's tests that its source distribution lacks: where the broker is."""

import os
from types import SimpleNamespace

import pytest
from yarl import URL


@pytest.fixture
def amqp_direct_url() -> URL:
    """What the variable AMQP_URL says."""
    return URL(os.environ["AMQP_URL"])


@pytest.fixture
def rabbitmq_container() -> SimpleNamespace:
    """No TLS: the tests with it are not run, but the fixture of all addresses asks for its port."""
    return SimpleNamespace(ports={"5671/tcp": 5671})
