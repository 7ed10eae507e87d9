"""A report from the logs to the page, step by step.

``make_tables`` is the batch job. ``publish`` reads whatever tables there are and writes what people read, so it serves
the stream as well. What the tables hold is decided elsewhere.
"""

import re
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from admin.analytics import page, tables, words
from admin.analytics.derive import derive
from admin.analytics.digest import MOST_RECOMMENDED, Digest
from admin.analytics.findings import Findings, Inputs, SetAside
from admin.analytics.inputs import Found
from admin.analytics.options import Options
from admin.analytics.out import write_file
from admin.analytics.reading import Staged, distinct, read_lines, restage, stage
from admin.analytics.recommend import recommend
from admin.common.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Step = Callable[[str], object]
"""Is told what is being done, for people who wait."""

RECOMMENDATIONS_JSON: Final = "recommendations.json"
REPORT_HTML: Final = "report.html"
_MOST_SET_ASIDE: Final = 50
_MOST_NAMED: Final = 5
_PARTITION_BYTES: Final = 48 * 1024 * 1024
"""Bytes of log for each task of a shuffle; what is left after aggregation is a small part of them."""
_MOST_PARTITIONS: Final = 400
_SHUFFLES: Final = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Place:
    """Where a report goes.

    Attributes:
        tables: directory or address of the tables.
        files: directory of what is for people and for ``sluice limits apply``.
        html: the page.
    """

    tables: str
    files: Path
    html: Path

    @classmethod
    def of(cls, out: str, html: Path | None) -> "Place":
        """Return the places of a report.

        Args:
            out: directory or address; of an address, only the tables go there, and the rest here.
            html: the page's, if it goes elsewhere.
        """
        files = Path(DEFAULT_OUT) if "://" in out else Path(out)
        return cls(out.rstrip("/") if "://" in out else str(files.absolute()), files, html or files / REPORT_HTML)


_FILES: Final = "*.{jsonl,jsonl.gz}"
DEFAULT_OUT: Final = "sluice-report"


def make_tables(session: "SparkSession", found: Found, out: str, options: Options, step: Step = str) -> Inputs:
    """Read logs and write the tables of their days, in place of those that are there.

    Args:
        session: of Spark.
        found: the files.
        out: directory or address of the tables.
        options: what is asked for.
        step: is told what is being done.

    Returns:
        what was read.

    Raises:
        StartError: there is nothing to report; the tables are as they were.
    """
    step(f"reading {len(found.paths):,} files" if len(found.paths) != 1 else "reading one file")
    _size_shuffles(session, found)
    since_s = 0 if options.since_s is None else options.since_s
    wanted = f"at_s >= {since_s}" + ("" if options.until_s is None else f" AND at_s < {options.until_s}")
    with tables.scratch(session, out) as scratch:
        staged = stage(_lines(session, found), f"{scratch}/lines", wanted)
        skipped = [*found.skipped, *found.vanished()]
        set_aside = [*(_bad_lines(staged.parsed.bad) if staged.bad else ()), *skipped]
        if not staged.wanted:
            raise StartError(_why_nothing(staged, found, set_aside))
        step(f"looking for copies among {staged.records:,} records")
        once = distinct(staged.parsed.records)
        step(f"adding up {staged.records - once.dropped:,} records")
        records = restage(once.records, f"{scratch}/once") if once.dropped else once.records
        derived = derive(records, options)
        days = tables.Days.of_seconds(options.since_s, options.until_s)
        try:
            for at, table in enumerate(tables.BY_DAY, start=1):
                step(f"writing {table.name}, {at} of {len(tables.BY_DAY)} tables")
                tables.write(derived.frame(table, out, days), out, table, days)
        finally:
            derived.release()
    return Inputs(
        logs=found.logs,
        files=len(found.paths),
        size_bytes=found.size_bytes,
        records=staged.records - once.dropped,
        duplicates=once.dropped,
        bad_lines=staged.bad,
        skipped_files=len(skipped),
        set_aside=tuple(set_aside[:_MOST_SET_ASIDE]),
    )


