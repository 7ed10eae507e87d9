"""Checks and clean-up before Spark is started."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from admin.analytics import job
from admin.analytics.job import ReportSpec, report_logs
from admin.analytics.options import Options
from admin.analytics.spark import SparkOptions
from admin.common.errors import SettingsError, StartError


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReportSpec:
    """A report of a log, for which Spark does not start."""

    def fail(_options: SparkOptions) -> None:
        raise StartError("no Spark here")

    monkeypatch.setattr(job, "open_session", fail)
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    Path("logs/a.jsonl").write_bytes(b"{}\n")
    Path("file").touch()
    Path("link").symlink_to("logs")
    os.mkfifo("pipe")
    return ReportSpec(logs=("logs",), out="out", html=None, options=Options(), spark=SparkOptions())


@pytest.mark.parametrize(
    ("out", "html", "error", "complaint"),
    [
        ("logs/report", None, SettingsError, "--out logs/report is inside the log directory"),
        ("file", None, StartError, "file cannot be used: a file of that name exists"),
        *(("out", page, SettingsError, f"--html {page} is not a regular file") for page in (".", "/dev/null", "pipe")),
        *(("out", page, SettingsError, f"--html {page} is inside the log directory") for page in (
            "logs/report.html", "logs/a.jsonl", "link/report.html",
        )),
    ],
)  # fmt: skip
def test_places_that_cannot_be_are_refused(
    spec: ReportSpec, out: str, html: str | None, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        report_logs(replace(spec, out=out, html=html and Path(html)))
    assert not Path("out").exists()


def test_leftovers_of_a_killed_report_are_removed(spec: ReportSpec) -> None:
    for name in ("out/minutes/.spark-staging-7/dt=2026-11-21", "out/minutes/dt=2026-11-21"):
        Path(name).mkdir(parents=True)
    with pytest.raises(StartError, match="no Spark here"):
        report_logs(spec)
    assert os.listdir("out/minutes") == ["dt=2026-11-21"]  # noqa: PTH208 - hidden ones, too
