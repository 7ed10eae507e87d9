"""A report from the files of the log to what is for people: tables, recommendations, the page and the summary."""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from admin.analytics import page
from admin.analytics.digest import Digest, Picked
from admin.analytics.findings import Findings
from admin.analytics.inputs import Found
from admin.analytics.kernels import Instance
from admin.analytics.lines import Wanted
from admin.analytics.once import Seen
from admin.analytics.out import write_file
from admin.analytics.report import Recommended, Step, Tools, find_instances, make_tables, recommend, tasks_of
from admin.analytics.spark import SparkOptions, given_options
from admin.analytics.summary import summary
from admin.analytics.tables import Store
from admin.common.recommendations import Period, RecommendationsFile
from admin.run.check import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from admin.analytics.job import Place, Wish

RECOMMENDATIONS_JSON: Final = "recommendations.json"
_MAX_SET_ASIDE: Final = 50


def make_report(
    session: "SparkSession", place: "Place", found: Found, wish: "Wish", *, seen: Seen | None, step: Step
) -> Findings:
    """Make the tables, and write what is for people.

    Args:
        session: of Spark.
        place: where to.
        found: the files.
        wish: what is asked for.
        seen: what has been read before; None reads all.
        step: is told what is being done.

    Returns:
        what was found.
    """
    options = wish.options
    store = Store(session, place.tables)
    with store.scratch() as scratch:
        # Who runs a cluster may have said how many.
        tasks = given_options(wish.spark).get("spark.sql.shuffle.partitions", "")
        tools = Tools(
            session,
            store,
            scratch,
            int(tasks) if tasks.isdecimal() else tasks_of(found.unpacked_bytes, _cores(wish.spark)),
            step,
        )
        if seen is None:
            read = make_tables(tools, found, options, Wanted(options.since_s, options.until_s))
        else:
            read = seen.take(tools, found, options)
        instances = find_instances(tools, options)
        digest = Digest(store, options, instances)
        recommended = recommend(tools, options, instances)
        step("gathering what was found")
        made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        picked = Picked(digest.storms[0], options.tries)
        _write_recommendations(place.files / RECOMMENDATIONS_JSON, made_at, recommended, instances, picked)
        of_all = instances.values()
        read = msgspec.structs.replace(
            read,
            records=read.records or sum(each.records for each in of_all),
            duplicates=read.duplicates or sum(each.copies for each in of_all),
            set_aside=read.set_aside[:_MAX_SET_ASIDE],
            outside_files=found.outside,
        )
        findings = digest.findings(made_at, str(place.files), read, picked, recommended.decided)
    step("writing the page")
    write_file(place.html, [page.render(findings).encode()])
    return findings


def _write_recommendations(
    path: Path, made_at: str, recommended: Recommended, instances: Mapping[str, Instance], picked: Picked
) -> None:
    """Write the file of recommendations, and pick those that are shown."""
    known = [each.coverage for each in instances.values() if each.coverage is not None]
    head = RecommendationsFile(
        made_at=made_at,
        period=Period(
            from_s=min((each.from_s for each in known), default=None),
            until_s=max((each.until_s for each in known), default=None),
        ),
        instances=tuple(sorted(instances)),
    )

    def pieces() -> Iterator[bytes]:
        # All but the closing of the empty list and of the object.
        yield msgspec.json.encode(head).removesuffix(b"]}")
        for at, each in enumerate(recommended.all()):
            picked.add(each)
            yield (b",\n" if at else b"\n") + msgspec.json.encode(each)
        yield b"\n]}\n"

    write_file(path, pieces())


def _cores(spark: SparkOptions) -> int:
    """Return how many tasks run at a time at least: those of this machine, if Spark runs here."""
    named = spark.master.removeprefix("local[").removesuffix("]")
    return int(named) if named.isdecimal() else os.cpu_count() or 1


def tell(findings: Findings, html: Path | None) -> None:
    """Print what was found.

    Args:
        findings: all of it.
        html: where the page is; None prints JSON.
    """
    if html is None:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())  # noqa: T201 - what was asked for
    else:
        show(summary(findings, html))
