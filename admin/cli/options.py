"""What the commands share: the flags that say whom to ask, and how answers are printed."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from admin.cli import protocol_words
from admin.client.target import Given, Target, find_target
from admin.common.columns import CONNECTIONS, LIMITS, ConnectionColumn, LimitColumn, sort_words
from admin.common.errors import SettingsError
from admin.common.tables import printable
from admin.config.addresses import DEFAULT_ADMIN

if TYPE_CHECKING:
    from admin.client.api import Api, Reply

Flag = partial(Parameter, show_choices=False, show_default=False)
Switch = partial(Parameter, show_default=False, negative="")

# What a shell completes. The sidecar knows which words there are, a protocol's kinds among them: all are let through.
# fmt: off
_Word = protocol_words.Kind | protocol_words.Scope
KindWord = _Word | Literal["total"] | str  # noqa: PYI051 - see above
SwitchWord = Literal["all"] | _Word | str  # noqa: PYI051 - see above
FilterWord = Literal["limited", "edited", "near", "shadowed"] | str  # noqa: PYI051 - see above
ColumnWord = LimitColumn | str
ConnectionColumnWord = ConnectionColumn | str
# fmt: on
LIMIT_COLUMNS: Final = ", ".join(sort_words(LIMITS))
CONNECTION_COLUMNS: Final = ", ".join(sort_words(CONNECTIONS))
FileName = str | Path
"""A file that a shell completes; a ``str`` in fact, since that is tried first."""

KINDS: Final = f"{protocol_words.KINDS}; {protocol_words.SCOPES}"
"""The kinds of resources and of scopes, for people."""

EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 no answer or not possible now, 2 wrong command line or refused as invalid,"
    " 3 somebody else changed it first, 4 not permitted, 5 not found, or nothing to undo."
)

WHOM: Final = (
    "Which sidecar: --admin or SLUICE_URL (HOST:PORT or a URL), with the token from --token-file, SLUICE_TOKEN or"
    " SLUICE_TOKEN_FILE. Or --profile or SLUICE_PROFILE: a table in profiles.toml in the user's configuration directory"
    " (~/.config/sluice) with admin, token or token_file, and ca_file."
)
ASKING: Final = f"{WHOM}\n\n{EXIT_CODES}"
"""Closes the help of commands that ask a sidecar."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetFlags:
    """Which sidecar to ask, and how to show what it answers."""

    admin: Annotated[str | None, Flag(help=f"which sidecar to ask ({DEFAULT_ADMIN})", metavar="ADDRESS")] = None
    profile: Annotated[str | None, Flag(help="take address and token from this profile", metavar="NAME")] = None
    token_file: Annotated[FileName | None, Flag(help="file that contains the token", metavar="FILE")] = None
    ca_file: Annotated[FileName | None, Flag(help="PEM file of the certificate authority", metavar="FILE")] = None
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

    def write(
        self,
        method: str,
        *place: str | int,
        verb: str = "",
        body: Mapping[str, Any] | None = None,
        if_match: str = "",
        note: "Callable[[Api, Reply], str] | None" = None,
        **params: str | bool,
    ) -> int:
        """Change one thing, say what that did, and return the exit code.

        Args:
            method: of HTTP.
            place: what is changed, as parts of a path.
            verb: put behind the path, if the method does not say it all.
            body: of the request.
            if_match: the ETag that is expected.
            note: returns a line to print below the answer, given that; empty for none.
            params: of the query.

        Raises:
            OperatorError: see ``Api``.
        """
        from admin.client.api import path  # noqa: PLC0415 - as in print
        from admin.client.limits import answer  # noqa: PLC0415 - as in print

        def ask(api: "Api") -> str:
            reply = api.ask(method, path(*place) + verb, params=params, body=body, if_match=if_match)
            text = answer(reply, dry_run=bool(params.get("dry_run")), json=self.json)
            line = note(api, reply) if note is not None and not self.json else ""
            return f"{text}\n{line}" if line else text

        return self.print(ask)


ASK: Final = TargetFlags()


def _text(file: FileName | None) -> str | None:
    return None if file is None else str(file)


OfKind = Annotated[KindWord, Flag(help="only of this kind", metavar="KIND")]
Search = Annotated[str, Flag(help="only names that contain this", metavar="TEXT")]
Filter = Annotated[FilterWord, Flag(help="limited (now), edited or near (80 % of the limit)", metavar="WHAT")]
Reason = Annotated[str, Flag(help="why, for the audit trail", metavar="TEXT")]
DryRun = Annotated[bool, Switch(help="only show what would change")]
Most = Annotated[int, Flag(help="maximum number of rows (100)", metavar="N")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Write:
    """How something is changed."""

    reason: Reason = ""
    dry_run: DryRun = False
    volatile: Annotated[bool, Switch(help="until the restart only; not stored")] = False


WRITE: Final = Write()


def positive(limit: int) -> int:
    """Return a number of rows that was given, or refuse it."""
    if limit < 1:
        raise SettingsError(f"--limit {limit}: must be at least 1")
    return limit


def say(text: str) -> None:
    """Print what was asked for; characters that would give a terminal orders are written as escapes."""
    if not text.isprintable():
        text = "\n".join(map(printable, text.split("\n")))
    print(text)  # noqa: T201 - the command line speaks to people here


def warn(lines: tuple[str, ...]) -> None:
    """Tell the operator what is doubtful, besides."""
    for line in lines:
        print(f"sluice: warning: {line}", file=sys.stderr)  # noqa: T201 - as above
