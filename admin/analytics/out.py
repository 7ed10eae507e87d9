"""The directory of a report: the lock that keeps other reports out, and files that appear there whole."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from admin.common.disk import FileLock, LockedError, replace_durably
from admin.common.errors import StartError


class OutLock:
    """Keeps other reports out of a directory while this process lives; a context manager.

    What Spark's Java process of a report that was killed may still write lies aside, and is not put in place.

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

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let others in."""
        self._lock.close()


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
