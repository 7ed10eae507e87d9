"""Toxiproxy, a relay with the faults of bad networks."""

import json
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from harness.paths import PARTS, required
from harness.ports import free_port
from harness.process import ManagedProcess

_HOST: Final = "127.0.0.1"
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.02

Direction = Literal["upstream", "downstream"]
"""The direction of a toxic: from clients, or from servers."""


class Toxiproxy:
    """A running toxiproxy. Its relays are in ``relay``."""

    def __init__(self, folder: Path) -> None:
        server = required(PARTS / "toxiproxy" / "server", "make parts")
        self._api = f"{_HOST}:{free_port()}"
        host, _, port = self._api.rpartition(":")
        command = [str(server), "-host", host, "-port", port]
        self._process = ManagedProcess("toxiproxy", command, log=folder / "toxiproxy.log")
        try:
            self._process.wait_for_line("Starting HTTP server", timeout_s=_TIMEOUT_S)
            # It prints this a moment before it listens.
            host_port = host, int(port)
            while self._process.running and _refused(host_port):
                time.sleep(_LOOK_S)
        except BaseException:
            self._process.kill()
            raise

    def relay(self, name: str, listen: str, upstream: str) -> None:
        """Relay from one ``host:port`` to another, under a name."""
        self._ask("POST", "proxies", {"name": name, "listen": listen, "upstream": upstream, "enabled": True})

    @contextmanager
    def toxic(self, relay: str, kind: str, direction: Direction, attributes: Mapping[str, int]) -> Iterator[None]:
        """Disturb a relay, including its open connections, during the block."""
        body = {"name": "toxic", "type": kind, "stream": direction, "attributes": dict(attributes)}
        self._ask("POST", f"proxies/{relay}/toxics", body)
        try:
            yield
        finally:
            self._ask("DELETE", f"proxies/{relay}/toxics/toxic")

    def close(self) -> None:
        self._process.kill()

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{self._api}/{path}", data, method=method), timeout=_TIMEOUT_S
        ):
            pass


def _refused(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) != 0
