"""What every test run shares: generated cases that are the same from run to run, and addresses that stay one's own."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

_FACTOR = max(1, int(os.environ.get("FUZZ_FACTOR", "1")))
"""FUZZ_FACTOR=20 makes twenty times the fuzz cases of a normal run, all of them drawn anew; `make test-all` takes 2."""

# A run that passes here passes there: what a change broke is told apart from what a new draw has found, and a machine
# that is slow, or busy with something else, is no failure.
settings.register_profile(
    "sluice",
    max_examples=40 if _FACTOR == 1 else 100 * _FACTOR,
    derandomize=_FACTOR == 1,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("sluice")

# nohup ignores SIGHUP, and a shell's background jobs ignore SIGINT. The programs under test would inherit that.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FUZZ = Path(__file__).with_name("fuzz")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure no coverage of generated cases, nor of the tests that say so themselves.

    They run the same lines over and over, several times as slowly under it; tests with a case of their own count them.
    """
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or _FUZZ in item.path.parents:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """What a test makes of logging ends with it: a reload sets the level of the whole process."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture
def reserve() -> Iterator[Callable[..., int]]:
    """Finds ports that are the test's own: ``reserve("127.0.0.1", "::1")`` is one on both of them.

    Nothing listens there unless the test does, or what it starts. A port that was merely found to be free may be
    somebody else's a moment later: another worker's, or that of an outgoing connection.
    """
    with ExitStack() as kept:

        def find(*hosts: str) -> int:
            for _ in range(100):
                with ExitStack() as keeping:
                    port = 0
                    try:
                        for host in hosts or ("127.0.0.1",):
                            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                            keeping.enter_context(sock)
                            sock.bind((host, port))
                            port = sock.getsockname()[1]
                            # From now on others may have it as well, if they say that they know what they do.
                            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    except OSError:
                        continue
                    kept.push(keeping.pop_all())
                    return port
            pytest.fail(f"no port is free on all of {hosts}")

        yield find


@pytest.fixture
def reserved_address(reserve: Callable[..., int]) -> tuple[str, int]:
    """An address of this machine where nothing listens, unless the test does so itself."""
    return "127.0.0.1", reserve()
