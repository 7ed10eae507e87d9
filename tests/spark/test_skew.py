"""A topic with 90 % of all records gives no task much more to do than the others; counted in bytes, not timed."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from pyspark.sql import SparkSession

from admin.analytics.inputs import find
from admin.analytics.lines import Wanted
from admin.analytics.options import Options
from admin.analytics.report import Tools, find_instances, make_tables, recommend

pytestmark = pytest.mark.long

START_S = 1_700_092_800
HOURS = 96
EACH_HOUR = 40
"""Seconds with refusals."""
HOT_CLIENTS = 10
PARTITIONS = 8
MULTIPLE = 3.0
"""No task reads more than so many times the bytes of the median task of its stage."""
LARGE = 0.05
"""Stages that read less than this part of all bytes do not matter."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Write logs of four days, in as many files as there are to be tasks; return how many bytes."""
    draw = random.Random(3)
    folder = tmp_path_factory.mktemp("skew")
    records = [
        (START_S + 3600 * hour + second, "hot", f"10.0.0.{client}")
        for hour in range(HOURS)
        for second in range(EACH_HOUR)
        for client in range(HOT_CLIENTS)
    ]
    records += [
        (START_S + draw.randrange(HOURS * 3600), f"topic-{draw.randrange(40)}", f"10.0.1.{draw.randrange(40)}")
        for _ in range(len(records) // 9)
    ]
    draw.shuffle(records)
    for number in range(PARTITIONS):
        lines = [
            json.dumps({
                "type": "rejection", "v": 1, "instance": "broker:10911", "run": f"run-{number}", "n": n, "at_s": at_s,
                "kind": "topic", "name": name, "client": client, "producer_group": "g", "rule": "r",
                "verdict": "refuse", "requests": 1, "messages": 1, "bytes": 100,
            })
            for n, (at_s, name, client) in enumerate(records[number::PARTITIONS], 1)
        ]  # fmt: skip
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder, sum(file.stat().st_size for file in folder.iterdir())


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    before = {key: spark.conf.get(key) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.set(key, old)


def stages(spark: SparkSession) -> dict[int, list[int]]:
    """Return how many bytes each task of each stage read, from Spark's own count."""
    store: Any = spark._jsc.sc().statusStore()
    found = {}
    empty = spark._jvm.java.util.ArrayList()
    quantiles = spark.sparkContext._gateway.new_array(spark._jvm.double, 0)
    listed = store.stageList(empty, False, False, quantiles, empty)
    for at in range(listed.size()):
        stage = listed.apply(at)
        tasks = store.taskList(stage.stageId(), stage.attemptId(), 1_000)
        read = []
        for number in range(tasks.size()):
            metrics = tasks.apply(number).taskMetrics()
            if metrics.isDefined():
                every = metrics.get()
                shuffled = every.shuffleReadMetrics()
                read.append(every.inputMetrics().bytesRead() + shuffled.localBytesRead() + shuffled.remoteBytesRead())
        found[stage.stageId()] = read
    return found


def test_hot_topic_gives_no_task_much_more_to_do(
    spark: SparkSession, tools: Callable[..., Tools], logs: tuple[Path, int], tmp_path: Path
) -> None:
    folder, size_bytes = logs
    known = stages(spark)
    # As on a large input: nothing is put together because it is small.
    largest = max(file.stat().st_size for file in folder.iterdir())
    with settings(spark, **{"spark.sql.files.maxPartitionBytes": str(largest)}):
        its = tools(tmp_path / "out", PARTITIONS)
        make_tables(its, find([str(folder)]), Options(), Wanted())
        recommend(its, Options(), find_instances(its, Options()))
    found = {stage: read for stage, read in stages(spark).items() if stage not in known}
    # What is written is packed, and a stage that reads it is large at a part of the size.
    large = {stage: read for stage, read in found.items() if len(read) > 1 and sum(read) >= LARGE * size_bytes}
    assert len(large) >= 2, found
    for stage, read in large.items():
        print(f"stage {stage}: {len(read)} tasks, {sum(read)} bytes, {max(read) / max(median(read), 1):.2f}")
        assert max(read) <= MULTIPLE * max(median(read), 1), (stage, sorted(read))
