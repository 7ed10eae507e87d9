"""Which hours are made anew for files that are new, and from which files; what Spark does is left out."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin.analytics import once
from admin.analytics.findings import Inputs, SetAside
from admin.analytics.inputs import File, Found
from admin.analytics.lines import Wanted
from admin.analytics.once import Seen
from admin.analytics.options import Options

OPTIONS = Options()
HOUR_S = 1_800_000_000


class Reports:
    """Reports into one directory, of files whose hours are given; ``made`` is what each was made of."""

    def __init__(self, out: Path, patch: pytest.MonkeyPatch) -> None:
        self.out = out
        self.hours: dict[str, set[int]] = {}
        self.bad: tuple[SetAside, ...] = ()
        self.made: list[tuple[set[str], frozenset[int] | None]] = []
        patch.setattr(once, "_hours_of", lambda _, found: defaultdict(set, self._of(found)))
        patch.setattr(once, "make_tables", self._make)

    def _of(self, found: Found) -> dict[str, set[int]]:
        return {each.path: self.hours[each.path] for each in found.files if each.path in self.hours}

    def _make(self, _tools: object, found: Found, _options: Options, wanted: Wanted) -> Inputs:
        self.made.append(({each.path for each in found.files}, wanted.hours))
        return Inputs(logs=(), files=0, size_bytes=0, bad_lines=0, skipped_files=0, set_aside=self.bad)

    def report(self, *paths: str) -> Inputs:
        found = Found(("logs",), tuple(File(path, 10, 1.5) for path in paths))
        tools: Any = msgspec.defstruct("Tools", [("step", Any)])(lambda _: None)
        return Seen.read(self.out, OPTIONS).take(tools, found, OPTIONS)


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reports:
    return Reports(tmp_path, monkeypatch)


def test_of_a_clock_that_was_set_only_the_hours_with_records_are_made(reports: Reports) -> None:
    reports.hours = {"/a": {0, HOUR_S}, "/b": {HOUR_S}}
    reports.report("/a")
    reports.report("/a", "/b")
    assert reports.made == [({"/a"}, frozenset({0, HOUR_S})), ({"/a", "/b"}, frozenset({HOUR_S}))]


def test_an_hour_that_is_made_without_a_file_that_is_gone_is_told(reports: Reports) -> None:
    reports.hours = {"/old": {HOUR_S - 3600}, "/a": {HOUR_S}, "/late": {HOUR_S}, "/c": {HOUR_S + 3600}}
    assert reports.report("/old", "/a").set_aside == ()
    # Nothing of their hours is made anew, and what was made of them is there.
    assert reports.report("/c").set_aside == ()
    told = reports.report("/c", "/late")
    assert [(each.file, each.lines) for each in told.set_aside] == [("/a", 0)]
    assert "is gone" in told.set_aside[0].reason
    assert told.skipped_files == 1
    assert reports.report("/c", "/late").set_aside == told.set_aside


def test_what_is_wrong_with_a_file_stays_with_it_whatever_it_is_called(reports: Reports) -> None:
    reports.hours = {"/a%20b": {HOUR_S}}
    reports.bad = (SetAside(file="/a%20b", reason="no record", lines=3),)
    assert reports.report("/a%20b").bad_lines == 3
    assert reports.report("/a%20b").bad_lines == 3
