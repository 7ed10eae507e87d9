"""How the places and times of live edits are written: in the API, in the audit trail, and in the journal."""

from datetime import UTC, datetime, timedelta
from typing import Final

from admin.live.model import Standing
from admin.rule_fields import Target

LIMITS: Final = "limits/"
SWITCHES: Final = "switches/"


def limit_path(target: Target) -> str:
    """Return a limit's place in the API and in the audit trail."""
    return f"{LIMITS}{target.kind}/{target.name}"


def switch_path(kind: str) -> str:
    """Return a switch's place in the API and in the audit trail."""
    return f"{SWITCHES}{kind}"


def parse_time(text: str) -> datetime:
    """Read a time as ``model`` writes it."""
    return datetime.fromisoformat(text)


def write_time(moment: datetime) -> str:
    """Write a moment as ``model`` has it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_over(standing: Standing, now: datetime) -> bool:
    """Say whether a standing has ended by itself."""
    return standing.expires_at is not None and parse_time(standing.expires_at) <= now


def expiry(at: datetime, ttl_s: float | None) -> str | None:
    """Return when an edit ends that begins at a moment."""
    return None if ttl_s is None else write_time(at + timedelta(seconds=ttl_s))
