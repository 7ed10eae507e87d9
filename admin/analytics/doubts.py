"""What a report does not know: lost records, files that could not be read, a sidecar that was not there."""

from admin.analytics import words
from admin.analytics.findings import Findings


def doubts(findings: Findings) -> list[str]:
    """Say what is missing of the truth, a line each; nothing if all is there."""
    inputs, totals = findings.inputs, findings.totals
    gaps, lost, other = totals.gap_minutes, totals.lost_records, totals.other
    bypassed, off = totals.bypassed_requests, totals.limiting_off_minutes
    of_bad, of_lost, of_other = (_were(each) for each in (inputs.bad_lines, lost, other))
    candidates = (
        (inputs.skipped_files, f"{words.counted(inputs.skipped_files, 'file')} could not be read, or not to the end."),
        (
            inputs.bad_lines,
            f"{words.counted(inputs.bad_lines, 'line')} could not be understood and {of_bad} set aside.",
        ),
        (gaps, f"Of {words.counted(gaps, 'minute')} within the period nothing is known: a sidecar was not running."),
        (lost, f"{words.counted(lost, 'record')} {of_lost} lost, so the figures are too small."),
        (
            other,
            f"{words.counted(other, 'run')} of requests had no room of their own and {of_other} counted as _other.",
        ),
        (bypassed, f"{words.counted(bypassed, 'request')} went past the limiter."),
        (off, f"Limiting was switched off for {words.counted(off, 'minute')}."),
    )
    return [line for number, line in candidates if number]


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
