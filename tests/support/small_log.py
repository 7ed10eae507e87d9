"""Small logs: minutes of one topic that is flooded twice, and blank lines that count as a large log."""

import zlib
from pathlib import Path
from typing import Final

from log_truth import Run

NOON_S: Final = 1_795_262_400


def write_small_log(file: Path, *, minutes: int = 10) -> None:
    """Write the log of a sidecar: 10/s pass, and 20 seconds of two of the minutes have 200/s over a limit of 50/s."""
    run, limit = Run("small-1"), {"rule": "topic:orders", "rate_per_s": 50.0, "break_s": 1.0}
    run.add("limit", NOON_S, "orders", **limit)
    for minute in range(minutes):
        at_s = NOON_S + 60 * minute
        flooded = range(10, 30) if minute in {2, minutes - 1} else range(0)
        for second in flooded:
            for client, messages in (("10.0.0.7", 100), ("10.0.0.8", 50)):
                who = {"client": client, "producer_group": "import", "rule": "topic:orders"}
                run.reject(at_s + second, "orders", messages, **who)
        seconds = {second: (50, 150) if second in flooded else (10, 0) for second in range(60)}
        run.traffic(at_s, "orders", seconds, **limit)
        run.beat(at_s)
    run.add(
        "limit_change", NOON_S + 90, "orders", change_id=1, action="set", rate_before_per_s=40.0, rate_after_per_s=50.0,
        by="ada", reason="a bit more",
    )  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\n".join(run.lines) + b"\n")


def write_blank_log(folder: Path) -> None:
    """Write blank lines that make a log large: packed files count ten times, and these are hardly packed."""
    packing = zlib.compressobj(0, wbits=31)
    (folder / "blank.jsonl.gz").write_bytes(packing.compress((b" " * 999 + b"\n") * 1100) + packing.flush())