def _why_nothing(staged: Staged, found: Found, set_aside: Sequence[SetAside]) -> list[str]:
    """Say why there is nothing to put in place of the report that is there: nothing was understood, or asked for."""
    if staged.first_s is not None and staged.last_s is not None:
        there = words.span(staged.first_s, staged.last_s)
        return [f"nothing to report: no record is of the time that was asked for; there are some from {there} UTC"]
    files = words.counted(len(found.paths), "file") if found.paths else ", ".join(found.addresses)
    why = [
        f"{each.file}: {words.counted(each.lines, 'line') + ': ' if each.lines else ''}{each.reason}"
        for each in set_aside[:_MOST_NAMED]
    ]
    return [*why, f"nothing to report: not one record of a rejection log in {files}"]


def coming_in(logs: tuple[str, ...], bad: "DataFrame | None") -> Inputs:
    """Say what is read as it comes in; of that, only what was set aside is counted.

    Args:
        logs: as they were named.
        bad: lines that could not be understood, as ``reading.BAD``.
    """
    if bad is None:
        return Inputs(logs=logs)
    return Inputs(logs=logs, bad_lines=bad.count(), set_aside=tuple(_bad_lines(bad)))


def _lines(session: "SparkSession", found: Found) -> "DataFrame":
    """Return the lines of all files."""
    frames = []
    if found.paths:
        frames.append(read_lines(session, found.spark_paths()))
    if found.addresses:
        # Spark looks what is there; what is missing altogether is an error.
        reader = session.read.option("recursiveFileLookup", "true").option("pathGlobFilter", _FILES)
        lines = reader.option("ignoreCorruptFiles", "true").text(list(found.addresses))
        frames.append(lines.select("value", F.col("_metadata.file_path").alias("file")))
    return reduce(lambda one, other: one.unionByName(other), frames)


def _size_shuffles(session: "SparkSession", found: Found) -> None:
    """Give shuffles as many tasks as there is work for; few for a small log, which they would only slow down.

    Who runs a cluster has said how many; and how much there is at an address, only Spark will see.
    """
    context = session.sparkContext
    is_local = (context.master or "").startswith("local")
    if found.addresses or (not is_local and context.getConf().get(_SHUFFLES) is not None):
        return
    wanted = max(context.defaultParallelism, min(_MOST_PARTITIONS, -(-found.size_bytes // _PARTITION_BYTES)))
    session.conf.set(_SHUFFLES, str(wanted))


def _bad_lines(bad: "DataFrame") -> list[SetAside]:
    """Return where bad lines are and why they are bad, the most first."""
    rows = (
        bad.groupBy("file", "reason")
        .agg(F.count(F.lit(1)).alias("lines"), F.min("line").alias("example"))
        .orderBy(F.desc("lines"), "file", "reason")
        .limit(_MOST_SET_ASIDE)
        .collect()
    )
    return [
        SetAside(file=path_of(row["file"]), reason=row["reason"], lines=row["lines"], example=row["example"])
        for row in rows
    ]


def path_of(address: str) -> str:
    """Return an address of Spark's as people know it."""
    return re.sub("^file:/+", "/", urllib.parse.unquote(address))


def publish(session: "SparkSession", place: Place, options: Options, inputs: Inputs, step: Step = str) -> Findings:
    """Recommend limits from the tables, and write what is for people.

    Args:
        session: of Spark.
        place: where the tables are, and where it goes.
        options: what is asked for.
        inputs: what the tables were made of.
        step: is told what is being done.

    Returns:
        what the page says.

    Raises:
        StartError: it cannot be written.
    """
    step("replaying demand against limits")
    recommended = recommend(session, place.tables, options)
    step("gathering what was found")
    made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = Digest(session, place.tables, options)
    findings = digest.findings(
        made_at, str(place.files), inputs, recommended.counts, recommended.first(MOST_RECOMMENDED)
    )
    step("writing the page")
    recommended.write_file(place.files / RECOMMENDATIONS_JSON, made_at, findings.period)
    write_file(place.html, [page.render(findings).encode()])
    return findings
