"""The rejection log's metrics."""

from collections.abc import Iterator

from admin.rejection_log.figures import LOST_REASONS
from admin.rejection_log.recorder import Recorder
from admin.stats.metrics import Family, counter, gauge

_TYPES = ("heartbeat", "limit", "limit_change", "rejection", "traffic")


def families(recorder: Recorder | None) -> Iterator[Family]:
    """Yield the metrics of a recorder; of none, that there is none."""
    up = recorder is not None and recorder.up and recorder.error is None
    yield gauge(
        "sluice_rejection_log_up", "1 while the rejection log is written, 0 if it is off or fails.", (), [((), int(up))]
    )
    if recorder is None:
        return
    figures = recorder.files.figures
    yield counter(
        "sluice_rejection_log_records",
        "Records written, by type.",
        ("type",),
        [((type_,), figures.records[type_]) for type_ in _TYPES],
    )
    yield counter("sluice_rejection_log_bytes", "Bytes written into log files.", (), [((), figures.bytes)])
    yield counter(
        "sluice_rejection_log_files",
        "Files finished, those that a killed process had left included.",
        (),
        [((), figures.finished_files + figures.recovered.files)],
    )
    yield counter(
        "sluice_rejection_log_lost_records",
        "Records that could not be made or written, by reason.",
        ("reason",),
        [((reason,), figures.lost[reason]) for reason in LOST_REASONS],
    )
    yield counter(
        "sluice_rejection_log_unkept_seconds",
        "Seconds whose traffic would not have survived a crash, as the write-ahead file could not be written.",
        (),
        [((), figures.lost_seconds)],
    )
    yield counter(
        "sluice_rejection_log_torn_lines",
        "Last lines of a killed process that were cut off.",
        (),
        [((), figures.recovered.torn_lines)],
    )
    yield gauge(
        "sluice_rejection_log_unsealed_runs",
        "Runs of killed processes whose files could not be finished; the next start tries again.",
        (),
        [((), figures.recovered.failed)],
    )
    yield gauge(
        "sluice_rejection_log_disk_wait_seconds",
        "For how long the disk has not answered; 0 while nothing waits for it.",
        (),
        [((), recorder.files.waits_s)],
    )
    yield counter(
        "sluice_rejection_log_deleted_files",
        "Finished files deleted because of rejection_log.max_total_bytes.",
        (),
        [((), figures.deleted_files)],
    )
    yield counter(
        "sluice_rejection_log_deleted_bytes", "Bytes of the files deleted.", (), [((), figures.deleted_bytes)]
    )
    yield gauge(
        "sluice_rejection_log_kept_bytes", "Bytes of all log files in the folder.", (), [((), figures.kept_bytes)]
    )
    yield counter(
        "sluice_rejection_log_clock_steps", "How often the wall clock was set.", (), [((), recorder.ledger.clock_steps)]
    )
    yield counter(
        "sluice_rejection_log_other_runs",
        "Runs of requests that were counted under _other because a bound was reached.",
        (),
        [((), recorder.ledger.other_runs)],
    )
