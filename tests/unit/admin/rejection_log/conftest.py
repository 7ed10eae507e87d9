"""Traffic made by hand, and what a log folder holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin.rejection_log.folder import Folder
from limiter.counting.rejections import Amount, Rejection, ResourceSecond
from limiter.rules.resource import Resource

ORDERS = Resource("topic", "orders")


def second_of(
    name: str = "orders",
    *,
    admitted: int = 0,
    refused: int = 0,
    repeated: int = 0,
    identified: int = 0,
    clients: tuple[str, ...] = ("10.0.0.1",),
) -> ResourceSecond:
    outcomes = {
        "admitted": Amount(admitted, 2 * admitted, 100 * admitted),
        "refused": Amount(refused, refused, refused),
    }
    return ResourceSecond(
        Resource("topic", name),
        {outcome: amount for outcome, amount in outcomes.items() if amount.requests},  # type: ignore[misc]  # they are
        refused,
        {"JAVA": (admitted + refused, refused)},
        clients,
        more_clients=False,
        repeated=Amount(repeated, 2 * repeated, 100 * repeated),
        identified=identified,
    )


def rejection_of(name: str = "orders", *, refused: int = 1, client: str = "10.0.0.1") -> Rejection:
    amount = Amount(refused, refused, refused)
    return Rejection(Resource("topic", name), client, "producers", f"topic:{name}", "refuse", amount, 7)


class Found:
    """What the finished files of a folder hold; with the open ones on request."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """All names but the lock's."""
        return sorted(each.name for each in self.path.iterdir() if each.name != ".lock")

    def records(self, pattern: str = "*.jsonl") -> list[dict[str, Any]]:
        lines = [
            line for path in sorted(self.path.glob(pattern)) for line in path.read_bytes().splitlines(keepends=True)
        ]
        assert all(line.endswith(b"\n") for line in lines)
        return [msgspec.json.decode(line) for line in lines]

    def totals(self) -> dict[str, int]:
        """Requests by outcome of all traffic records, and of rejections; no record twice."""
        records = self.records()
        ids = [(record["run"], record["n"]) for record in records]
        assert len(ids) == len(set(ids))
        sums = {"admitted": 0, "refused": 0, "rejected": 0}
        for record in records:
            if record["type"] == "rejection":
                sums["rejected"] += record["requests"]
            elif record["type"] == "traffic":
                for outcome in ("admitted", "refused"):
                    sums[outcome] += record.get(outcome, [0])[0]
        return sums


@pytest.fixture
def make_second() -> Callable[..., ResourceSecond]:
    return second_of


@pytest.fixture
def make_rejection() -> Callable[..., Rejection]:
    return rejection_of


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder that is taken."""
    taken = Folder(tmp_path / "rejections")
    taken.take()
    return taken


@pytest.fixture
def found(folder: Folder) -> Found:
    return Found(folder.path)
