"""Attacks are laid out from made-up measurements, and run in short against real proxies."""

import subprocess
import sys
from pathlib import Path

import pytest
from attacks import ALONE, HAPROXY, SLUICE, Measured, attacks, options, percentiles, table

SCRIPT = Path(__file__).with_name("attacks.py")


def test_proxies_are_compared_within_rounds() -> None:
    rounds = {
        (ALONE, HAPROXY): [Measured(0.5, 9, 1, resident_mib=20), Measured(0.5, 9, 2, resident_mib=20)],
        (ALONE, SLUICE): [Measured(1, 9, 2, resident_mib=60), Measured(1, 9, 4, resident_mib=60)],
        ("idle", HAPROXY): [Measured(0.5, 9, 2, 900, 0, 200), Measured(0.5, 9, 4, 1100, 0, 200)],
        ("idle", SLUICE): [Measured(1, 9, 6, 800, 0.5, 150), Measured(1, 9, 12, 800, 0.5, 150)],
    }
    _, alone, _, haproxy, sluice = (line.split() for line in table(rounds).splitlines())
    assert alone == ["alone", "haproxy", "-", "-", "20", "0.50", "9.00", "1.50", "-", "-"]
    assert haproxy[:7] == ["idle", "haproxy", "1,000", "0%", "200", "0.50", "9.00"]
    assert haproxy[7:] == ["3.00", "2.00", "(2.00", "to", "2.00)", "-"]
    assert sluice[:9] == ["idle", "sluice", "800", "50%", "150", "1.00", "9.00", "9.00", "3.00"]
    assert sluice[-3:] == ["(3.00", "to", "3.00)"]


def test_percentiles_are_those_of_what_was_measured() -> None:
    assert percentiles([float(number) for number in range(200)]) == (100, 198)
    assert percentiles([7.0]) == (7, 7)


def test_attacks_can_be_chosen() -> None:
    assert options([]).rounds == 3
    quick = options(["--quick", "--attack", "idle"])
    assert (quick.rounds, quick.attack) == (1, ["idle"])
    assert attacks(7)["idle"].connections == attacks(7)["byte by byte"].connections == 7


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--seconds", "0"], ["--connections", "0"]])
def test_an_argument_that_makes_no_sense_is_named(arguments: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 2
    assert "must be above 0" in ran.stderr


def test_all_attacks_leave_the_quiet_client_its_answers() -> None:
    short = ["--quick", "--seconds", "0.3", "--connections", "50", "--base-port", "21160"]
    command = [sys.executable, str(SCRIPT), *short]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    for attack in attacks(1):
        assert ran.stdout.count(f"\n{attack} ") == 2
