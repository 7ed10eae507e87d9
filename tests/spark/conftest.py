"""What tests with Spark share: one session for all of them, since its start takes longer than most tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from log_maker import SHAPES, Shape, make, soil
from log_maker.dirt import Soiled
from pyspark.sql import SparkSession

from admin.analytics.findings import Inputs
from admin.analytics.inputs import find
from admin.analytics.lines import Wanted
from admin.analytics.options import Options
from admin.analytics.report import Tools, find_instances, make_tables, recommend
from admin.analytics.spark import SparkOptions, open_session
from admin.analytics.tables import Store


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores; without Java or pyspark the tests fail with the command that installs it."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session(SparkOptions(master="local[2]", driver_memory="1g", log=log, brief=True)) as session:
        yield session


@pytest.fixture(scope="session")
def tools(spark: SparkSession) -> Callable[[Path], Tools]:
    """Returns what makes the tables in a folder, with several tasks, so that rows are moved."""

    def make_tools(out: Path, tasks: int = 3) -> Tools:
        store = Store(spark, str(out))
        return Tools(spark, store, str(out / "_scratch"), tasks, lambda _what: None)

    return make_tools


@dataclass(frozen=True)
class Case:
    """Logs as they come, and the report's tables of them."""

    logs: Path
    records: int
    soiled: Soiled
    out: Path
    inputs: Inputs

    def files(self) -> list[Path]:
        """Return the files that are not hidden."""
        return sorted(file for file in self.logs.rglob("*.jsonl*") if not file.name.startswith("."))


@pytest.fixture(scope="session")
def case(tools: Callable[[Path], Tools], tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Logs of all shapes, each of instances named after it, in one report: a job costs more than its rows here."""
    folder = tmp_path_factory.mktemp("case")
    logs, out = folder / "logs", folder / "out"
    made = {
        name: make(logs / name, _small(shape), 6_000, lines=2_000, name=name, seed=seed)
        for seed, (name, shape) in enumerate(SHAPES.items(), 1)
    }
    soiled = soil(logs, made["stormy"])
    inputs = make_tables(tools(out), find([str(logs)]), Options(), Wanted())
    recommend(tools(out), Options(), find_instances(tools(out), Options()))
    return Case(logs, sum(each.records for each in made.values()), soiled, out, inputs)


def _small(shape: Shape) -> Shape:
    return replace(
        shape,
        resources=30,
        active=3,
        storms_per_minute=min(0.1, shape.storms_per_minute),
        storm_s=min(60.0, shape.storm_s),
        clients=4,
        hot_clients=min(4, shape.hot_clients),
    )
