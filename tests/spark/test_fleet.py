"""A limit shared by a fleet is reported like one of a single sidecar with all the traffic."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from log_truth import Run
from small_log import NOON_S

MINUTES: Final = 90
_FLOODED: Final = {20, 21, 60}
_ASKED: Final = {"10.0.0.7": 100, "10.0.0.8": 50}
"""Refusals of each client in each second of a flood."""


def write(folder: Path, members: int, **of_fleet: str) -> None:
    """Write the logs of members that share the traffic: the first one client, the last one the other."""
    limit: dict[str, Any] = {"rule": "topic:orders", "rate_per_s": 50.0} | of_fleet
    runs = [Run(f"small-{at}", f"r{at}") for at in range(members)]
    for run in runs:
        run.add("limit", NOON_S, "orders", **limit)
        run.add("limit", NOON_S, "idle", rule="topic:idle", rate_per_s=5.0, **of_fleet)
    for minute in range(MINUTES):
        at_s = NOON_S + 60 * minute
        flooded = range(10, 40) if minute in _FLOODED else range(0)
        whose = list(zip((runs[0], runs[-1]), _ASKED, strict=True))
        for run, client in whose:
            for second in flooded:
                run.reject(at_s + second, "orders", _ASKED[client], client=client, rule="topic:orders", **of_fleet)
        for run in runs:
            refused = sum(_ASKED[client] for one, client in whose if one is run)
            usual = (50 // members, refused), (10 // members, 0)
            run.traffic(at_s, "orders", {s: usual[s not in flooded] for s in range(60)}, **limit)
            run.beat(at_s, **of_fleet)
    folder.mkdir()
    for at, run in enumerate(runs):
        (folder / f"{at}.jsonl").write_bytes(b"\n".join(run.lines) + b"\n")


def test_a_fleet_is_summed_as_one(report: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    write(tmp_path / "one", 1)
    write(tmp_path / "fleet", 2, fleet="prod")
    made = {name: report(tmp_path / f"{name}-out", tmp_path / name) for name in ("one", "fleet")}
    parts = ("recommendations", "storms", "callers", "culprits", "curves", "period")
    one, fleet = (json.dumps({part: each[part] for part in parts}, indent=1) for each in made.values())
    assert fleet.replace('"fleet prod"', '"small-0"') == one
    (flood, *_) = made["fleet"]["storms"]
    assert (flood["instance"], flood["messages"]) == ("fleet prod", 30 * 150)
    advised = json.loads((tmp_path / "fleet-out" / "recommendations.json").read_bytes())
    assert advised["instances"] == ["fleet prod", "small-0", "small-1"]
    orders, idle = sorted(advised["recommendations"], key=lambda each: str(each["name"] == "idle"))
    assert (orders["instance"], orders["rate_per_s"]) == ("fleet prod", 50)
    assert (idle["instance"], idle["action"]) == ("fleet prod", "unused")
    # Resources with a limit on each sidecar are compared. This one is not.
    assert made["fleet"]["fleets"] == []
    assert [each["instance"] for each in made["fleet"]["coverage"]] == ["small-0", "small-1"]
