"""The soak test at a thousandth of its size: everything is accounted for, and descriptors are returned."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]

_SOAK = Path(__file__).parents[1] / "bench" / "soak.py"


def test_every_frame_and_connection_is_accounted_for() -> None:
    """Memory needs more frames than this: ``make soak-long``."""
    command = [sys.executable, str(_SOAK), "--scale", "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: 100,000 frames, 1,008 connections" in done.stdout
