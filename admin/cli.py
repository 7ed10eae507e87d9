"""The command line: ``sluice run``, ``check``, ``limits`` and ``demo``.

Parsing is cyclopts': flags are typed parameters, repeated flags become lists, a typo gets a suggestion, and
errors come as exceptions, so that their wording and exit codes stay ours.

Whatever goes wrong is said in single lines on stderr that begin with ``sluice:``. Exit codes: 0 done, 1 cannot
run here or nobody answers, 2 wrong command line or configuration, 128 + N ended by signal N.
"""

import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from cyclopts import App, Argument, CycloptsError, MissingArgumentError, Parameter, UnusedCliTokensError

from admin.errors import OperatorError, SettingsError
from admin.settings import DEFAULT_ADMIN
from admin.sources import Flags, load
from admin.toml_lines import Path as Place
from admin.version import sluice_version

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
_Flag = partial(Parameter, show_choices=False, show_default=False)
# No --empty-listen and the like: leaving a flag out says the same.
_Pairs = partial(Parameter, negative="", metavar=_ADDRESS)
_Limits = partial(Parameter, negative="", metavar="LIMIT")


@app.command(
    help_epilogue=(
        "A limit is KIND:NAME=RATE/s, =0/s (refuse all) or =unlimited; NAME may be a pattern with * ? []. The exact "
        "name wins over the pattern with most literal characters, that over KIND:*. Without any limit given: "
        "topic:*=2000/s and retry_group:*=100/s; with limits given, what none of them matches is unlimited. RATE is in "
        "messages per second. A name with =, a comma or white space can only be written in the file.\n\n"
        "Flags win over the environment, that over the file. A limit replaces the whole rule of that name in the file, "
        "with all that it says besides the rate. SLUICE_LISTEN, SLUICE_BROKER and SLUICE_LIMIT take "
        "several values, separated by blanks, limits also by commas. Other variables are called after the key's place "
        "in the file: log.level is SLUICE_LOG_LEVEL."
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
    # Imported only in the commands that need it, here and below: event loop, HTTP server and tables take their time.
    import trio  # noqa: PLC0415 - see above

    from admin import logs, sidecar  # noqa: PLC0415 - see above
    from admin.composition import compose  # noqa: PLC0415 - see above

    configuration = load(config, os.environ, flags)
    plan = compose(configuration)
    if not plan.listeners:
        raise SettingsError("nothing to listen on: give --listen and --broker, or [[listeners]] in a --config file")
    logs.start(plan.settings.log)
    exit_code: int = trio.run(sidecar.run_until_signal, plan)
    return exit_code


@app.command
def check(file: Annotated[str, Parameter(help="TOML file to validate")], /) -> int:
    """Validate a configuration file and print what it would put in force.

    The environment counts, as it would for `sluice run --config FILE`.
    """
    from admin.composition import compose  # noqa: PLC0415 - as in run
    from admin.report import report, show  # noqa: PLC0415 - as in run

    plan = compose(load(file, os.environ, Flags()))
    show(report(plan, datetime.now(UTC)))
    _complain([f"warning: {warning}" for warning in plan.warnings()], 0)
    return 0


limits = App(name="limits", help="Look into the limits of a running Sluice, or of a configuration file.")
app.command(limits)


@limits.command(
    help_epilogue=(
        "It prints what limits such a request, in the order in which it is asked: the rule and why it holds, what "
        "happens above the limit, the state of its bucket and how much of it was used of late."
    )
)
def explain(
    kind: Annotated[str, _Flag(help="topic, retry_group, subscription; client, producer_group, listener")],
    name: Annotated[str, _Flag(help="its name, of a subscription GROUP@TOPIC")],
    /,
    *,
    client: Annotated[str, _Flag(help="IP address of who asks", metavar="ADDRESS")] = "",
    producer_group: Annotated[str, _Flag(help="the group that sends", metavar="GROUP")] = "",
    listener: Annotated[str, _Flag(help="the listener it comes through, or its scope", metavar="NAME")] = "",
    at: Annotated[str, _Flag(help="by the rules of another time, e.g. 2026-11-21T23:00+01:00", metavar="TIME")] = "",
    admin: Annotated[str | None, _Flag(help=f"which sidecar to ask ({DEFAULT_ADMIN})", metavar=_ADDRESS)] = None,
    config: Annotated[str | None, _Flag(help="ask this TOML file instead of a sidecar", metavar="FILE")] = None,
    json: Annotated[bool, _Flag(help="print the API's JSON", negative="")] = False,
) -> int:
    """Say which limits a request must pass, why, and in which state they are."""
    from admin import explain as asking  # noqa: PLC0415 - as in run
    from proxy.control import Question  # noqa: PLC0415 - as in run

    question = Question(kind, name, client, producer_group, listener, at)
    if config is None:
        explanation = asking.ask_sidecar(asking.admin_endpoint(admin), question)
    elif admin is None:
        explanation = asking.ask_file(config, question)
    else:
        raise SettingsError("--admin and --config: give one of them; only one can be asked")
    text = asking.as_json(explanation) if json else asking.text(explanation, live=config is None and not at)
    print(text)  # noqa: T201 - the command line speaks to people here
    return 0


@app.command
def demo(
    *, seconds: Annotated[float | None, Parameter(help="end after so long instead of on Ctrl-C", metavar="N")] = None
) -> int:
    """Watch one runaway and several quiet topics go through Sluice to an embedded broker.

    Nothing else is needed. It ends with a table of what was sent, passed, refused and stored.
    """
    import trio  # noqa: PLC0415 - as in run

    from admin.demo.stage import perform  # noqa: PLC0415 - as in run

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
