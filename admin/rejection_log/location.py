"""Where the rejection log is kept: the configured folder or the usual one, and what happens when it cannot be had."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from admin.common.disk import words_for
from admin.common.errors import SettingsError, StartError
from admin.config.settings import OFF, RejectionLogSettings
from admin.edits.state_dir import usual_base
from admin.rejection_log.files import make_folder

FOLDER: Final = "rejections"
"""In the state directory."""

#: A sidecar must come up with a full disk.
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class LogPlace(NamedTuple):
    """Where the log is kept.

    Attributes:
        directory: None: there is no log.
        given: the operator chose this.
        why: why there is no usual directory.
    """

    directory: Path | None
    given: bool
    why: str | None = None


def of(settings: RejectionLogSettings, state_dir: Path | None) -> LogPlace:
    """Return where the log of a sidecar is kept; ``state_dir`` is None if edits are kept in memory only."""
    if settings.dir == OFF:
        return LogPlace(None, given=True)
    if settings.dir is not None:
        return LogPlace(Path(settings.dir).absolute(), given=True)
    if state_dir is None:
        return LogPlace(None, given=False, why="there is no state directory; give rejection_log.dir")
    return LogPlace(state_dir / FOLDER, given=False)


def prepare(place: LogPlace) -> tuple[Path | None, str | None]:
    """Make the folder; return it, and what is wrong with it. With a full disk it is tried again while traffic flows.

    Raises:
        StartError: the operator chose the folder, and it cannot be had.
    """
    directory = place.directory
    if directory is None:
        return None, None if place.given else place.why
    try:
        _make_writable(directory)
    except ValueError:
        raise StartError(f"rejection_log.dir {str(directory)!r}: is no path") from None
    except OSError as error:
        why = words_for(error)
        if error.errno in _PASSING:
            return directory, f"{directory}: {why}"
        if place.given:
            what = 'make it writable for this user, choose another folder, or "off"'
            raise StartError(f"rejection_log.dir {directory}: {why}; {what}") from None
        return None, f"{directory}: {why}; give rejection_log.dir"
    return directory, None


def _make_writable(directory: Path) -> None:
    make_folder(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
        raise OSError(errno.EROFS if read_only else errno.EACCES, "not writable")


def usual_logs(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the usual folders with rejection logs of this machine and user, sorted.

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
