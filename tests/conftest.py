"""Settings of every test run: reproducible generated cases, and reserved addresses."""

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
"""FUZZ_FACTOR=20 makes twenty times the fuzz cases of a normal run, newly drawn. `make test-all` takes 2."""

# The same cases in each run separate the effect of a change from that of a new draw. A slow or busy machine is not a
# failure.
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
    """Measure no coverage of generated cases, nor of tests with the marker.

    They run the same lines again and again, several times as slowly with coverage.
    """
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or _FUZZ in item.path.parents:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Undo a test's settings of logging: a reload sets the level of the whole process."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture
def reserve() -> Iterator[Callable[..., int]]:
    """Finds ports for the test alone: ``reserve("127.0.0.1", "::1")`` is one on both of them.

    Only the test, or a process it starts, listens there. A port that was merely free may be taken a moment later, by
    another worker, or by an outgoing connection.
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
                            # From now on sockets with the same option may have it as well.
                            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    except OSError:
                        continue
                    kept.push(keeping.pop_all())
                    return port
            pytest.fail(f"no port is free on all of {hosts}")

        yield find


@pytest.fixture
def reserved_address(reserve: Callable[..., int]) -> tuple[str, int]:
    """An address of this machine without a listener, except for the test's."""
    return "127.0.0.1", reserve()
