"""Finds and creates a sidecar's directories for its state, rejection log and spool."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs

from admin.common.disk import os_error_text
from admin.common.errors import SettingsError, StartError
from admin.config.settings import OFF, RejectionLogSettings, Settings, SpoolSettings

REJECTIONS: Final = "rejections"
SPOOL: Final = "spool"

SPOOL_HINT: Final = 'make it writable for this user, choose another folder, or set "off" to use memory only'
_LOG_HINT: Final = 'make it writable for this user, choose another folder, or set "off"'
_APP: Final = "sluice"
#: A full disk does not prevent startup.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Folder(NamedTuple):
    """A configured or default folder.

    Attributes:
        given: Whether the configuration sets the folder or turns it off. False for a default folder.
        why: Why there is no folder, or why it cannot be used.
    """

    path: Path | None
    given: bool = False
    why: str = ""

    def __str__(self) -> str:
        return str(self.path or OFF) + (f" ({self.why})" if self.why else "")


def state_dir(settings: Settings, environ: Mapping[str, str]) -> Folder:
    """Return the state directory. The default is named after the first listener, so that sidecars do not share one."""
    if settings.state_dir is not None:
        return _given(settings.state_dir)
    listen = settings.listeners[0].listen if settings.listeners else None
    if listen is None or listen.port == 0:
        why = "the default folder is named after the port of the first listener, which is 0; set --state-dir"
        return Folder(None, why=why)
    return Folder(_base(environ) / f"{listen.host.replace(':', '_').replace('/', '_')}-{listen.port}")


def rejections(settings: RejectionLogSettings, state: Path | None) -> Folder:
    return _below(settings.dir, "rejection_log.dir", state, REJECTIONS)


def spool(settings: SpoolSettings, state: Path | None) -> Folder:
    return _below(settings.dir, "spool.dir", state, SPOOL)


def make_rejections(folder: Folder) -> Folder:
    """Create the folder for the rejection log. Raises StartError if a configured folder is unusable."""
    return _make(folder, "rejection_log.dir", _LOG_HINT, 0o750)


def make_spool(folder: Folder) -> Folder:
    """Create the spool folder like ``make_rejections``. If it cannot be used, ``path`` is None."""
    made = _make(folder, "spool.dir", SPOOL_HINT, 0o700)
    return made._replace(path=None) if made.why else made


def default_logs(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the rejection log folders in this user's default state directories.

    Raises SettingsError if there are none.
    """
    base = _base(environ)
    try:
        found = sorted(path for path in base.glob(f"*/{REJECTIONS}") if path.is_dir())
    except OSError:
        found = []
    if not found:
        raise SettingsError(
            f"found no rejection log under {base}, the default location for this user; pass the log's directory, which"
            " `sluice state` shows"
        )
    return found


def _given(configured: str) -> Folder:
    return Folder(None if configured == OFF else Path(configured).absolute(), given=True)


def _below(configured: str | None, key: str, state: Path | None, name: str) -> Folder:
    if configured is not None:
        return _given(configured)
    if state is None:
        return Folder(None, why=f"there is no state directory; set {key}")
    return Folder(state / name)


def _base(environ: Mapping[str, str]) -> Path:
    if by_systemd := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(by_systemd)
    if os.geteuid() == 0:
        return Path("/var/lib") / _APP
    return platformdirs.user_state_path(_APP, appauthor=False)


def _make(folder: Folder, key: str, hint: str, mode: int) -> Folder:
    path = folder.path
    if path is None:
        return folder
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            raise OSError(errno.EROFS if read_only else errno.EACCES, "not writable")  # noqa: TRY301 - worded below
    except ValueError:
        raise StartError(f"{key} {str(path)!r} is not a valid path") from None
    except OSError as error:
        why = f"{path}: {os_error_text(error)}"
        if error.errno in _FULL:
            return folder._replace(why=why)
        if folder.given:
            raise StartError(f"{key} {why}; {hint}") from None
        return Folder(None, why=f"{why}; set {key}")
    return folder
