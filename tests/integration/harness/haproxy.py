"""A real HAProxy as a load balancer."""

import socket
import time
from pathlib import Path
from typing import Final, Self

from harness.paths import program
from harness.ports import free_port
from harness.process import ManagedProcess

_HOST: Final = "127.0.0.1"
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


class HAProxy:
    """A running HAProxy in TCP mode."""

    def __init__(self, directory: Path, server: str, *options: str, host: str = _HOST, port: int = 0) -> None:
        directory.mkdir(parents=True)
        port = port or free_port()
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        config = directory / "haproxy.cfg"
        config.write_text(
            "global\n    nbthread 1\n    log stderr format raw local0\n"
            "defaults\n    mode tcp\n    timeout connect 10s\n    timeout client 1h\n    timeout server 1h\n"
            f"listen front\n    bind {self.address}\n    server behind {server} {' '.join(options)}\n",
            encoding="utf-8",
        )
        command = [program("haproxy"), "-db", "-V", "-f", str(config)]
        self._process = ManagedProcess("haproxy", command, log=directory / "haproxy.log", cwd=directory)
        try:
            self._wait_until_listening(host, port)
        except BaseException:
            self._process.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _wait_until_listening(self, host: str, port: int) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while self._process.running and time.monotonic() < deadline_s:
            try:
                socket.create_connection((host, port), _TIMEOUT_S).close()
            except OSError:
                time.sleep(_POLL_S)
            else:
                return
        raise self._process.failure("it does not listen")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.stop(timeout_s=_TIMEOUT_S)
