"""Errors that are shown to the operator without a traceback.

Their messages say where the problem is, which value is wrong, and how to fix it.
"""

import errno
from collections.abc import Sequence

from admin.common.tables import printable


class OperatorError(Exception):
    exit_code = 1

    def __init__(self, lines: str | Sequence[str]) -> None:
        self.lines = tuple(map(printable, (lines,) if isinstance(lines, str) else lines))
        super().__init__("\n".join(self.lines))


class SettingsError(OperatorError):
    """The command line, the environment or the configuration file is invalid."""

    exit_code = 2


class StartError(OperatorError):
    """The settings are valid, but Sluice cannot run with them on this machine."""


def listen_error(what: str, address: str, error: OSError, *, hint: str = "", flag: str = "") -> StartError:
    """Explain why ``what`` cannot listen on ``address``.

    If the address is in use, the message includes ``hint`` and suggests using ``flag`` to choose another address.
    """
    other = "choose another address" + (f" with {flag}" if flag else "")
    why = {
        errno.EADDRINUSE: "; ".join(
            filter(None, ("it is in use", hint, f"stop the process that listens there or {other}"))
        ),
        errno.EADDRNOTAVAIL: "this machine does not have the address; choose one that `ip address` shows",
        errno.EACCES: "not permitted; choose a port above 1023 or grant CAP_NET_BIND_SERVICE",
        errno.EPERM: "not permitted; choose a port above 1023 or grant CAP_NET_BIND_SERVICE",
    }.get(error.errno or 0)
    if why is None:
        why = f"{error.strerror or error}; choose an address of this machine"
    return StartError(f"{what}: cannot listen on {address}: {why}")
