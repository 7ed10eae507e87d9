"""What a report decides before Spark does anything."""

from types import SimpleNamespace
from typing import Any

import pytest

from admin.analytics.inputs import Found
from admin.analytics.job.report import _size_shuffles

_MB = 1024 * 1024


def partitions(found: Found, master: str, given: str | None) -> str | None:
    """Return how many tasks shuffles get; None leaves it at what Spark was told."""
    told: dict[str, str] = {}
    conf = {} if given is None else {"spark.sql.shuffle.partitions": given}
    context = SimpleNamespace(master=master, defaultParallelism=4, getConf=lambda: conf)
    session: Any = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=told.__setitem__))
    _size_shuffles(session, found)
    return told.get("spark.sql.shuffle.partitions")


@pytest.mark.parametrize(("size_mb", "tasks"), [(1, "4"), (480, "10"), (1_000_000, "400")])
@pytest.mark.parametrize(("master", "given"), [("local[4]", "8"), ("spark://a:7077", None)])
def test_shuffles_go_by_the_size_of_the_log(size_mb: int, tasks: str, master: str, given: str | None) -> None:
    assert partitions(Found(("logs",), ("a.jsonl",), size_bytes=size_mb * _MB), master, given) == tasks


def test_what_a_cluster_was_told_stays() -> None:
    assert partitions(Found(("logs",), ("a.jsonl",), size_bytes=_MB), "spark://a:7077", "64") is None


@pytest.mark.parametrize("master", ["local[4]", "k8s://a"])
def test_of_an_address_nobody_knows_the_size(master: str) -> None:
    assert partitions(Found(("s3a://b/c",), (), ("s3a://b/c",)), master, None) is None
