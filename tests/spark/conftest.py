"""One session for all tests with Spark, since its start takes longer than most tests."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from admin.analytics.inputs import find
from admin.analytics.job import Wish, make_report
from admin.analytics.once import Seen
from admin.analytics.options import Options
from admin.analytics.spark import SparkOptions, open_session

Report = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores; without Java or pyspark the tests fail with the command that installs it."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session(SparkOptions(master="local[2]", log=log, log_bytes=0)) as session:
        # So that rows are moved.
        session.conf.set("spark.sql.shuffle.partitions", "3")
        yield session


@pytest.fixture(scope="session")
def report(spark: SparkSession) -> Report:
    """Makes a report in this process, into a directory, and returns its results; files that are ``gone`` were found."""

    def make(out: Path, *logs: Path, once: bool = False, gone: Iterable[Path] = (), **options: Any) -> dict[str, Any]:
        named = tuple(map(str, logs))
        here = SparkOptions(master="local[2]")
        wish = Wish(logs=named, out=str(out), html=None, options=Options(**options), spark=here, once=once)
        found = find(named, wish.options.since_s, wish.options.until_s)
        for file in gone:
            file.unlink()
        seen = Seen.read(out, wish.options) if once else None
        return make_report(spark, wish, found, lambda _step: None, seen)

    return make
