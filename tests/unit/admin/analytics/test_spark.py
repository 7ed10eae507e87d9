import os
from pathlib import Path

import pyspark
import pytest

from admin.analytics import spark
from admin.analytics.spark import SparkOptions, read_conf
from admin.common.errors import SettingsError


def test_sparks_options_are_key_and_value() -> None:
    assert read_conf(("spark.a=b=c", "spark.d=")) == (("spark.a", "b=c"), ("spark.d", ""))


@pytest.mark.parametrize("word", ["spark.a", "a=b"])
def test_what_is_no_option_of_sparks_is_refused(word: str) -> None:
    with pytest.raises(SettingsError, match="must be KEY=VALUE"):
        read_conf((word,))


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        ("", True),
        ("local", True),
        ("local[2]", True),
        ("spark://a:7077", False),
        ("yarn", False),
        ("sc://a:15002", False),
    ],
)
def test_local_masters_are_told_from_clusters(master: str, is_local: bool) -> None:  # noqa: FBT001 - expected
    assert SparkOptions(master=master).is_local is is_local
    assert SparkOptions(master=master).is_connect is master.startswith("sc:")


def test_a_session_here_is_quiet_and_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    found = spark._settings(SparkOptions(driver_memory="2g"), tmp_path, {})
    assert found["spark.driver.memory"] == "2g"
    assert found["spark.ui.enabled"] == "false"
    assert found["spark.local.dir"] == str(tmp_path)
    assert found["spark.driver.host"] == "127.0.0.1"
    java = found["spark.driver.extraJavaOptions"]
    assert f"-Djava.io.tmpdir={tmp_path}" in java
    assert "TieredStopAtLevel" not in java
    assert "spark.sql.shuffle.partitions" not in found


def test_where_little_is_to_do_neither_java_nor_spark_plan_their_best(tmp_path: Path) -> None:
    found = spark._settings(SparkOptions(brief=True), tmp_path, {})
    assert found["spark.sql.shuffle.partitions"] == "1"
    assert "-XX:TieredStopAtLevel=1" in found["spark.driver.extraJavaOptions"]


def test_java_is_told_one_way_only_to_collect_garbage(tmp_path: Path) -> None:
    name = "spark.driver.extraJavaOptions"
    for given in ("-XX:+UseG1GC -Da=b", "-Da=b"):
        java = spark._settings(SparkOptions(), tmp_path, {name: given})[name]
        assert java.endswith(given)
        assert java.count("GC") == 1


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("master", ["", "local[3]", "spark://a:7077", "yarn", "sc://a:15002"])
def test_what_is_given_is_never_overridden(tmp_path: Path, master: str, *, brief: bool) -> None:
    names = spark._settings(SparkOptions(master=master, brief=brief), tmp_path, {})
    given = {name: f"mine-{at}" for at, name in enumerate(names)} | {"spark.mine": "7"}
    found = spark._settings(SparkOptions(master=master, brief=brief), tmp_path, given)
    java = "spark.driver.extraJavaOptions"
    # Of what Java is told twice, the last counts.
    assert found.pop(java, "").endswith(given.pop(java, ""))
    assert found == given


@pytest.mark.parametrize("master", ["spark://a:7077", "yarn", "sc://a:15002"])
def test_addresses_and_folders_of_this_machine_are_for_this_machine(tmp_path: Path, master: str) -> None:
    found = spark._settings(SparkOptions(master=master), tmp_path, {})
    assert not {"spark.local.dir", "spark.driver.host", "spark.driver.bindAddress"} & set(found)


def test_of_spark_elsewhere_only_what_a_session_may_say_is_said(tmp_path: Path) -> None:
    found = spark._settings(SparkOptions(master="sc://a:15002", brief=True), tmp_path, {})
    assert not [name for name in found if name.startswith(("spark.driver.", "spark.ui."))]


def test_java_finds_all_of_spark_here_but_its_machine_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with spark._home(SparkOptions(master="local[2]"), tmp_path):
        assert os.environ["SPARK_HOME"] == str(tmp_path)
        installed = Path(pyspark.__file__).parent
        assert (tmp_path / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
        missing = {each.name for each in installed.glob("jars/*.jar")} - {each.name for each in tmp_path.glob("jars/*")}
        assert {name.partition("_")[0] for name in missing} == {"spark-mllib"}
    assert "SPARK_HOME" not in os.environ


def test_a_spark_that_is_named_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark._home(SparkOptions(), tmp_path):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    monkeypatch.delenv("SPARK_HOME")
    with spark._home(SparkOptions(master="spark://a:7077"), tmp_path):
        assert "SPARK_HOME" not in os.environ
    assert not list(tmp_path.iterdir())


def test_what_is_done_beside_tells_what_came_of_it() -> None:
    assert spark.beside(lambda: 7).result() == 7
    with pytest.raises(ZeroDivisionError):
        spark.beside(lambda: 1 / 0).result()


def test_sparks_python_here_is_forked_from_one_that_has_all_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert spark._settings(SparkOptions(), tmp_path, {})["spark.python.daemon.module"] == "admin.analytics.workers"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/bin/python")
    assert "spark.python.daemon.module" not in spark._settings(SparkOptions(), tmp_path, {})
