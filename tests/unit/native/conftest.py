"""The compiled part."""

import pytest
from playbook.extension import Extension


@pytest.fixture
def extension() -> Extension:
    """An extension that has read nothing yet."""
    return Extension()


@pytest.fixture(scope="session")
def seasoned() -> Extension:
    """One that remembers what all tests gave it to read."""
    return Extension()
