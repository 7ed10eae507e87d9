"""Where the state directory of a sidecar is; ``admin.edits.store`` opens it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs

from admin.config.addresses import Endpoint
from admin.config.settings import OFF, Settings

_APP: Final = "sluice"


class StateDir(NamedTuple):
    """The state directory, as configured.

    Attributes:
        directory: None keeps edits until the restart only.
        given: it was configured, or switched off. Otherwise it is the default one.
        why: why there is no default one.
    """

    directory: Path | None
    given: bool
    why: str | None = None


def of(settings: Settings, environ: Mapping[str, str]) -> StateDir:
    """Return the state directory of a sidecar with these settings."""
    return find(settings.state_dir, environ, settings.listeners[0].listen if settings.listeners else None)


def find(configured: str | None, environ: Mapping[str, str], listen: Endpoint | None) -> StateDir:
    """Return the state directory.

    Args:
        configured: a directory, ``off``, or None for the default: a folder named after the first listener, so that
            sidecars side by side do not share one, in ``usual_base``.
        environ: the environment.
        listen: the address of the first listener.
    """
    if configured == OFF:
        return StateDir(None, given=True)
    if configured is not None:
        return StateDir(Path(configured).absolute(), given=True)
    if listen is None or listen.port == 0:
        why = "a listener whose port the system chooses has no name to keep them under; give --state-dir"
        return StateDir(None, given=False, why=why)
    name = f"{listen.host.replace(':', '_').replace('/', '_')}-{listen.port}"
    return StateDir(usual_base(environ) / name, given=False)


def usual_base(environ: Mapping[str, str]) -> Path:
    """Return the parent of all default state directories of this machine and user.

    It is ``$STATE_DIRECTORY``, which systemd sets; else /var/lib/sluice for root, or the user's state directory.
    """
    if by_systemd := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(by_systemd)
    if os.geteuid() == 0:
        return Path("/var/lib") / _APP
    return platformdirs.user_state_path(_APP, appauthor=False)
