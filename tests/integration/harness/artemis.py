"""A real Artemis broker for AMQP 1.0, as many as a test wants: on loopback, all in memory, and there in a second."""

from pathlib import Path
from typing import Final, Self

from harness.java import compiled_java
from harness.paths import ARTEMIS, artemis_classpath, program
from harness.ports import free_port
from harness.process import ManagedProcess

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 120.0
_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Artemis:
    """A broker without users, running; a queue is made when it is first named."""

    def __init__(self, home: Path, *, acceptor: str = "") -> None:
        home.mkdir(parents=True)
        port = free_port()
        self.address = f"{_HOST}:{port}"
        classes = f"{compiled_java(ARTEMIS, artemis_classpath())}:{artemis_classpath()}"
        command = [program("java"), *_OPTIONS, "-cp", classes, "EmbeddedArtemis", str(port), *filter(None, [acceptor])]
        self._process = ManagedProcess("artemis", command, log=home / "artemis.log", cwd=home)
        try:
            self._process.wait_for_line("ready", timeout_s=_START_TIMEOUT_S)
        except BaseException:
            self._process.kill()
            raise

    def close(self) -> None:
        """End it; nothing is stored that would miss an orderly end."""
        self._process.kill()

    def __enter__(self) -> Self:
        """Return itself; leaving the block ends it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End it."""
        self.close()
