"""Where the spool is kept: the configured folder, its usual place, and what happens when it cannot be had.

What is in the folder, and who may use it at a time, is ``proxy.spool``'s.
"""

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
"""What to do about a folder that cannot be had."""

_MODE: Final = 0o700
#: So many rules are named.
_SHOWN: Final = 5
#: What passes: a sidecar must come up with a disk that is full.
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class SpoolPlace(NamedTuple):
    """Where the spool is kept.

    Attributes:
        directory: None is no spool.
        given: somebody asked for this one, or for none.
        why: why there is none, if nobody asked for that.
    """

    directory: Path | None
    given: bool
    why: str | None = None

    @property
    def reason(self) -> str:
        """Why there is no spool, if there is none."""
        return self.why or f'spool.dir = "{OFF}"'


def of(settings: SpoolSettings, state_dir: Path | None) -> SpoolPlace:
    """Return where the spool of a sidecar is kept.

    Args:
        settings: as configured.
        state_dir: where its live edits are kept; None if they are kept until the restart only.
    """
    if settings.dir == OFF:
        return SpoolPlace(None, given=True)
    if settings.dir is not None:
        return SpoolPlace(Path(settings.dir).absolute(), given=True)
    if state_dir is None:
        return SpoolPlace(None, given=False, why="there is no state directory; give spool.dir")
    return SpoolPlace(state_dir / FOLDER, given=False)


def prepare(place: SpoolPlace) -> SpoolPlace:
    """Make the folder, and look whether it can be used; return a place without one if it cannot.

    Raises:
        StartError: somebody asked for the folder, and it cannot be had.
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
        return SpoolPlace(None, place.given, f"{directory}: {why}" + ("" if passing else "; give spool.dir"))
    return place


def unspooled(rule_set: RuleSet, place: SpoolPlace) -> list[str]:
    """Say which rules would put requests aside if there were a spool."""
    names = [rule.name for rule in rule_set.rules if rule.spool and rule.action == "delay" and rule.limits]
    if place.directory is not None or not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = f"spool = true, but there is no spool ({place.reason}): what waits is in memory"
    return [f"{', '.join(names[:_SHOWN])}{more}: {what}"]
