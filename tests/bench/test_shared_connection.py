"""What is measured of a shared connection is laid out and held against its goals: from made-up measurements."""

import subprocess
import sys
from pathlib import Path

from shared_connection import NEW, OLD, TASKS, Measured, Rounds, Way, goals, table

SCRIPT = Path(__file__).with_name("shared_connection.py")
SENDERS, RECEIVER, LIMITED_SENDERS, LIMITED_RECEIVER = TASKS


def sent(fast_per_s: float, slow_per_s: float) -> Measured:
    return Measured(fast_per_s, slow_per_s, 0, 0, 1.5)


def test_two_senders_are_held_against_the_other_protocol_and_against_the_direct_way() -> None:
    rounds: Rounds = {
        (OLD, "direct"): [sent(500, 500), sent(1000, 1000)],
        (OLD, "sluice"): [sent(500, 500), sent(1000, 1000)],
        (NEW, "direct"): [sent(9000, 1000), sent(9000, 1000)],
        (NEW, "sluice"): [sent(4000, 500), sent(9500, 500)],
    }
    times, of_direct = goals(SENDERS, rounds)
    assert "4.75 (4.50 to 5.00), wanted >= 4: met; directly 7.50 (5.00 to 10.00)" in times
    assert "0.72 (0.45 to 1.00), wanted >= 0.95: NOT met; HAProxy -" in of_direct
    lines = table(SENDERS, rounds).splitlines()
    assert lines[0] == "two senders, one connection; slow by the broker's disk (median of 2)"
    assert lines[-1].split()[:6] == [NEW, "sluice", "6,750", "500", "0", "0"]


def test_what_the_direct_way_does_not_show_is_not_asked_of_sluice() -> None:
    each = [Measured(0, 100, 500, 0, 0)]
    rounds = {(protocol, way): each for protocol in (OLD, NEW) for way in ("direct", "sluice")}
    times, _ = goals(RECEIVER, rounds)
    assert "wanted >= 73: nor does direct show it" in times


def test_what_the_load_does_by_task_and_way() -> None:
    sluice, direct = (Way(name, NEW, "127.0.0.1:1") for name in ("sluice", "direct"))
    assert SENDERS.arguments(direct, 500) == ["--send", "fast,slow"]
    assert RECEIVER.arguments(sluice, 500) == ["--receive", "stock", "--batches", "slow"]
    assert LIMITED_SENDERS.arguments(direct, 500) == ["--send", "fast", "--pace", "limited=500"]
    assert LIMITED_RECEIVER.arguments(sluice, 500) == ["--receive", "stock", "--batches", "limited"]
    assert SENDERS.arguments(direct, 500, 19_000.4) == ["--send", "fast,slow", "--at-most", "19000"]


def test_a_pace_is_of_what_goes_as_fast_as_it_goes() -> None:
    each = Measured(9000, 500, 700, 0, 0)
    assert [task.name for task in TASKS if each.fastest(task) == 9000] == 2 * ["two senders"]
    assert [task.name for task in TASKS if each.fastest(task) == 700] == 2 * ["sender and receiver"]
    assert "; paced to 60% of what goes directly (median of 1)" in table(SENDERS, {(NEW, "direct"): [each]}, 0.6)


def test_an_argument_that_makes_no_sense_is_named() -> None:
    for arguments, said in ((["--rounds", "0"], "must be above 0"), (["--share", "60"], "between 0 and 1")):
        command = [sys.executable, str(SCRIPT), *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 2
        assert said in ran.stderr
