import pytest

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
    [("", True), ("local", True), ("local[2]", True), ("spark://a:7077", False), ("yarn", False)],
)
def test_local_masters_are_told_from_clusters(master: str, is_local: bool) -> None:  # noqa: FBT001 - expected
    assert SparkOptions(master=master).is_local is is_local
