"""The end of a bench with real brokers: errors are printed in a line, and every child has ended."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from peers import BenchError

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness.paths import MissingPartError
from harness.process import ProcessFailedError


def status(name: str, bench: Callable[[], int]) -> int:
    """Run a bench for the command line. Return the exit status. Every child has ended then."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return bench()
    except (BenchError, MissingPartError, ProcessFailedError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
