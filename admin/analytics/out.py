"""The output directory of a report: its lock, and files that are replaced as a whole."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from admin.common.disk import FileLock, LockedError, replace_durably, words_for
from admin.common.errors import StartError


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep other reports out of a directory, which is made if it is missing.

    Raises:
        StartError: another report writes there, or it cannot be used.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / "_lock")
    except LockedError:
        raise StartError(f"{out}: another report is writing there; stop it, or choose another --out") from None
    except OSError as error:
        raise StartError(f"{out}: cannot be used: {words_for(error)}; choose another --out") from None
    try:
        yield
    finally:
        lock.close()


def write_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file; readers see the old one or the new one.

    Raises:
        StartError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, pieces)
        path.chmod(0o644)
    except OSError as error:
        raise StartError(f"{path}: cannot be written: {words_for(error)}") from error
