"""Where this machine's sidecars keep their rejection logs unless told otherwise; for commands that read them."""

import os
from collections.abc import Mapping
from pathlib import Path

from admin.errors import SettingsError
from admin.live.places import usual_base
from admin.rejection_log.places import FOLDER


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
