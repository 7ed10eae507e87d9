"""Real Artemis brokers for AMQP 1.0: on loopback, in memory, and started within a second."""

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
    """A running broker without users. A queue is created when it is first used."""

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
        """Kill it, because nothing is stored."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
