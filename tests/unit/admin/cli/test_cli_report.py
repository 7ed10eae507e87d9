import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from admin.analytics import job, spark
from admin.analytics.options import Try
from admin.cli import main
from admin.cli.report import read_time
from admin.common.errors import SettingsError
from admin.config.folders import default_logs

_NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
_NOON_S = 1_795_262_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21", _NOON_S - 43_200),
        ("2026-11-21T12:00", _NOON_S),
        ("2026-11-21 12:00:05", _NOON_S + 5),
        ("2026-11-21T12:00:05Z", _NOON_S + 5),
        ("2026-11-21T13:00+01:00", _NOON_S),
        ("90m", _NOON_S - 5400),
        ("36h", _NOON_S - 129_600),
        ("7d", _NOON_S - 604_800),
    ],
)
def test_times_are_utc_or_relative(text: str, seconds: int) -> None:
    assert read_time(text, "--since", _NOW) == seconds


@pytest.mark.parametrize("text", ["yesterday", "", "7", "2026-13-01", "-7d"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--since"):
        read_time(text, "--since", _NOW)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-05:00", "1969-12-31", "0001-01-01", "99999999999d"])
def test_times_that_no_log_is_of_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=f"--since {text}: must be between the years 1970 and 9999"):
        read_time(text, "--since", _NOW)


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[job.ReportSpec]:
    """The requested reports. None is made."""
    found: list[job.ReportSpec] = []
    monkeypatch.setattr(spark, "check_requirements", lambda *, java: None)
    monkeypatch.setattr(job, "report_logs", found.append)
    return found


def test_minutes_count_as_a_whole(specs: list[job.ReportSpec]) -> None:
    assert main(("report", "logs", "--since", "2026-11-21T11:59:59", "--until", "2026-11-21T12:00:01")) == 0
    assert main(("report", "logs", "--since", "2026-11-21T12:00", "--until", "2026-11-21T12:01")) == 0
    assert [(spec.options.since_s, spec.options.until_s) for spec in specs] == [
        (_NOON_S - 60, _NOON_S + 60),
        (_NOON_S, _NOON_S + 60),
    ]


def test_rates_that_are_asked_about_and_attempts_that_are_known_better(specs: list[job.ReportSpec]) -> None:
    flags = ("--try", "topic:orders=150/s", "--try", "queue:a=b:c=2.5", "--attempts", "JAVA=1", "--attempts", "go=7")
    assert main(("report", "logs", *flags)) == 0
    assert main(("report", "logs")) == 0
    one, other = (spec.options for spec in specs)
    assert one.tries == (Try("topic", "orders", 150.0), Try("queue", "a=b:c", 2.5))
    assert other.tries == ()
    # The protocols' values apply to all other languages.
    assert other.attempts["JAVA"] > 1
    assert one.attempts == {**other.attempts, "JAVA": 1, "GO": 7}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--since", "2026-11-21", "--until", "2026-11-20"), "--since 2026-11-21 must be earlier than --until"),
        (("--driver-memory", "lots"), "must be a size like 1g"),
        (("--driver-memory", "100m"), "Spark needs at least 512m"),
        (("--conf", "spark.a"), "--conf spark.a: must be KEY=VALUE"),
        (("--conf", "a=b"), "--conf a=b: must be KEY=VALUE"),
        (("--storm-gap", "0.5s"), "must be a whole number of seconds"),
        (("--storm-gap", "2h"), "must be a whole number of seconds"),
        (("--storm-gap", "soon"), "--storm-gap soon: must be a duration like 90s"),
        *((("--headroom", word), f"--headroom {word}: must be a number from 0 to 10") for word in (
            "-1", "nan", "much",
        )),
        (("--once", "--until", "2026-11-21"), "--since and --until cannot be combined with --once"),
        (("--once", "--since", "1d"), "--since and --until cannot be combined with --once"),
        (("--once", "--out", "s3a://b/c"), "--out s3a://b/c: must be a local directory if --once is given"),
        *((("--try", word), "must be KIND:NAME=RATE") for word in (
            "orders=5", "topic:orders", "topic:=5", ":orders=5", "topic:orders=0", "topic:orders=-1",
            "topic:orders=inf", "topic:orders=nan", "topic:orders=fast", "topic:orders=",
        )),
        *((("--attempts", word), f"--attempts {word}: must be LANGUAGE=N") for word in (
            "JAVA", "JAVA=", "=3", "JAVA=0", "JAVA=101", "JAVA=1.5", "JAVA=-1",
        )),
        (("--try", "topic:orders=abc"), "--try topic:orders=abc: must be KIND"),
        (("--attempts", "JAV=1"), "--attempts JAV: unknown client language; must be one of JAVA, "),
        (("tail", "-n", "-1"), 'invalid value "-1" for -n; must be at least 0'),
    ],
)  # fmt: skip
def test_wrong_flags_are_named_and_nothing_is_started(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    assert main(("report", *arguments)) == 2
    assert complaint in capsys.readouterr().err


def test_spark_is_imported_by_nothing_but_a_report() -> None:
    code = (
        "import sys; import admin.cli, admin.run.sidecar, admin.cli.report; "
        "sys.exit(any(name.split('.')[0] in {'pyspark', 'py4j', 'pyarrow', 'pandas'} for name in sys.modules)"
        " or any(name.startswith('admin.analytics') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_logs_those_of_this_machine_are_taken(tmp_path: Path) -> None:
    for name in ("b-2", "a-1"):
        (tmp_path / name / "rejections").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    assert default_logs({"STATE_DIRECTORY": str(tmp_path)}) == [
        tmp_path / "a-1" / "rejections",
        tmp_path / "b-2" / "rejections",
    ]


def test_without_any_logs_the_searched_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"no rejection log under {tmp_path}"):
        default_logs({"STATE_DIRECTORY": str(tmp_path)})


def test_tail_names_the_folder_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a-1" / "rejections"
    folder.mkdir(parents=True)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("SLUICE_URL", "127.0.0.1:1")
    main(["report", "tail"])
    nobody, reading, *_ = capsys.readouterr().err.splitlines()
    assert nobody.startswith("sluice: no response from http://127.0.0.1:1")
    assert nobody.endswith("showing all logs of this user on this machine")
    assert reading == f"sluice: reading {folder}"
