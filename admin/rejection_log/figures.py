"""What is counted of the rejection log itself: what was written, what was lost and why, what was deleted."""

import errno
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from admin.common.disk import LockedError
from proxy.stats.metric import Metric, Samples

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
_LOST_REASONS: Final = ("error", "fault", "folder_gone", "locked", "no_space", "not_writable", "too_late")
"""Why a record was lost; ``fault`` is one that could not even be made."""
_TYPES: Final = ("heartbeat", "limit", "limit_change", "rejection", "traffic")


def reason_of(error: OSError | LockedError) -> str:
    """Return why a record was lost that could not be written."""
    return "locked" if isinstance(error, LockedError) else _REASONS.get(error.errno or 0, "error")


def _each_of(words: Sequence[str]) -> Callable[[Mapping[str, int]], Samples]:
    """Show all words, and those that were never counted as 0."""
    return lambda counts: [((), [(word, counts[word]) for word in words])]


class Figures(msgspec.Struct):
    """Counted since the start; the metrics say what."""

    records: Annotated[
        Counter[str],
        Metric("sluice_rejection_log_records_total", "Records written, by type.", ("type",), _each_of(_TYPES)),
    ] = msgspec.field(default_factory=Counter)
    bytes: Annotated[int, Metric("sluice_rejection_log_bytes_total", "Bytes written into log files.")] = 0
    finished_files: Annotated[
        int,
        Metric("sluice_rejection_log_files_total", "Files finished, those that a killed process had left included."),
    ] = 0
    lost: Annotated[
        Counter[str],
        Metric(
            "sluice_rejection_log_lost_records_total",
            "Records that could not be made or written, by reason.",
            ("reason",),
            _each_of(_LOST_REASONS),
        ),
    ] = msgspec.field(default_factory=Counter)
    lost_seconds: Annotated[
        int,
        Metric(
            "sluice_rejection_log_unkept_seconds_total",
            "Seconds whose traffic would not have survived a crash, as the write-ahead file could not be written.",
        ),
    ] = 0
    torn_lines: Annotated[
        int, Metric("sluice_rejection_log_torn_lines_total", "Last lines of a killed process that were cut off.")
    ] = 0
    unsealed_runs: Annotated[
        int,
        Metric(
            "sluice_rejection_log_unsealed_runs",
            "Runs of killed processes whose files could not be finished; the next start tries again.",
        ),
    ] = 0
    disk_wait_s: Annotated[
        float,
        Metric(
            "sluice_rejection_log_disk_wait_seconds",
            "For how long the disk has not answered; 0 while nothing waits for it.",
        ),
    ] = 0.0
    deleted_files: Annotated[
        int,
        Metric(
            "sluice_rejection_log_deleted_files_total",
            "Finished files deleted because of rejection_log.max_total_bytes.",
        ),
    ] = 0
    deleted_bytes: Annotated[int, Metric("sluice_rejection_log_deleted_bytes_total", "Bytes of the files deleted.")] = 0
    kept_bytes: Annotated[int, Metric("sluice_rejection_log_kept_bytes", "Bytes of all log files in the folder.")] = 0
    clock_steps: Annotated[
        int, Metric("sluice_rejection_log_clock_steps_total", "How often the wall clock was set.")
    ] = 0
    other_runs: Annotated[
        int,
        Metric(
            "sluice_rejection_log_other_runs_total",
            "Runs of requests that were counted under _other because a bound was reached.",
        ),
    ] = 0
