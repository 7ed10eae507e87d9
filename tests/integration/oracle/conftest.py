"""The oracle: the real broker's decoder."""

from collections.abc import Iterator

import pytest
from oracle.asking import Oracle


@pytest.fixture(scope="session")
def oracle(java_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with Oracle(java_classpath, tmp_path_factory.mktemp("oracle")) as running:
        yield running
