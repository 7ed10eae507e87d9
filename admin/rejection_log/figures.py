"""What is counted of the rejection log itself: what was written, what was lost and why, what was deleted."""

import errno
from collections import Counter
from typing import Final

import msgspec

from admin.common.disk import LockedError
from admin.rejection_log.recovery import Recovered

_REASONS: Final = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EROFS: "not_writable",
    errno.EACCES: "not_writable",
    errno.EPERM: "not_writable",
    errno.ENOENT: "folder_gone",
    errno.ESTALE: "folder_gone",
    errno.ENOTDIR: "folder_gone",
    errno.EEXIST: "folder_gone",
}
LOST_REASONS: Final = ("error", "fault", "folder_gone", "locked", "no_space", "not_writable", "too_late")
"""Why a record was lost; ``fault`` is one that could not even be made."""


def reason_of(error: OSError | LockedError) -> str:
    """Return why a record was lost that could not be written."""
    return "locked" if isinstance(error, LockedError) else _REASONS.get(error.errno or 0, "error")


class Figures(msgspec.Struct):
    """Counted since the start.

    Attributes:
        records: written, by type.
        bytes: written into log files.
        finished_files: that got their name.
        lost: records that could not be made or written, by reason.
        lost_seconds: how often the write-ahead file could not be written.
        deleted_files: for ``max_total_bytes``.
        deleted_bytes: likewise.
        kept_bytes: now in the folder, of whatever run.
        recovered: what was left by killed processes.
    """

    records: Counter[str] = msgspec.field(default_factory=Counter)
    bytes: int = 0
    finished_files: int = 0
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    lost_seconds: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    kept_bytes: int = 0
    recovered: Recovered = msgspec.field(default_factory=Recovered)
