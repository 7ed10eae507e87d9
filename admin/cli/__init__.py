"""The command line: ``sluice run``, ``check``, ``demo``, ``report``, and what is asked of a Sluice that runs.

Parsing is cyclopts': flags are typed parameters, repeated flags become lists, a typo gets a suggestion, and
errors come as exceptions, so that their wording and exit codes stay ours.

Whatever goes wrong is said in single lines on stderr that begin with ``sluice:``. Exit codes: 0 done, 1 cannot
run here, or nobody answers, or it cannot be done now; 2 wrong command line or configuration, or refused as invalid;
3 somebody else changed it first; 4 not permitted; 5 not found, or nothing to undo; 128 + N ended by signal N.
"""

import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

from cyclopts import (
    App,
    Argument,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

from admin.cli import limits, operating, report, running
from admin.cli.options import ASKING, EXIT_CODES, say
from admin.common.errors import OperatorError
from admin.common.tables import printable
from admin.common.version import sluice_version

app = App(
    name="sluice",
    help="Rate limits per topic and queue for message brokers: a sidecar between clients and broker.",
    version=lambda: f"sluice {sluice_version()}",
    help_format="plaintext",
    print_error=False,
    exit_on_error=False,
    help_epilogue=(
        "Every command explains itself: sluice run --help\n\n"
        "Commands that ask a running Sluice find it with --admin or SLUICE_URL.\n\n" + EXIT_CODES
    ),
)
app.command(running.run, help_epilogue=running.RUN_EPILOGUE)
app.command(running.check, usage="Usage: sluice check [FILE]", help_epilogue=running.CHECK_EPILOGUE)
app.command(limits.app)
app.command(operating.switch)
app.command(operating.reload, help_epilogue=ASKING)
app.command(operating.state, help_epilogue=ASKING)
app.command(operating.audit)
app.command(operating.connections)
app.command(operating.flow, help_epilogue=ASKING)
app.command(operating.spool)
app.command(operating.top, help_epilogue=ASKING)
app.command(report.app)
app.command(running.demo, help_epilogue=running.DEMO_EPILOGUE)


#: Which sidecar is asked, and how: of every command that asks one.
_ASKING_OPTIONS: Final = frozenset({"--admin", "--profile", "--token-file", "--ca-file", "--json"})


@app.command(
    help_epilogue=(
        "bash: sluice completion bash > ~/.local/share/bash-completion/completions/sluice\n\n"
        "zsh: sluice completion zsh > ~/.zfunc/_sluice, with ~/.zfunc in fpath\n\n"
        "fish: sluice completion fish > ~/.config/fish/completions/sluice.fish"
    )
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish", show_choices=False)], /
) -> int:
    """Print the completion script of a shell."""
    say(app.generate_completion(shell=shell))
    return 0


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command; the console script ``sluice``.

    Args:
        tokens: the command line without the program's name; the process's own if not given.

    Returns:
        The exit code.
    """
    try:
        result = app(sys.argv[1:] if tokens is None else tokens, result_action="return_value")
        # Here a failure to write can still be put in words; at the interpreter's end it could not.
        sys.stdout.flush()
    except CycloptsError as error:
        return _complain([_usage(error)], 2)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - whatever it was, an operator gets a line and no traceback
        return _failed(error)
    return result if isinstance(result, int) else 0


def _failed(error: Exception) -> int:
    """Tell the operator about an error, in lines, and return the exit code."""
    leaves = list(_leaves(error))
    operator_errors = [leaf for leaf in leaves if isinstance(leaf, OperatorError)]
    if operator_errors:
        lines = [line for operator_error in operator_errors for line in operator_error.lines]
        return _complain(lines, operator_errors[0].exit_code)
    for leaf in leaves:
        if isinstance(leaf, BrokenPipeError):
            # Whoever read our output has had enough.
            _discard_output()
            return 0
        if isinstance(leaf, OSError) and leaf.errno == errno.ENOSPC:
            _discard_output()
            return _complain(["cannot write the output: no space left on the device"], 1)
    return _complain([f"internal error: {_describe(error)}; please report it"], 1)


def _discard_output() -> None:
    """Let Python not try again, at its end, to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(lines: Sequence[str], exit_code: int) -> int:
    # Without anyone to read it, a complaint is lost, and the exit code must do.
    with suppress(OSError):
        for line in lines:
            # Names and reasons in it may be anybody's.
            text = "\n".join(map(printable, line.split("\n")))
            print(f"sluice: {text}", file=sys.stderr)  # noqa: T201 - the command line speaks to people here
    return exit_code


def _usage(error: CycloptsError) -> str:
    """Put a parsing error into our form: one line, no full stop, and where the help is."""
    command = " ".join(["sluice", *(error.command_chain or ())])
    match error:
        case UnusedCliTokensError(unused_tokens=[str() as token, *_]):
            message = f'unexpected argument "{token}"'
        case UnknownCommandError(unused_tokens=[str() as token, *_]) if token.startswith("-"):
            return _misplaced(token.partition("=")[0], command)
        case MissingArgumentError(argument=Argument() as argument):
            message = f"{argument.name}: nothing given"
        case _:
            # cyclopts writes sentences; ours is one line.
            message = re.sub(r"\. ([A-Z])", lambda match: f"; {match[1].lower()}", " ".join(str(error).split()))
            message = message.replace("...", "…")
            message = message[:1].lower() + message[1:].rstrip(".")
    return f"{message}{'' if message.endswith('?') else ';'} see {command} --help"


def _misplaced(option: str, command: str) -> str:
    """Say where an option belongs that stands in front of the command that has it."""
    if option in _ASKING_OPTIONS:
        example = f"{command} {'state' if command == 'sluice' else 'list'} {option}"
        value = {"--admin": " URL", "--json": ""}.get(option, f" {option.rpartition('-')[2].upper()}")
        return f"{option} goes behind the whole command, as in `{example}{value}`; see {command} --help"
    return f"{option} goes behind the command that has it, as in `{command} COMMAND {option}`; see {command} --help"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Take apart the groups that nurseries wrap around errors."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _describe(error: BaseException) -> str:
    """Name the innermost error of nested groups, and where it was raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = f" in {traceback.tb_frame.f_globals.get('__name__')}:{traceback.tb_lineno}" if traceback else ""
    return f"{type(error).__name__}{where}: " + (" ".join(str(error).split()) or "no details")
