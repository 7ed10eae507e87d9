import pytest
from playbook.extension import Extension


@pytest.fixture
def extension() -> Extension:
    """An extension without any cached headers."""
    return Extension()


@pytest.fixture(scope="session")
def seasoned() -> Extension:
    """One that has read the headers of all tests."""
    return Extension()
