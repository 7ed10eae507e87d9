"""Sluice of this checkout against that of another one, such as before a change, with the rows of ``run.py``.

    git worktree add ../before COMMIT && make -C ../before setup
    .venv/bin/python tests/bench/versus.py ../before                 # about twenty minutes

Each measurement is a run of ``run.py`` of one checkout, with its own environment. They take turns (other, this, this,
other), and a ratio is of this one's sum to the other's within such a round, so that drift of the machine cancels out.
The figure is processor time, which a busy machine affects least. By default the rows are those without a limit, or with
one that is not reached: everything in the path of every message and every connection of either protocol. Where
``between rounds`` is as far from 1 as the ratio, nothing was measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peers import BenchError
from report import aligned
from rows import ACCEPT, ANSWERED, CONFIRMS, FLOOD, MEMORY, PUBLISHES, RTT, TRANSFERS

HERE = Path(__file__).resolve().parents[2]
ROWS = (
    "throughput-64",
    "topics-1000",
    "answered-64",
    "rtt-low",
    "accept",
    "connections-1000",
    "memory",
    "publishes-128",
    "publishes-1024",
    "confirms-128",
    "confirms-1024",
)
PEERS = ("sluice-unlimited", "sluice-limited")
# The compared figures of a row, by its kind. Less is better.
FIGURES = {
    FLOOD: ("cpu_us_per_frame",),
    ANSWERED: ("cpu_us_per_frame",),
    PUBLISHES: ("cpu_us_per_frame",),
    CONFIRMS: ("cpu_us_per_frame",),
    TRANSFERS: ("cpu_us_per_frame",),
    RTT: ("p50_us",),
    ACCEPT: ("cpu_us_per_connection",),
    MEMORY: ("fresh_mb", "idle_kib", "busy_kib"),
}

Line = tuple[str, str, str]
"""Row, peer, figure."""
Measured = dict[Line, float]


def read(results: dict[str, Any]) -> Measured:
    """Return the compared figures of a run. Raises BenchError if the run found a fault."""
    if results["faults"]:
        raise BenchError(f"faults: {results['faults']}")
    return {
        (row["name"], peer, figure): value
        for row in results["rows"]
        for peer, its in row["peers"].items()
        for figure in FIGURES.get(row["kind"], ())
        if (value := its["median"].get(figure)) is not None
    }


def measure(checkout: Path, given: argparse.Namespace) -> Measured:
    """Run the bench of a checkout once."""
    with tempfile.TemporaryDirectory(prefix="sluice-versus-") as folder:
        kept = Path(folder) / "results.json"
        command = [str(checkout / ".venv" / "bin" / "python"), str(checkout / "tests" / "bench" / "run.py")]
        for option, values in (("--row", given.row or ROWS), ("--peer", given.peer or PEERS)):
            for value in values:
                command += [option, value]
        command += ["--rounds", "1", "--seconds", str(given.seconds), "--json", str(kept)]
        ran = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise BenchError(f"{checkout}: {ran.stderr or ran.stdout}")
        return read(json.loads(kept.read_text()))


def table(rounds: Sequence[Sequence[Measured]]) -> str:
    """Format rounds, each of measurements of the other one, this one, this one and the other one."""
    lines = [["row", "peer", "figure", "other", "this", "this / other", "rounds", "between rounds"]]
    for line in rounds[0][0]:
        others = [each[place][line] for each in rounds for place in (0, 3)]
        these = [each[place][line] for each in rounds for place in (1, 2)]
        ratios = [(each[1][line] + each[2][line]) / (each[0][line] + each[3][line]) for each in rounds]
        same = [each[3][line] / each[0][line] for each in rounds]
        lines.append(
            [
                *line,
                f"{median(others):.3g}",
                f"{median(these):.3g}",
                f"{median(ratios):.3f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
                f"{min(same):.3f} to {max(same):.3f}",
            ]
        )
    return aligned(lines)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="versus.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout, with an environment that `make setup` has made")
    parser.add_argument("--row", action="append", metavar="ROW", help="only this row of run.py; repeatable")
    parser.add_argument("--peer", action="append", metavar="PEER", help=f"repeatable (default: {', '.join(PEERS)})")
    parser.add_argument("--rounds", type=int, default=3, help="of four runs each (default 3)")
    parser.add_argument("--seconds", type=float, default=1, help="length of one measurement (default 1)")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    return given


def main() -> int:
    given = options()
    other = given.other.resolve()
    rounds = []
    try:
        for number in range(1, given.rounds + 1):
            rounds.append([measure(each, given) for each in (other, HERE, HERE, other)])
            print(f"round {number} of {given.rounds} is done", file=sys.stderr, flush=True)
    except (BenchError, OSError) as error:
        print(f"versus.py: {error}", file=sys.stderr)
        return 1
    print(table(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
