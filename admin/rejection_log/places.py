"""Where the rejection log is kept: the configured folder, its usual place, and what happens when it cannot be had."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from admin.common.disk import LockedError, words_for
from admin.common.errors import SettingsError, StartError
from admin.config.settings import OFF, RejectionLogSettings
from admin.edits.state_dir import usual_base
from admin.rejection_log.folder import Folder

FOLDER: Final = "rejections"
"""In the state directory."""

#: What passes: a sidecar must come up with a disk that is full.
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class LogPlace(NamedTuple):
    """Where the log is kept.

    Attributes:
        directory: None writes none.
        given: somebody asked for this one, or for none.
        why: why there is no usual one.
    """

    directory: Path | None
    given: bool
    why: str | None = None


def of(settings: RejectionLogSettings, state_dir: Path | None) -> LogPlace:
    """Return where the log of a sidecar is kept.

    Args:
        settings: as configured.
        state_dir: where its live edits are kept; None if they are kept until the restart only.
    """
    if settings.dir == OFF:
        return LogPlace(None, given=True)
    if settings.dir is not None:
        return LogPlace(Path(settings.dir).absolute(), given=True)
    if state_dir is None:
        return LogPlace(None, given=False, why="there is no state directory; give rejection_log.dir")
    return LogPlace(state_dir / FOLDER, given=False)


def take(place: LogPlace, *, predecessor: bool = False) -> tuple[Folder | None, str | None]:
    """Take the folder of a place; return it, and what is wrong with it for the time being or for good.

    That the process before still writes its last records there is nothing wrong.

    A folder that is in use by another process, or whose disk is full, is tried again while traffic flows.

    Args:
        place: where.
        predecessor: that process is the one whose place this one takes.

    Raises:
        StartError: somebody asked for the folder, and it cannot be had.
    """
    directory = place.directory
    if directory is None:
        return None, None if place.given else place.why
    folder = Folder(directory)
    try:
        folder.take()
    except LockedError:
        if predecessor:
            return folder, None
        return folder, f"{directory}: is in use by another process; give each sidecar a rejection_log.dir of its own"
    except ValueError:
        raise StartError(f"rejection_log.dir {str(directory)!r}: is no path") from None
    except OSError as error:
        why = words_for(error)
        if error.errno in _PASSING:
            return folder, f"{directory}: {why}"
        if place.given:
            what = 'make it writable for this user, choose another folder, or "off"'
            raise StartError(f"rejection_log.dir {directory}: {why}; {what}") from None
        return None, f"{directory}: {why}; give rejection_log.dir"
    return folder, None


# For commands that read rejection logs: where this machine's sidecars keep them unless told otherwise.
def usual_logs(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the folders with rejection logs of this machine and user, sorted.

    Args:
        environ: the environment.

    Raises:
        SettingsError: there is none.
    """
    base = usual_base(environ)
    try:
        found = sorted(path for path in base.glob(f"*/{FOLDER}") if path.is_dir())
    except OSError:
        found = []
    if not found:
        raise SettingsError(
            f"no rejection log below {base}, where sidecars of this machine and user keep theirs; name its folder:"
            " rejection_log.dir, or `rejections` in the --state-dir; `sluice state` says it"
        )
    return found
