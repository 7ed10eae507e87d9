"""A redis-server without persistence."""

import subprocess
from pathlib import Path
from typing import Final, Self

from harness.paths import program
from harness.ports import free_port
from harness.process import ManagedProcess

_START_TIMEOUT_S: Final = 30.0


class RedisServer:
    """``start`` restarts it on the same port after ``process.kill()``.

    With ``watches`` it is a Sentinel of a server called ``main``.
    """

    def __init__(self, directory: Path, *arguments: str, watches: int = 0) -> None:
        self.port = free_port()
        self._directory, self._arguments, self._watches = directory, arguments, watches
        self.process: ManagedProcess

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        name = f"redis-{self.port}"
        command, ready = [program("redis-server")], "Ready to accept connections"
        if self._watches:
            file, ready = self._directory / f"{name}.conf", "+monitor"
            file.write_text(
                f"port {self.port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {self._watches} 2\n"
                "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n",
                encoding="utf-8",
            )
            command += [str(file), "--sentinel"]
        else:
            command += ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self._arguments]
            command += ["--dir", str(self._directory), "--cluster-config-file", f"{name}.nodes"]
        self.process = ManagedProcess("redis-server", command, log=self._directory / f"{name}.log")
        self.process.wait_for_line(ready, timeout_s=_START_TIMEOUT_S)

    def command(self, *words: str, password: str = "") -> str:
        secret = ["-a", password, "--no-auth-warning"] if password else []
        command = [program("redis-cli"), "-p", str(self.port), *secret, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
