"""Follow the logs in a folder, and say on the standard output what happens."""

import sys
from pathlib import Path

from rich.console import Console

from admin.analytics.job.follow import FollowSettings, follow
from admin.analytics.options import Options
from admin.analytics.spark import SparkOptions, in_words, open_session
from admin.common.errors import OperatorError


def main(logs: str, out: str, *flags: str) -> int:
    """Follow until SIGTERM, or until nothing is new."""
    place = Path(out)
    settings = FollowSettings(once="--once" in flags, trigger_s=0.2, batch_bytes=400_000, refresh_s=0.0)
    console = Console(file=sys.stdout, width=300)
    conf = (("spark.sql.shuffle.partitions", "4"),)
    options = SparkOptions(master="local[2]", conf=conf, log=place.parent / f"{place.name}.log", brief=True)
    try:
        with open_session(options) as session, in_words(options.log):
            return follow(
                session,
                [logs],
                place,
                options=Options(),
                settings=settings,
                refresh=lambda: print("refreshed", flush=True),
                console=console,
            )
    except OperatorError as error:
        print("\n".join(error.lines), flush=True)
        return error.exit_code


sys.exit(main(*sys.argv[1:]))
