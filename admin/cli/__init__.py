"""The ``sluice`` command. Every error is a line on stderr that begins with ``sluice:``."""

import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
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
from admin.cli.options import ASKING, PLAIN, say
from admin.common.errors import OperatorError
from admin.common.tables import printable
from admin.common.version import sluice_version

_EPILOGUE: Final = (
    "For help on a command: sluice run --help\n\n"
    "Select a running Sluice with --admin or SLUICE_URL (HOST:PORT or a URL). Give its token with --token-file,"
    " SLUICE_TOKEN or SLUICE_TOKEN_FILE. Alternatively, --profile or SLUICE_PROFILE selects a table in profiles.toml,"
    " which is in the user's configuration directory (~/.config/sluice). The table may contain the keys admin, token or"
    " token_file, and ca_file.\n\n"
    "Exit codes: 0 success, 1 no response or not possible now, 2 invalid command line or request, 3 conflict with"
    " another change, 4 not permitted, 5 not found or nothing to undo, 128 + N terminated by signal N."
)
app = App(
    name="sluice",
    help="A sidecar between clients and a message broker that limits rates per topic and queue.",
    version=lambda: f"sluice {sluice_version()}",
    help_format="plaintext",
    help_epilogue=_EPILOGUE,
    default_parameter=PLAIN,
    print_error=False,
    exit_on_error=False,
)
app.command(running.run, help_epilogue=running.RUN_EPILOGUE)
app.command(running.check, usage="Usage: sluice check [FILE]", help_epilogue=running.CHECK_EPILOGUE)
app.command(limits.app)
app.command(operating.switch)
app.command(operating.reload, help_epilogue=ASKING)
app.command(operating.state, help_epilogue=ASKING)
app.command(operating.audit)
app.command(operating.connections)
app.command(operating.flow, help_epilogue=operating.FLOW_EPILOGUE)
app.command(operating.fleet, help_epilogue=ASKING)
app.command(operating.spool)
app.command(operating.top, help_epilogue=operating.TOP_EPILOGUE)
app.command(report.app)
app.command(running.demo, help_epilogue=running.DEMO_EPILOGUE)

_WORDS: Final = {"...": "…", ">= ": "at least ", "into float": "into a number", "into int": "into a whole number"}
"""Replacements for words in cyclopts' messages."""
_COMPLETION_EPILOGUE: Final = (
    "bash: sluice completion bash > ~/.local/share/bash-completion/completions/sluice\n\n"
    "zsh: sluice completion zsh > ~/.zfunc/_sluice, with ~/.zfunc in fpath\n\n"
    "fish: sluice completion fish > ~/.config/fish/completions/sluice.fish"
)


@app.command(help_epilogue=_COMPLETION_EPILOGUE)
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish")], /) -> int:
    """Print the completion script for a shell."""
    say(app.generate_completion(shell=shell))
    return 0


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``tokens`` defaults to the process's arguments."""
    try:
        result = app(sys.argv[1:] if tokens is None else tokens, result_action="return_value")
        # A write error at exit could not be reported.
        sys.stdout.flush()
    except CycloptsError as error:
        return _print_error([_usage(error)], 2)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - operators get one line, not a traceback
        return _failed([*_leaves(error)])
    return result if isinstance(result, int) else 0


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _failed(errors: Sequence[BaseException]) -> int:
    known = [each for each in errors if isinstance(each, OperatorError)]
    if known:
        return _print_error([line for each in known for line in each.lines], known[0].exit_code)
    for each in errors:
        if isinstance(each, BrokenPipeError):
            _discard_output()
            return 0
        if isinstance(each, OSError) and each.errno == errno.ENOSPC:
            _discard_output()
            return _print_error(["cannot write the output: no space left on device"], 1)
    return _print_error([f"internal error: {_describe(errors[0])}; please report it"], 1)


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(lines: Sequence[str], exit_code: int) -> int:
    # If stderr is closed, only the exit code reports the error.
    with suppress(OSError):
        for line in lines:
            text = "\n".join(map(printable, line.split("\n")))
            print(f"sluice: {text}", file=sys.stderr)  # noqa: T201 - for people
    return exit_code


def _usage(error: CycloptsError) -> str:
    command = " ".join(["sluice", *(error.command_chain or ())])
    match error:
        case UnusedCliTokensError(unused_tokens=[str() as token, *_]):
            group = app
            for name in error.command_chain or ():
                group = group[name]
            near = get_close_matches(token, group, 1)
            message = f'unexpected argument "{token}"' + (f'; did you mean "{near[0]}"?' if near else "")
        case UnknownCommandError(unused_tokens=[str() as token, *_]) if token.startswith("-"):
            option = token.partition("=")[0]
            message = f"{option} belongs after the command, as in `{command} COMMAND {option}`"
        case MissingArgumentError(argument=Argument() as argument):
            message = f"{argument.name}: the value is missing"
        case _:
            message = re.sub(r"\. ([A-Z])", lambda match: f"; {match[1].lower()}", " ".join(str(error).split()))
            for theirs, ours in _WORDS.items():
                message = message.replace(theirs, ours)
            message = message[:1].lower() + message[1:].rstrip(".")
    return f"{message}{'' if message.endswith('?') else ';'} see {command} --help"


def _describe(error: BaseException) -> str:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = f" in {traceback.tb_frame.f_globals.get('__name__')}:{traceback.tb_lineno}" if traceback else ""
    return f"{type(error).__name__}{where}: " + (" ".join(str(error).split()) or "no details")
