"""What tests with Spark share: one session for all of them, since its start takes longer than most tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from admin.analytics.report import Tools
from admin.analytics.spark import SparkOptions, open_session
from admin.analytics.tables import Store


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores; without Java or pyspark the tests fail with the command that installs it."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session(SparkOptions(master="local[2]", driver_memory="1g", log=log, log_bytes=0)) as session:
        yield session


@pytest.fixture(scope="session")
def tools(spark: SparkSession) -> Callable[[Path], Tools]:
    """Returns what makes the tables in a folder, with several tasks, so that rows are moved."""

    def make_tools(out: Path, tasks: int = 3) -> Tools:
        store = Store(spark, str(out))
        return Tools(spark, store, str(out / "_scratch"), tasks, lambda _what: None)

    return make_tools
