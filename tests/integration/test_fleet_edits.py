"""Edits for all members of a fleet: three sidecars and a real Redis, whose user has the documented rights."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest
from harness.api import ask, rate
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, sends
from harness.ports import free_port
from harness.redis import RedisServer
from harness.sidecar import Route, Sluice, StartSluice, run_sluice

pytestmark = pytest.mark.integration

GUIDE: Final = Path(__file__).parents[2] / "docs" / "fleet.md"
PASSWORD: Final = "hush-1729"
WITHIN_S: Final = 2.0
TOPICS: Final = ("orders", "audit", "bulk-*", "t1", "t2")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


def config(redis: RedisServer) -> str:
    (line,) = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("user sluice on")]
    redis.command("ACL", "SETUSER", *line.replace("PASSWORD", PASSWORD).split()[1:])
    return (
        f'[fleet]\nurl = "{redis.url}"\nname = "orders-prod"\nuser = "sluice"\npassword = "{PASSWORD}"\n'
        '[[limits]]\nkind = "topic"\nname = "orders"\nrate = 500\nfleet = true\n'
    )


@pytest.fixture
def fleet(redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice) -> Iterator[list[Sluice]]:
    text = config(redis)
    with ExitStack() as running:
        yield [running.enter_context(start_sluice(routes=(broker.route(),), config=text)) for _ in range(3)]


def edits(sluice: Sluice) -> list[dict[str, Any]]:
    """Return the edits of the audit trail in order."""
    changes = ask(sluice, "GET", "audit?limit=500")[1]["changes"]
    return [each for each in reversed(changes) if each["target"].startswith("limits/")]


def in_force(sluice: Sluice) -> dict[str, Any]:
    return {name: ask(sluice, "GET", f"limits/topic/{name}")[1]["limit"] for name in TOPICS}


def wait_until_equal(members: list[Sluice], within_s: float) -> float:
    """Wait until all members have the same limits. Return the duration."""
    began = time.monotonic()
    while True:
        first, *others = map(in_force, members)
        elapsed_s = time.monotonic() - began
        if all(each == first for each in others):
            return elapsed_s
        assert elapsed_s < within_s


@pytest.mark.alone
def test_a_hundred_edits_at_random_members_under_load_end_the_same_and_are_all_audited(fleet: list[Sluice]) -> None:
    walk, ended = random.Random(1729), Event()
    failed: list[Any] = []
    made: list[tuple[str, str]] = []

    def send(sluice: Sluice) -> None:
        with FrameClient(sluice.routes[0].listen) as client:
            while not ended.wait(0.02):
                client.ask(*sends(10, "orders"))

    def edit(which: list[tuple[Sluice, int]]) -> None:
        for sluice, number in which:
            name = TOPICS[number % len(TOPICS)]
            body = {"rate": 100 + number, "fleet": name == "orders", "reason": f"edit {number}"}
            status, answer = ask(sluice, "PUT", f"limits/topic/{name}?fleet=1", body)
            (made if status == 200 else failed).append((answer.get("reason"), answer.get("member", answer)))

    senders = [Thread(target=send, args=(each,)) for each in fleet]
    chosen = [(walk.choice(fleet), number) for number in range(100)]
    # Three operators, so that edits of the same limits conflict.
    operators = [Thread(target=edit, args=(chosen[at::3],)) for at in range(3)]
    for each in (*senders, *operators):
        each.start()
    for each in operators:
        each.join()
    took_s = wait_until_equal(fleet, WITHIN_S)
    ended.set()
    for each in senders:
        each.join()
    assert failed == []
    trails = [[(each["reason"], each["member"], each["target"]) for each in edits(sluice)] for sluice in fleet]
    assert trails[0] == trails[1] == trails[2]
    assert sorted((reason, member) for reason, member, _ in trails[0]) == sorted(made)
    assert len({member for _, member, _ in trails[0]}) == 3
    assert took_s < WITHIN_S
    # One alone, from its answer to the slowest member.
    assert ask(fleet[0], "PUT", "limits/topic/orders?fleet=1", {"rate": 800, "fleet": True})[0] == 200
    wait_until_equal(fleet, WITHIN_S)
    for each in fleet:
        assert "Traceback" not in "\n".join(each.process.lines)


def test_a_command_edits_all_members_and_one_undoes_it(fleet: list[Sluice], tmp_path: Path) -> None:
    def sluice(at: int, *words: str) -> str:
        answer = run_sluice(*words, "--admin", fleet[at].admin, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    out = sluice(0, "limits", "set", "topic", "orders", "800", "--fleet", "--reason", "campaign")
    assert "topic orders: 500/s for the fleet → 800/s for the fleet" in out
    assert "on all members of the fleet" in out
    wait_until_equal(fleet, WITHIN_S)
    assert [rate(each) for each in fleet] == [800] * 3
    assert "for the fleet, on " in sluice(1, "limits", "get", "topic", "orders")
    assert "campaign" in sluice(2, "audit")
    newest = edits(fleet[2])[-1]["id"]
    assert "500/s for the fleet" in sluice(2, "audit", "revert", str(newest))
    wait_until_equal(fleet, WITHIN_S)
    assert [rate(each) for each in fleet] == [500] * 3
    reset = run_sluice("limits", "reset", "topic", "orders", "--admin", fleet[0].admin, cwd=tmp_path)
    assert reset.returncode == 1
    assert "raise the limit temporarily" in reset.stderr


def test_members_that_disagree_say_so_with_both_rates(fleet: list[Sluice], tmp_path: Path) -> None:
    assert ask(fleet[1], "PUT", "limits/topic/orders", {"rate": 300, "fleet": True})[0] == 200
    for sluice, figures in ((fleet[0], "500/s here, 300/s on "), (fleet[1], "300/s here, 500/s on ")):
        line = sluice.process.wait_for_line("members disagree about the rate of topic orders", timeout_s=15)
        assert figures in line
        assert figures in run_sluice("fleet", "--admin", sluice.admin, cwd=tmp_path).stdout
        # The state is a sample of the last second.
        ends_s = time.monotonic() + 5
        while not any(figures in warning for warning in ask(sluice, "GET", "state")[1]["warnings"]):
            assert time.monotonic() < ends_s
            time.sleep(0.05)
    assert ask(fleet[0], "PUT", "limits/topic/orders?fleet=1", {"rate": 400, "fleet": True})[0] == 200
    fleet[0].process.wait_for_line("fleet disagreement resolved", timeout_s=15)
    assert ask(fleet[0], "GET", "fleet")[1]["fleet"]["disagreements"] == []


def test_without_redis_nothing_is_half_applied_and_a_start_has_the_last_known(
    redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice, tmp_path: Path
) -> None:
    text = config(redis)
    (tmp_path / "a").mkdir()
    routes = (Route(f"127.0.0.1:{free_port()}", broker.address),)
    with Sluice(tmp_path / "a", routes, config=text) as one:
        assert ask(one, "PUT", "limits/topic/orders?fleet=1", {"rate": 800, "fleet": True})[0] == 200
        redis.process.kill()
        one.wait_for_metrics(lambda metrics: metrics.total("sluice_fleet_away") == 1)
        status, problem = ask(one, "PUT", "limits/topic/orders?fleet=1", {"rate": 900, "fleet": True})
        assert status == 503
        assert "connection refused; start Redis" in problem["detail"]
        assert "nothing was changed" in problem["detail"]
        assert rate(one) == 800
        assert ask(one, "PUT", "limits/topic/t1", {"rate": 7})[0] == 200
    with Sluice(tmp_path / "a", routes, config=text) as one:
        assert (rate(one), rate(one, "t1")) == (800, 7)
        # It comes back empty, and its members restore it.
        redis.start()
        text = config(redis)
        one.wait_for_metrics(lambda metrics: metrics.total("sluice_fleet_away") == 0)
        with start_sluice(routes=(broker.route(),), config=text) as other:
            deadline = time.monotonic() + 5 * WITHIN_S
            while rate(other) != 800:
                assert time.monotonic() < deadline
            assert [each["reason"] for each in edits(other)] == [""]
        # Invalid entries are ignored.
        for field, value in (("9", "{"), ("x", "[]"), ("", "nonsense")):
            redis.command("HSET", "sluice:{orders-prod}:edits", field, value)
        one.process.wait_for_line("ignored an invalid entry", timeout_s=10)
        assert ask(one, "PUT", "limits/topic/orders?fleet=1", {"rate": 850, "fleet": True})[0] == 200
        assert rate(one) == 850
        assert one.metrics().total("sluice_fleet_away") == 0
