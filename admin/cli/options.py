"""Flags and output functions that all commands share."""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from admin.cli import protocol_words
from admin.client.target import Given, Target, find_target
from admin.common import columns
from admin.common.columns import ConnectionColumn, LimitColumn
from admin.common.tables import printable
from admin.config.addresses import DEFAULT_ADMIN

if TYPE_CHECKING:
    from admin.client.api import Api

PLAIN: Final = Parameter(show_choices=False, show_default=False, negative="")

# Words for shell completion. Other words are accepted too, because only the sidecar knows which are valid.
# fmt: off
_Word = protocol_words.Kind | protocol_words.Scope
KindWord = _Word | Literal["total"] | str  # noqa: PYI051 - see above
SwitchWord = Literal["all"] | _Word | str  # noqa: PYI051 - see above
FilterWord = columns.Filter | str
ColumnWord = LimitColumn | str
ConnectionColumnWord = ConnectionColumn | str
# fmt: on
FileName = str | Path
"""Shells complete this as a path, but commands get a string."""

KINDS: Final = f"{protocol_words.KINDS}; {protocol_words.SCOPES}"
ASKING: Final = "Select a sidecar with --admin, SLUICE_URL or a profile. See `sluice --help` for exit codes."
LONG_S: Final = 60.0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetFlags:
    admin: Annotated[str | None, Parameter(help=f"address of the sidecar ({DEFAULT_ADMIN})", metavar="ADDRESS")] = None
    profile: Annotated[str | None, Parameter(help="profile that contains the address and token", metavar="NAME")] = None
    token_file: Annotated[FileName | None, Parameter(help="file that contains the token", metavar="FILE")] = None
    ca_file: Annotated[FileName | None, Parameter(help="PEM file with the CAs to trust", metavar="FILE")] = None
    json: Annotated[bool, Parameter(help="print the API's JSON")] = False

    def target(self) -> Target:
        """Find the sidecar's address and token, and print warnings about them. Raises SettingsError."""
        file, ca = (None if each is None else str(each) for each in (self.token_file, self.ca_file))
        target = find_target(Given(self.admin, file, ca, self.profile), os.environ)
        warn(target.warnings)
        return target

    def run(self, ask: "Callable[[Api], str]", timeout_s: float = 5.0) -> int:
        """Call ``ask`` with the API and print the result. Raises OperatorError."""
        from admin.client.api import Api  # noqa: PLC0415 - slow to import

        with Api(self.target(), timeout_s, json=self.json) as api:
            say(ask(api))
        return 0


ASK: Final = TargetFlags()

OfKind = Annotated[KindWord, Parameter(help="only this kind", metavar="KIND")]
Search = Annotated[str, Parameter(help="only names that contain this text", metavar="TEXT")]
Filter = Annotated[
    FilterWord, Parameter(help="limited, shadowed, edited, or near (at least 80 % used)", metavar="WHAT")
]
Reason = Annotated[str, Parameter(help="reason to record in the audit trail", metavar="TEXT")]
DryRun = Annotated[bool, Parameter(help="only show what would change")]
Most = Annotated[int, Parameter(help="maximum number of rows (100)", metavar="N", validator=Number(gte=1))]
All = Annotated[bool, Parameter(help="all rows")]
Desc = Annotated[bool, Parameter(help="sort in descending order")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Write:
    """Flags for commands that make changes."""

    reason: Reason = ""
    dry_run: DryRun = False
    volatile: Annotated[bool, Parameter(help="do not save the change, so that it is lost on restart")] = False
    fleet: Annotated[bool, Parameter(help="make the change on all members of the fleet")] = False


WRITE: Final = Write()


def say(text: str) -> None:
    """Print text with control characters escaped."""
    if not text.isprintable():
        text = "\n".join(map(printable, text.split("\n")))
    print(text)  # noqa: T201 - for people


def warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"sluice: warning: {line}", file=sys.stderr)  # noqa: T201 - for people
