"""Files at addresses, as Spark lists them."""

from typing import Any

import pytest

from admin.analytics.inputs import find, find_at
from admin.common.errors import StartError

WRITTEN_S = 1_800_000_000


class Listing:
    """Stands for Spark, which lists what there is at each address."""

    def __init__(self, listings: dict[str, list[str]]) -> None:
        self._listings = listings
        self.read = self
        self._address = ""
        self.asked: list[str] = []

    def format(self, _format: str) -> "Listing":
        return self

    def option(self, _name: str, _value: str) -> "Listing":
        return self

    def load(self, address: str) -> "Listing":
        self._address = address
        self.asked.append(address)
        return self

    def selectExpr(self, *_columns: str) -> "Listing":  # noqa: N802 - as Spark calls it
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [{"path": path, "length": 10, "written_ms": WRITTEN_S * 1000} for path in self._listings[self._address]]


def _paths(session: Any, *logs: str, **period: int) -> list[str]:
    return [file.path for file in find_at(session, find(logs), **period).files]


def test_a_file_at_two_addresses_is_read_once() -> None:
    session = Listing(
        {
            "s3a://b/logs": ["s3a://b/logs/x.jsonl", "s3a://b/logs/a/y.jsonl"],
            "s3a://b/logs/a": ["s3a://b/logs/a/y.jsonl"],
        }
    )
    listed = ["s3a://b/logs/a/y.jsonl", "s3a://b/logs/x.jsonl"]
    assert _paths(session, "s3a://b/logs", "s3a://b/logs/a/") == listed
    assert _paths(session, "s3a://b/logs/a/", "s3a://b/logs") == listed


@pytest.mark.parametrize(
    ("log", "address"),
    [
        ("s3a://logs", "s3a://logs/"),
        ("s3a://logs/", "s3a://logs/"),
        ("s3a://b/logs//", "s3a://b/logs"),
        ("file:///logs", "file:///logs"),
    ],
)
def test_a_whole_bucket_ends_with_a_slash_and_a_folder_without(log: str, address: str) -> None:
    # Without one it would be the folder of the user in it.
    session = Listing({address: ["s3a://logs/x.jsonl"]})
    assert _paths(session, log) == ["s3a://logs/x.jsonl"]
    assert session.asked == [address]


def test_files_of_this_machine_are_what_they_are_by_any_name() -> None:
    assert _paths(Listing({"file:///logs": ["file:/logs/a%20b c.jsonl"]}), "file:///logs") == ["/logs/a%20b c.jsonl"]


def test_a_file_outside_of_the_period_is_left_out_and_counted_once() -> None:
    files = ["s3a://b/logs/x.jsonl"]
    session = Listing({"s3a://b/logs": files, "s3a://b/": files})
    with pytest.raises(StartError, match="1 files of the log are there, and by date none is of the time asked for"):
        _paths(session, "s3a://b/logs", "s3a://b", since_s=WRITTEN_S + 86_400)
