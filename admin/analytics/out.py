"""The directory of a report: the lock that keeps other reports out, and files that appear there whole.

The lock also waits for the Java process of a report that was killed: it ends by itself, but not at once, and until then
it may move files into place.
"""

import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from admin.common.disk import FileLock, LockedError, replace_durably
from admin.common.errors import StartError

_ORPHAN_S: Final = 60.0
"""How long to wait for the Java process of a killed report."""
_POLL_S: Final = 0.1


class OutLock:
    """Keeps other reports out of a directory while this process and its Java process live; a context manager.

    Args:
        out: the directory; made if it is not there.

    Raises:
        StartError: another report is at work there, or it cannot be used.
    """

    def __init__(self, out: Path) -> None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(out / "_lock")
        except LockedError:
            raise StartError(
                f"{out}: another report is writing there; stop it, or choose another directory with --out"
            ) from None
        except OSError as error:
            raise StartError(f"{out}: cannot be used: {error.strerror or error}; choose another with --out") from None
        try:
            _wait_for_orphan(self._lock.content(), out)
        except StartError:
            self._lock.close()
            raise

    def owned_by(self, java_pid: int) -> None:
        """Note the Java process of this report: if the report is killed, that process may go on for a moment."""
        self._lock.overwrite(msgspec.json.encode(_Owner(socket.gethostname(), java_pid, _started(java_pid))))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let others in."""
        with suppress(OSError):
            self._lock.overwrite(b"")
        self._lock.close()


class _Owner(msgspec.Struct, frozen=True):
    host: str
    pid: int
    started: str


def _started(pid: int) -> str:
    """Return when a process began, as the kernel counts; empty if there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]


def _wait_for_orphan(content: bytes, out: Path) -> None:
    try:
        owner = msgspec.json.decode(content, type=_Owner)
    except msgspec.DecodeError:
        return
    if owner.host != socket.gethostname() or not owner.started:
        return
    until_s = time.monotonic() + _ORPHAN_S
    while _started(owner.pid) == owner.started:
        if time.monotonic() > until_s:
            raise StartError(
                f"{out}: the Java process of a report that was killed, pid {owner.pid}, still writes there; end it"
            )
        time.sleep(_POLL_S)


def write_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file as a whole: readers see the old one or the new one.

    Raises:
        StartError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, pieces)
        path.chmod(0o644)
    except OSError as error:
        raise StartError(f"{path}: cannot be written: {error.strerror or error}") from error
