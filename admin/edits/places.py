"""Finds and opens the state directory, where live edits are kept."""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs

from admin.common.disk import LockedError, read_whole, words_for
from admin.common.errors import StartError
from admin.config.addresses import Endpoint
from admin.config.settings import OFF, Settings
from admin.edits import journal
from admin.edits.model import ActiveEdit
from admin.edits.store import DirectoryStore, MemoryStore, Store

_APP: Final = "sluice"
_MODE: Final = 0o700
_NO_PATH: Final = "is no path: it has a character that none may have"


class Place(NamedTuple):
    """Where edits are kept.

    Attributes:
        directory: the state directory; None keeps edits until the restart only.
        given: it was configured, or switched off; otherwise it is the usual one.
        why: why there is no usual one.
    """

    directory: Path | None
    given: bool
    why: str | None = None


def of(settings: Settings, environ: Mapping[str, str]) -> Place:
    """Return where the edits of a sidecar with these settings are kept."""
    return find(settings.state_dir, environ, settings.listeners[0].listen if settings.listeners else None)


def find(state_dir: str | None, environ: Mapping[str, str], listen: Endpoint | None) -> Place:
    """Return where edits are kept.

    Args:
        state_dir: as configured: a directory, ``off``, or None for the usual place. That is ``$STATE_DIRECTORY``, which
            systemd sets; else of root /var/lib/sluice, of others the user's state directory; and below it a folder
            named after the first listener, so that sidecars side by side do not meet.
        environ: the environment.
        listen: the address of the first listener.
    """
    if state_dir == OFF:
        return Place(None, given=True)
    if state_dir is not None:
        return Place(Path(state_dir).absolute(), given=True)
    if listen is None or listen.port == 0:
        why = "a listener whose port the system chooses has no name to keep them under; give --state-dir"
        return Place(None, given=False, why=why)
    return Place(usual_base(environ) / f"{listen.host.replace(':', '_').replace('/', '_')}-{listen.port}", given=False)


def usual_base(environ: Mapping[str, str]) -> Path:
    """Return the directory below which each sidecar of this machine and user has its own, unless it was given one.

    Args:
        environ: the environment.
    """
    by_systemd = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if by_systemd:
        return Path(by_systemd)
    if os.geteuid() == 0:
        return Path("/var/lib") / _APP
    return platformdirs.user_state_path(_APP, appauthor=False)


def active_in(place: Place) -> tuple[Mapping[str, ActiveEdit], str | None]:
    """Return the active edits stored in a place, and what is wrong with it; it only reads, whoever has it open."""
    if place.directory is None:
        return {}, None
    try:
        return journal.read(read_whole(place.directory / journal.NAME)).active, None
    except FileNotFoundError:
        return {}, None
    except OSError as error:
        return {}, words_for(error)
    except ValueError:
        return {}, _NO_PATH
    except journal.DamagedError as error:
        return {}, f"{journal.NAME}: {error}; it will be set aside"


def open_store(place: Place, now: datetime, *, lock: int | None = None) -> Store:
    """Open the store of a place; a usual one that cannot be had keeps edits until the restart only.

    Args:
        place: where.
        now: the wall clock.
        lock: as in ``DirectoryStore``.

    Raises:
        StartError: another process has it, or somebody asked for it and it cannot be had.
    """
    directory = place.directory
    if directory is None:
        return MemoryStore(place.why)
    try:
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        return DirectoryStore(directory, now, lock=lock)
    except LockedError:
        what = "is in use by another process: give each sidecar a --state-dir of its own, or --take-over to replace it"
        raise StartError(f"state directory {directory}: {what}") from None
    except ValueError:
        raise StartError(f"state directory {str(directory)!r}: {_NO_PATH}") from None
    except OSError as error:
        why = words_for(error)
        if error.filename is not None and Path(error.filename).parent == directory:
            why = f"{Path(error.filename).name}: {why}"
        if place.given:
            what = 'make it writable for this user, choose another one, or "off" to keep edits until the restart only'
            raise StartError(f"state directory {directory}: {why}; {what}") from None
        return MemoryStore(f"{directory}: {why}; give --state-dir")
