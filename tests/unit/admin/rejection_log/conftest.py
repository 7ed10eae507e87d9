"""Readers of a log folder."""

from pathlib import Path
from typing import Any

import msgspec
import pytest


class Found:
    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        return sorted(each.name for each in self.path.iterdir()) if self.path.exists() else []

    def records(self, *types: str) -> list[dict[str, Any]]:
        """Return the records. All lines are complete, and no record is there twice."""
        lines = [line for name in self.names() for line in (self.path / name).read_bytes().splitlines(keepends=True)]
        assert all(line.endswith(b"\n") for line in lines)
        records = [msgspec.json.decode(line) for line in lines]
        assert len({(record["run"], record["n"]) for record in records}) == len(records)
        return [record for record in records if not types or record["type"] in types]

    def totals(self) -> tuple[int, int, int]:
        """Return the requests of all traffic records, admitted and refused, and of rejections."""
        traffic = self.records("traffic")
        admitted, refused = (
            sum(record.get(outcome, [0])[0] for record in traffic) for outcome in ("admitted", "refused")
        )
        return admitted, refused, sum(record["requests"] for record in self.records("rejection"))


@pytest.fixture
def found(tmp_path: Path) -> Found:
    return Found(tmp_path / "rejections")
