"""A small rejection log: minutes of one topic that is flooded twice."""

from pathlib import Path
from typing import Final

from log_truth import Run

NOON_S: Final = 1_795_262_400
"""2026-11-21 12:00:00 UTC."""
LIMIT_PER_S: Final = 50
FLOOD_PER_S: Final = 200
STORM_S: Final = 20
"""Of each flood."""


class SmallLog:
    """Makes the records of one sidecar's run."""

    def __init__(
        self, *, instance: str = "small-1", run: str = "0123456789ab", minutes: int = 10, topic: str = "orders"
    ) -> None:
        self._run = Run(instance, run)
        limit = {"rule": f"topic:{topic}", "rate_per_s": float(LIMIT_PER_S), "break_s": 1.0}
        self._run.add("limit", NOON_S, topic, **limit)
        over = FLOOD_PER_S - LIMIT_PER_S
        for minute in range(minutes):
            at_s = NOON_S + 60 * minute
            flooded = range(10, 10 + STORM_S) if minute in {2, minutes - 1} else range(0)
            for second in flooded:
                for client, messages in (("10.0.0.7", 100), ("10.0.0.8", over - 100)):
                    who = {"client": client, "producer_group": "import", "rule": f"topic:{topic}"}
                    self._run.reject(at_s + second, topic, messages, **who)
            seconds = {second: (LIMIT_PER_S, over) if second in flooded else (10, 0) for second in range(60)}
            self._run.traffic(at_s, topic, seconds, **limit)
            self._run.beat(at_s)
        self._run.add(
            "limit_change", NOON_S + 90, topic, change_id=1, action="set", rate_before_per_s=40.0,
            rate_after_per_s=50.0, by="ada", reason="a bit more",
        )  # fmt: skip

    def lines(self) -> list[bytes]:
        """Return the records as lines without their ends."""
        return self._run.lines

    def write(self, file: Path) -> Path:
        """Write the log, and return its file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\n".join(self.lines()) + b"\n")
        return file
