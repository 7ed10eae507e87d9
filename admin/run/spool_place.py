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

FOLDER: Final = "spool"
"""In the state directory."""

_MODE: Final = 0o700
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
        return unusable(place, words_for(error), passing=error.errno in _PASSING)
    return place


def unusable(place: SpoolPlace, why: str, *, passing: bool = False) -> SpoolPlace:
    """Return a place without a folder, since that one cannot be had.

    Args:
        place: as asked for.
        why: in words.
        passing: it may be well later; traffic has to flow all the same.

    Raises:
        StartError: somebody asked for it, and it cannot be had.
    """
    if place.given and not passing:
        what = 'make it writable for this user, choose another folder, or "off" to hold in memory only'
        raise StartError(f"spool.dir {place.directory}: {why}; {what}")
    return SpoolPlace(None, place.given, f"{place.directory}: {why}" + ("" if passing else "; give spool.dir"))
