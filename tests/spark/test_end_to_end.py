"""A real sidecar and two runaway clients: the report agrees with the clients."""

import json
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, sends, stored
from harness.sidecar import Sluice, run_sluice

pytestmark = [pytest.mark.integration, pytest.mark.long]

_LIMIT: Final = 40
_ROOM: Final = 100
"""Far above the quiet topic's rate."""
_ROUNDS: Final = 60
_ROUND_S: Final = 0.1
"""Between two batches of a client, so that a flood lasts several seconds."""
_SPARK_S: Final = 580.0


class Client:
    """One client that sends, whatever the answers."""

    def __init__(self, address: str, source: str, group: str, topic: str, each_round: int) -> None:
        self.stored = self.refused = 0
        self.refusals_s: list[float] = []
        self._client = FrameClient(address, source=source)
        self._what = (each_round, topic, group)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        count, topic, group = self._what
        for _ in range(_ROUNDS):
            before_s = time.time()
            answers = self._client.ask(*sends(count, topic, group=group))
            self.stored += stored(answers)
            if more := len(refused(answers)):
                self.refused += more
                self.refusals_s += [before_s, time.time()]
            time.sleep(_ROUND_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.join()
        self._client.close()


def _start(directory: Path, broker: EmbeddedBroker, route: Any) -> Sluice:
    config = (
        f'[[limits]]\nkind = "topic"\nname = "orders"\nrate = {_LIMIT}\nbreak_s = 0\n'
        f'[[limits]]\nkind = "topic"\nname = "invoices"\nrate = {_ROOM}\n'
    )
    return Sluice(directory, [route], config=config, covered=False)


def _flood(address: str) -> tuple[Client, Client, Client]:
    """Let two clients flood one topic, in shares of three to one, beside another topic."""
    with (
        Client(address, "127.0.0.2", "import-a", "orders", 30) as one,
        Client(address, "127.0.0.3", "import-b", "orders", 10) as other,
        Client(address, "127.0.0.4", "billing", "invoices", 1) as quiet,
    ):
        pass
    return one, other, quiet


def test_a_flood_is_found_as_its_clients_saw_it(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        route = broker.route()
        with _start(tmp_path, broker, route) as sluice:
            one, other, quiet = _flood(route.listen)
            assert sluice.stop() == 0
        logs, out = tmp_path / "state" / "rejections", tmp_path / "report"
        how = ("--out", str(out), "--json", "--master", "local[2]")
        answer = run_sluice("report", str(logs), *how, cwd=tmp_path, timeout_s=_SPARK_S)
        assert answer.returncode == 0, answer.stderr
        found = json.loads(answer.stdout)

        (storm,) = found["storms"]
        assert (storm["kind"], storm["name"]) == ("topic", "orders")
        assert abs(storm["start_s"] - min(one.refusals_s + other.refusals_s)) <= 1
        assert abs(storm["end_s"] - max(one.refusals_s + other.refusals_s)) <= 1
        assert storm["messages"] == one.refused + other.refused == found["totals"]["refused"]
        assert storm["rules"] == ["topic:orders"]
        clients = {each["name"]: each["messages"] for each in storm["clients"]}
        assert clients == {"127.0.0.2": one.refused, "127.0.0.3": other.refused}
        culprits = {(each["client"], each["producer_group"]): each for each in found["culprits"]}
        assert culprits["127.0.0.2", "import-a"]["messages"] == one.refused
        share = culprits["127.0.0.3", "import-b"]["share"]
        assert share == pytest.approx(other.refused / (one.refused + other.refused))
        assert quiet.refused == 0
        assert found["totals"]["admitted"] == one.stored + other.stored + quiet.stored
        assert "orders" in (out / "report.html").read_text()

        # A flood alone in the log changes no limit. The file can be applied.
        file = out / "recommendations.json"
        (advice,) = [each for each in json.loads(file.read_text())["recommendations"] if each["name"] == "orders"]
        assert "not enough time without refusals to tell demand from a flood" in advice["evidence"].lower()
        assert (advice["action"], advice["rate_per_s"], advice["recommended_rate_per_s"]) == ("keep", _LIMIT, _LIMIT)
        assert advice["backtest"]["current"]["refused_messages"] == pytest.approx(storm["messages"], rel=0.05)
        with _start(tmp_path, broker, route) as sluice:
            dry = run_sluice("limits", "apply", str(file), "--admin", sluice.admin, "--dry-run", cwd=tmp_path)
            assert dry.returncode == 0, dry.stderr
            assert json.loads(sluice.get("/api/v1/limits/topic/orders")[1])["limit"]["rate"] == _LIMIT
