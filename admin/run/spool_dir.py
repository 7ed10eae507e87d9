"""Which folder the spool uses, and what happens if it cannot be used."""

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

from admin.common.disk import words_for
from admin.common.errors import StartError
from admin.config.settings import OFF, SpoolSettings
from limiter.rules.rule_set import RuleSet

FOLDER: Final = "spool"
"""In the state directory."""

HINT: Final = 'make it writable for this user, choose another folder, or "off" to hold in memory only'

_MODE: Final = 0o700
_SHOWN: Final = 5
#: A sidecar starts on a full disk.
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class SpoolDir(NamedTuple):
    """The spool's folder; None is no spool. ``given``: it was configured, or switched off. ``why`` there is none."""

    directory: Path | None
    given: bool
    why: str | None = None

    @property
    def reason(self) -> str:
        """Why there is no spool, if there is none."""
        return self.why or f'spool.dir = "{OFF}"'


def of(settings: SpoolSettings, state_dir: Path | None) -> SpoolDir:
    """Return the spool's folder as configured, by default in the state directory."""
    if settings.dir == OFF:
        return SpoolDir(None, given=True)
    if settings.dir is not None:
        return SpoolDir(Path(settings.dir).absolute(), given=True)
    if state_dir is None:
        return SpoolDir(None, given=False, why="there is no state directory; give spool.dir")
    return SpoolDir(state_dir / FOLDER, given=False)


def prepare(place: SpoolDir) -> SpoolDir:
    """Make the folder; return a place without one if it cannot be used.

    Raises:
        StartError: it was configured, and it cannot be used.
    """
    directory = place.directory
    if directory is None:
        return place
    try:
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except ValueError:
        raise StartError(f"spool.dir {str(directory)!r}: is no path") from None
    except OSError as error:
        why, passing = words_for(error), error.errno in _PASSING
        if place.given and not passing:
            raise StartError(f"spool.dir {directory}: {why}; {HINT}") from None
        return SpoolDir(None, place.given, f"{directory}: {why}" + ("" if passing else "; give spool.dir"))
    return place


def unspooled(rule_set: RuleSet, place: SpoolDir) -> list[str]:
    """Warn of rules that would spool requests if there were a spool."""
    names = [rule.name for rule in rule_set.rules if rule.spool and rule.action == "delay" and rule.limits]
    if place.directory is not None or not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = f"spool = true, but there is no spool ({place.reason}): what waits is in memory"
    return [f"{', '.join(names[:_SHOWN])}{more}: {what}"]
