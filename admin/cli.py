"""The command line: ``sluice run``, ``check`` and ``demo``.

Parsing is cyclopts': flags are typed parameters, repeated flags become lists, a typo gets a suggestion, and
errors come as exceptions, so that their wording and exit codes stay ours.

Whatever goes wrong is said in single lines on stderr that begin with ``sluice:``. Exit codes: 0 done, 1 cannot
run here, 2 wrong command line or configuration, 128 + N ended by signal N.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Literal

import trio
from cyclopts import App, Argument, CycloptsError, MissingArgumentError, Parameter, UnusedCliTokensError

from admin import logs, sidecar
from admin.composition import compose
from admin.errors import OperatorError, SettingsError
from admin.metrics import sluice_version
from admin.report import report, show
from admin.settings import DEFAULT_ADMIN
from admin.sources import Flags, load
from admin.toml_lines import Path as Place

app = App(
    name="sluice",
    help="Per-topic rate limits for message brokers that have none: a sidecar between clients and broker.",
    version=lambda: f"sluice {sluice_version()}",
    help_format="plaintext",
    print_error=False,
    exit_on_error=False,
    help_epilogue="Every command explains itself: sluice run --help",
)

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "human", "json"]

_ADDRESS = "HOST:PORT"
_Flag = partial(Parameter, show_choices=False)
# No --empty-listen and the like: leaving a flag out says the same.
_Pairs = partial(Parameter, negative="", metavar=_ADDRESS)
_Limits = partial(Parameter, negative="", metavar="LIMIT")


@app.command(
    help_epilogue=(
        "A limit is KIND:NAME=RATE/s, =0/s (refuse all) or =unlimited; NAME may be a pattern with * ? []. The exact "
        "name wins over the pattern with most literal characters, that over KIND:*. Without any limit given: "
        "topic:*=2000/s and retry_group:*=100/s; with limits given, what none of them matches is unlimited.\n\n"
        "Flags win over the environment (SLUICE_LISTEN, SLUICE_LIMIT, SLUICE_LOG_LEVEL …), that over the file."
    )
)
def run(
    *,
    listen: Annotated[list[str] | None, _Pairs(help="where clients connect")] = None,
    broker: Annotated[list[str] | None, _Pairs(help="the broker behind it")] = None,
    protocol: Annotated[str | None, _Flag(help="what they speak (rocketmq)", metavar="NAME")] = None,
    limit: Annotated[list[str] | None, _Limits(help="e.g. topic:orders=500/s; see below")] = None,
    config: Annotated[str | None, _Flag(help="TOML file, like deploy/sluice.toml", metavar="FILE")] = None,
    admin: Annotated[str | None, _Flag(help=f"metrics and health, or off ({DEFAULT_ADMIN})", metavar=_ADDRESS)] = None,
    log_level: Annotated[LogLevel | None, _Flag(help="debug, info, warning or error (info)", metavar="LEVEL")] = None,
    log_format: Annotated[LogFormat | None, _Flag(help="auto, human or json (auto)", metavar="FORMAT")] = None,
    grace_s: Annotated[float | None, _Flag(help="for what is in flight at the end (10)", metavar="SECONDS")] = None,
) -> int:
    """Run the sidecar until SIGTERM or Ctrl-C.

    Repeat --listen and --broker in pairs, and --limit for each limit.
    """
    given: dict[Place, tuple[str, object]] = {
        ("admin", "listen"): ("--admin", admin),
        ("log", "level"): ("--log-level", log_level),
        ("log", "format"): ("--log-format", log_format),
        ("grace_s",): ("--grace-s", grace_s),
    }
    flags = Flags(
        listen=listen or (),
        broker=broker or (),
        protocol=protocol,
        limits=limit or (),
        values={place: flag for place, flag in given.items() if flag[1] is not None},
    )
    configuration = load(config, os.environ, flags)
    plan = compose(configuration)
    if not plan.listeners:
        raise SettingsError("nothing to listen on: give --listen and --broker, or [[listeners]] in a --config file")
    logs.configure(plan.settings.log)
    exit_code: int = trio.run(sidecar.run_until_signal, plan)
    return exit_code


@app.command
def check(file: Annotated[str, Parameter(help="TOML file to validate")], /) -> int:
    """Validate a configuration file and print what it would put in force.

    The environment counts, as it would for `sluice run --config FILE`.
    """
    show(report(compose(load(file, os.environ, Flags()))))
    return 0


@app.command
def demo(
    *, seconds: Annotated[float | None, Parameter(help="end after so long instead of on Ctrl-C", metavar="N")] = None
) -> int:
    """Watch one runaway and several quiet topics go through Sluice to an embedded broker.

    Nothing else is needed. It ends with a table of what was sent, passed, refused and stored.
    """
    # Imported only here: nobody but the demo needs the embedded broker.
    from admin.demo.stage import perform  # noqa: PLC0415 - see above

    if seconds is not None and not 0 < seconds < float("inf"):
        raise SettingsError(f"--seconds {seconds:g}: must be more than 0")
    exit_code: int = trio.run(partial(perform, seconds=seconds))
    return exit_code


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command; the console script ``sluice``.

    Args:
        tokens: the command line without the program's name; the process's own if not given.

    Returns:
        The exit code.
    """
    try:
        result = app(sys.argv[1:] if tokens is None else tokens, result_action="return_value")
    except CycloptsError as error:
        return _complain([_usage(error)], 2)
    except BrokenPipeError:
        # Whoever read our output has had enough. Python must not try to flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - whatever it was, an operator gets a line and no traceback
        operator_errors = list(_operator_errors(error))
        if operator_errors:
            lines = [line for operator_error in operator_errors for line in operator_error.lines]
            return _complain(lines, operator_errors[0].exit_code)
        return _complain([f"internal error: {_describe(error)}; please report it"], 1)
    return result if isinstance(result, int) else 0


def _complain(lines: Sequence[str], exit_code: int) -> int:
    for line in lines:
        print(f"sluice: {line}", file=sys.stderr)  # noqa: T201 - the command line speaks to people here
    return exit_code


def _usage(error: CycloptsError) -> str:
    """Put a parsing error into our form: one line, no full stop, and where the help is."""
    command = " ".join(["sluice", *(error.command_chain or ())])
    match error:
        case UnusedCliTokensError(unused_tokens=[str() as token, *_]):
            message = f'unexpected argument "{token}"'
        case MissingArgumentError(argument=Argument() as argument):
            message = f"{argument.name}: nothing given"
        case _:
            # cyclopts writes sentences; ours is one line.
            message = re.sub(r"\. ([A-Z])", lambda match: f"; {match[1].lower()}", " ".join(str(error).split()))
            message = message[:1].lower() + message[1:].rstrip(".")
    return f"{message}{'' if message.endswith('?') else ';'} see {command} --help"


def _operator_errors(error: BaseException) -> Iterator[OperatorError]:
    """Find what is meant for the operator in the groups that nurseries wrap around it."""
    if isinstance(error, OperatorError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _operator_errors(inner)


def _describe(error: BaseException) -> str:
    """Name the innermost error of nested groups, and where it was raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = f" in {traceback.tb_frame.f_globals.get('__name__')}:{traceback.tb_lineno}" if traceback else ""
    return f"{type(error).__name__}{where}: " + (" ".join(str(error).split()) or "no details")
