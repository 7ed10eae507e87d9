"""Receives sockets from systemd (``sd_listen_fds(3)``) and sends it notifications (``sd_notify(3)``)."""

import os
import socket
import time
from collections.abc import Mapping, MutableMapping
from typing import Final

import structlog
import trio

from admin.common.errors import StartError
from proxy.control import DataPath

_log = structlog.get_logger(__name__)

_FIRST_DESCRIPTOR: Final = 3
#: Minimum time between log lines about failed watchdog messages.
_REPEAT_S: Final = 60.0
#: Number of watchdog messages per timeout. systemd recommends two.
_BEATS: Final = 3
_NOT_TOLD: Final = "could not notify the service manager"


def listening_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the TCP sockets that systemd has passed, and unset its environment variables. Raises StartError."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            sock = socket.socket(fileno=descriptor)
        except OSError as error:
            raise StartError(
                f"LISTEN_FDS={count}: descriptor {descriptor} is not a socket ({error.strerror}); pass only"
                " sockets to Sluice, or start it without LISTEN_FDS"
            ) from None
        if sock.type == socket.SOCK_STREAM and sock.family in {socket.AF_INET, socket.AF_INET6}:
            found.append(sock)
        else:
            _log.warning("closed an inherited socket that is not a TCP socket", socket=str(sock.getsockname()))
            sock.close()
    return found


class Manager:
    """Notifies the service manager if NOTIFY_SOCKET is set, and its watchdog if WATCHDOG_USEC is set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        usec = environ.get("WATCHDOG_USEC", "")
        asked = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s: float | None = int(usec) / 1e6 if asked and usec.isdecimal() and int(usec) else None

    def ready(self, status: str) -> None:
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Announce a reload. Call ``ready`` when it is complete."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._tell("STOPPING=1", f"STATUS={status}")

    async def watch(self, data_path: DataPath) -> None:
        """Notify the watchdog until cancelled, as long as the event loop and the executor respond."""
        if self.watchdog_s is None:
            return
        pause_s = self.watchdog_s / _BEATS
        not_logged, said_s = 0, -_REPEAT_S
        while True:
            await data_path.turn()
            error = self._send("WATCHDOG=1")
            if error is not None:
                now_s = trio.current_time()
                if now_s - said_s >= _REPEAT_S:
                    _log.warning(_NOT_TOLD, lines=["WATCHDOG=1"], error=error, not_logged=not_logged)
                    not_logged, said_s = 0, now_s
                else:
                    not_logged += 1
            await trio.sleep(pause_s)

    def _tell(self, *lines: str) -> None:
        error = self._send(*lines)
        if error is not None:
            _log.warning(_NOT_TOLD, lines=list(lines), error=error)

    def _send(self, *lines: str) -> str | None:
        if not self._address:
            return None
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            return error.strerror or str(error)
        return None
