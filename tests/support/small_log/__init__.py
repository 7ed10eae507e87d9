"""A small rejection log: minutes of one topic that is flooded twice, written through the records themselves."""

from pathlib import Path
from typing import Final

import msgspec

from admin.rejection_log.records import (
    VERSION,
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
)
from limiter.counting.rejections import Amount

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
        self._head = {"v": VERSION, "instance": instance, "run": run}
        self._n = 0
        self._topic = topic
        self.records: list[AnyRecord] = []
        limit = {"rule": f"topic:{topic}", "rate_per_s": float(LIMIT_PER_S), "break_s": 1.0}
        self._add(LimitRecord, at_s=NOON_S, kind="topic", name=topic, **limit)
        for minute in range(minutes):
            at_s = NOON_S + 60 * minute
            flooded = range(10, 10 + STORM_S) if minute in {2, minutes - 1} else range(0)
            self._minute(at_s, flooded, limit)
        self._add(
            LimitChangeRecord, at_s=NOON_S + 90, change_id=1, action="set", kind="topic", name=topic,
            rate_before_per_s=40.0, rate_after_per_s=50.0, by="ada", reason="a bit more",
        )  # fmt: skip

    def _add(self, record: type[AnyRecord], /, **fields: object) -> None:
        self._n += 1
        self.records.append(record(**self._head, n=self._n, **fields))  # type: ignore[arg-type]

    def _minute(self, at_s: int, flooded: range, limit: dict[str, object]) -> None:
        refused_per_s = FLOOD_PER_S - LIMIT_PER_S
        for second in flooded:
            for client, share in (("10.0.0.7", 100), ("10.0.0.8", refused_per_s - 100)):
                self._add(
                    RejectionRecord, at_s=at_s + second, kind="topic", name=self._topic, client=client,
                    producer_group="import", rule=f"topic:{self._topic}", verdict="refuse", requests=share,
                    messages=share, bytes=share * 300, wait_max_us=900_000,
                )  # fmt: skip
        admitted = [LIMIT_PER_S if second in flooded else 10 for second in range(60)]
        refused = [refused_per_s if second in flooded else 0 for second in range(60)]
        asked = [one + other for one, other in zip(admitted, refused, strict=True)]
        self._add(
            TrafficRecord, at_s=at_s, kind="topic", name=self._topic, **limit,
            admitted=Amount(sum(admitted), sum(admitted), 300 * sum(admitted)),
            refused=Amount(sum(refused), sum(refused), 300 * sum(refused)),
            busy_answers=sum(refused), languages={"GO": (sum(asked), sum(refused))}, clients=2,
            second=tuple(range(60)), second_admitted=tuple(admitted), second_refused=tuple(refused),
            second_requests=tuple(asked), second_bytes=tuple(300 * each for each in asked),
        )  # fmt: skip
        self._add(HeartbeatRecord, at_s=at_s, version="0.1.0", seconds=60, connections=2)

    def lines(self) -> list[bytes]:
        """Return the records as lines without their ends."""
        return [msgspec.json.encode(record) for record in self.records]

    def write(self, file: Path) -> Path:
        """Write the log, and return its file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\n".join(self.lines()) + b"\n")
        return file
