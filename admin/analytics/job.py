"""Implements ``sluice report``."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from admin.analytics import inputs
from admin.analytics.options import Options
from admin.analytics.out import Seen, locked, write_file
from admin.analytics.spark import SparkOptions, open_session, short_errors
from admin.common.disk import os_error_text
from admin.common.errors import SettingsError, StartError
from admin.common.recommendations import Period, RecommendationsFile
from admin.run.check import show

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_OUT: Final = "sluice-report"
Step = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class ReportSpec:
    logs: tuple[str, ...]
    out: str  # a directory or, for the tables, a URL
    html: Path | None
    options: Options
    spark: SparkOptions
    json: bool = False
    once: bool = False

    @property
    def files(self) -> Path:
        return Path(DEFAULT_OUT if "://" in self.out else self.out)

    @property
    def page(self) -> Path:
        return self.html or self.files / "report.html"


def report_logs(spec: ReportSpec) -> int:
    from admin.config.folders import default_logs  # noqa: PLC0415 - slow to import

    logs = spec.logs or tuple(map(str, default_logs()))
    try:
        _check(spec, logs)
    except OSError as error:
        raise StartError(
            f"--out {spec.out} cannot be used: {os_error_text(error)}; choose another directory"
        ) from error
    period = (spec.options.since_s, spec.options.until_s)
    found = inputs.find(logs, *period)
    has_addresses = any("://" in log for log in logs)
    log = spec.files.absolute() / "_logs" / "spark.log"
    with locked(spec.files), _progress() as step:
        seen = Seen.read(spec.files, spec.options) if spec.once else None
        # Remove the files that a killed run left behind. The lock excludes other reports.
        for left in spec.files.glob("*/.spark-staging-*"):
            shutil.rmtree(left, ignore_errors=True)
        # PySpark has circular imports, which fail if two threads import it at once.
        import_module("pyspark.sql")
        threading.Thread(target=import_module, args=("admin.analytics.report",), daemon=True).start()
        log_bytes = inf if has_addresses else _log_bytes(found, seen)
        spark = replace(spec.spark, log=log, log_bytes=log_bytes)
        with short_errors(log), open_session(spark) as session:
            found = inputs.find(logs, *period, session) if has_addresses else found
            results = make_report(session, spec, found, step, seen)
    if spec.json:
        print(msgspec.json.format(msgspec.json.encode(results)).decode())  # noqa: T201 - the requested output
    else:
        from admin.analytics.summary import summary  # noqa: PLC0415 - slow to import

        show(summary(results, spec.page))
    return 0


def make_report(
    session: "SparkSession", spec: ReportSpec, found: inputs.Found, step: Step, seen: Seen | None = None
) -> dict[str, Any]:
    from admin.analytics import page, report  # noqa: PLC0415 - imported while Java starts
    from admin.analytics.tables import Store  # noqa: PLC0415 - as above

    tables = spec.out.rstrip("/") if "://" in spec.out else str(spec.files.absolute())
    tools = report.Tools(session, Store(session, tables), step, _log_bytes(found, seen))
    take = report.make_tables if seen is None else seen.take
    frames, read = take(tools, found, spec.options)
    sidecars, coverage = report.sidecars_of(frames.coverage)
    advised = report.advise(tools, frames, spec.options, sidecars)
    step("collecting results")
    made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    results: dict[str, Any] = {
        "made_at": made_at,
        "out": str(spec.files),
        "tables": tables,
        "clocks": inputs.clocks(found.files),
    }
    results |= report.results(frames, advised, coverage, read, spec.options)
    step("writing the page")
    period = Period(from_s=results["period"]["from"], until_s=results["period"]["until"])
    head = RecommendationsFile(made_at=made_at, period=period, instances=tuple(sorted(sidecars)))
    write_file(spec.files / "recommendations.json", _recommendations(head, advised[1]))
    write_file(spec.page, [page.render(results).encode()])
    return results


def _log_bytes(found: inputs.Found, seen: Seen | None) -> int:
    return max(found.unpacked_bytes, seen.log_bytes if seen else 0)


def _recommendations(head: RecommendationsFile, frame: "DataFrame") -> Iterator[bytes]:
    yield msgspec.json.encode(head).removesuffix(b"]}")
    rows = frame.orderBy("instance", "kind", "name").select("recommendation").toLocalIterator()
    for at, row in enumerate(rows):
        yield (b",\n" if at else b"\n") + row["recommendation"].encode()
    yield b"\n]}\n"


def _check(spec: ReportSpec, logs: tuple[str, ...]) -> None:
    files = spec.files.resolve()
    for log in logs:
        if "://" not in log and Path(log).is_dir() and files.is_relative_to(Path(log).resolve()):
            raise SettingsError(f"--out {spec.out} is inside the log directory {log}; choose another directory")
        if "://" not in log and spec.page.resolve().is_relative_to(Path(log).resolve()):
            raise SettingsError(f"--html {spec.page} is inside the log directory {log}; choose another path")
    if spec.page.exists() and not spec.page.is_file():
        raise SettingsError(f"--html {spec.page} is not a regular file; choose another path")
    if not spec.once and Seen.is_kept(spec.files):
        raise SettingsError(
            f"--out {spec.out} contains a report made with --once; add --once, or choose another directory"
        )


@contextmanager
def _progress() -> Iterator[Step]:
    from rich.console import Console  # noqa: PLC0415 - slow to import

    with Console(stderr=True).status("starting Spark") as status:
        yield status.update
