"""What the commands share: the flags that say whom to ask, and how answers are printed."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from admin.client.target import Given, Target, find_target
from admin.endpoint import DEFAULT_ADMIN
from admin.tables import printable

if TYPE_CHECKING:
    from admin.client.api import Api

Flag = partial(Parameter, show_choices=False, show_default=False)
Switch = partial(Parameter, show_default=False, negative="")

# What a shell completes. The sidecar knows which words there are, a protocol's kinds among them: all are let through.
# fmt: off
KindWord = Literal["topic", "retry_group", "subscription", "client", "producer_group", "listener", "total"] | str  # noqa: PYI051 - see above
SwitchWord = Literal["all", "topic", "retry_group", "subscription", "client", "producer_group", "listener"] | str  # noqa: PYI051 - see above
ActionWord = Literal["reject", "shadow", "delay", "off"] | str  # noqa: PYI051 - see above
CountWord = Literal["messages", "requests"] | str  # noqa: PYI051 - see above
FairWord = Literal["client", "producer_group"] | str  # noqa: PYI051 - see above
FilterWord = Literal["limited", "edited", "near", "shadowed"] | str  # noqa: PYI051 - see above
ColumnWord = Literal["name", "kind", "limit", "rule", "passed", "refused", "shadowed", "bypassed", "used", "wait", "last_refused", "edited", "expires"] | str  # noqa: E501, PYI051 - see above
ConnectionColumnWord = Literal["id", "peer", "client", "listener", "age", "bytes", "requests", "refused", "in_flight"] | str  # noqa: E501, PYI051 - see above
# fmt: on
FileName = str | Path
"""A file that a shell completes; a ``str`` in fact, since that is tried first."""

EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 nobody answers or it cannot be done now, 2 wrong command line or refused as invalid,"
    " 3 somebody else changed it first, 4 not permitted, 5 not found, or nothing to undo."
)

WHOM: Final = (
    "Which sidecar: --admin or SLUICE_URL, HOST:PORT or a URL; with the token of --token-file, SLUICE_TOKEN or"
    " SLUICE_TOKEN_FILE. Or --profile, SLUICE_PROFILE: a table in profiles.toml in the user's configuration directory"
    " (~/.config/sluice) with admin, token or token_file, ca_file."
)
ASKING: Final = f"{WHOM}\n\n{EXIT_CODES}"
"""Closes the help of commands that ask a sidecar."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Ask:
    """Which sidecar to ask, and how to show what it answers."""

    admin: Annotated[str | None, Flag(help=f"which sidecar to ask ({DEFAULT_ADMIN})", metavar="ADDRESS")] = None
    profile: Annotated[str | None, Flag(help="address and token of this profile", metavar="NAME")] = None
    token_file: Annotated[FileName | None, Flag(help="file with the token in it", metavar="FILE")] = None
    ca_file: Annotated[FileName | None, Flag(help="PEM file of who signed its certificate", metavar="FILE")] = None
    json: Annotated[bool, Switch(help="print the API's JSON")] = False

    def target(self) -> Target:
        """Return where to ask, and warn of what is doubtful about it.

        Raises:
            SettingsError: something of it is wrong.
        """
        target = find_target(Given(self.admin, _text(self.token_file), _text(self.ca_file), self.profile), os.environ)
        warn(target.warnings)
        return target

    def print(self, ask: "Callable[[Api], str]", timeout_s: float | None = None) -> int:
        """Ask, print what comes, and return the exit code.

        Raises:
            OperatorError: see ``Api``.
        """
        from admin.client.api import TIMEOUT_S, Api  # noqa: PLC0415 - the HTTP client takes its time

        with Api(self.target(), timeout_s or TIMEOUT_S) as api:
            say(ask(api))
        return 0


ASK: Final = Ask()


def _text(file: FileName | None) -> str | None:
    return None if file is None else str(file)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Write:
    """How something is changed."""

    reason: Annotated[str, Flag(help="why, for the audit trail", metavar="TEXT")] = ""
    dry_run: Annotated[bool, Switch(help="only say what would change")] = False
    volatile: Annotated[bool, Switch(help="until the restart only, written nowhere")] = False


WRITE: Final = Write()


def say(text: str) -> None:
    """Print what was asked for; characters that would give a terminal orders are written as escapes."""
    if not text.isprintable():
        text = "\n".join(map(printable, text.split("\n")))
    print(text)  # noqa: T201 - the command line speaks to people here


def warn(lines: tuple[str, ...]) -> None:
    """Tell the operator what is doubtful, besides."""
    for line in lines:
        print(f"sluice: warning: {line}", file=sys.stderr)  # noqa: T201 - as above
