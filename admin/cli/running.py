"""``sluice run``, ``check`` and ``demo``: what needs no other Sluice that runs."""

import os
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from admin.cli.options import FileName, Flag, warn
from admin.endpoint import DEFAULT_ADMIN
from admin.errors import SettingsError
from admin.garbage import short_pauses

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "human", "json"]

_ADDRESS = "HOST:PORT"
# No --empty-listen and the like: leaving a flag out says the same.
_Pairs = partial(Parameter, negative="", metavar=_ADDRESS)
_Limits = partial(Parameter, negative="", metavar="LIMIT")


RUN_EPILOGUE: Final = (
    "A limit is KIND:NAME=RATE/s, =0/s (refuse all) or =unlimited; NAME may be a pattern with * ? []. The exact "
    "name wins over the pattern with most literal characters, that over KIND:*. Without any limit given: "
    "topic:*=2000/s and retry_group:*=100/s; with limits given, what none of them matches is unlimited. RATE is in "
    "messages per second. A name with =, a comma or white space can only be written in the file.\n\n"
    "Flags win over the environment, that over the file. A limit replaces the whole rule of that name in the file, "
    "with all that it says besides the rate. SLUICE_LISTEN, SLUICE_BROKER and SLUICE_LIMIT take "
    "several values, separated by blanks, limits also by commas. Other variables are called after the key's place "
    "in the file: log.level is SLUICE_LOG_LEVEL.\n\n"
    "Live edits are kept in --state-dir; without it, in a folder named after the first listener below "
    "$STATE_DIRECTORY, /var/lib/sluice (root), or the user's state directory. On another admin address than this "
    "machine's own a token is needed: --admin-token-file, SLUICE_ADMIN_TOKEN or SLUICE_ADMIN_READ_TOKEN. SIGHUP "
    "reads the configuration again; SIGTERM and Ctrl-C drain."
)

CHECK_EPILOGUE: Final = "Exit codes: 0 it would run, 2 something is wrong in it."
DEMO_EPILOGUE: Final = "Exit codes: 0 all went as it ought to, 1 it did not. What is changed meanwhile is kept nowhere."


def run(
    *,
    listen: Annotated[list[str] | None, _Pairs(help="where clients connect")] = None,
    broker: Annotated[list[str] | None, _Pairs(help="the broker behind it")] = None,
    protocol: Annotated[str | None, Flag(help="what they speak (rocketmq)", metavar="NAME")] = None,
    limit: Annotated[list[str] | None, _Limits(help="e.g. topic:orders=500/s; see below")] = None,
    config: Annotated[FileName | None, Flag(help="TOML file, like deploy/sluice.toml", metavar="FILE")] = None,
    admin: Annotated[
        str | None, Flag(help=f"page, API, metrics and health, or off ({DEFAULT_ADMIN})", metavar=_ADDRESS)
    ] = None,
    log_level: Annotated[LogLevel | None, Flag(help="debug, info, warning or error (info)", metavar="LEVEL")] = None,
    log_format: Annotated[LogFormat | None, Flag(help="auto, human or json (auto)", metavar="FORMAT")] = None,
    state_dir: Annotated[
        FileName | None, Flag(help="where live edits are kept, or off; see below", metavar="DIRECTORY")
    ] = None,
    admin_token_file: Annotated[
        FileName | None, Flag(help="tokens of the admin address, a line each: NAME ROLE TOKEN", metavar="FILE")
    ] = None,
    grace_s: Annotated[float | None, Flag(help="for what is in flight at the end (10)", metavar="SECONDS")] = None,
) -> int:
    """Run the sidecar until SIGTERM or Ctrl-C.

    Repeat --listen and --broker in pairs, and --limit for each limit.
    """
    # Imported only in the commands that need it, here and below: settings, event loop, HTTP server and tables take
    # their time.
    import trio  # noqa: PLC0415 - see above

    from admin import logs, sidecar  # noqa: PLC0415 - see above
    from admin.composition import Plan, compose  # noqa: PLC0415 - see above
    from admin.sources import Flags, load  # noqa: PLC0415 - see above

    given: dict[tuple[str, ...], tuple[str, object]] = {
        ("admin", "listen"): ("--admin", admin),
        ("admin", "token_file"): ("--admin-token-file", admin_token_file),
        ("state_dir",): ("--state-dir", state_dir),
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
    environ = dict(os.environ)

    def plan_anew() -> Plan:
        plan = compose(load(None if config is None else str(config), environ, flags))
        if not plan.listeners:
            raise SettingsError("nothing to listen on: give --listen and --broker, or [[listeners]] in a --config file")
        return plan

    plan = plan_anew()
    logs.start(plan.settings.log)
    with short_pauses():
        exit_code: int = trio.run(sidecar.run_until_signal, plan, plan_anew)
    return exit_code


def check(file: Annotated[FileName | None, Parameter(help="TOML file to validate (SLUICE_CONFIG)")] = None, /) -> int:
    """Validate a configuration file and print what it would put in force.

    The environment counts, as it would for `sluice run --config FILE`.
    """
    from admin.composition import compose  # noqa: PLC0415 - as in run
    from admin.live import places  # noqa: PLC0415 - as in run
    from admin.report import report, show  # noqa: PLC0415 - as in run
    from admin.sources import ENV_CONFIG, Flags, load  # noqa: PLC0415 - as in run

    if not (file or os.environ.get(ENV_CONFIG)):
        raise SettingsError(
            f"no file to check: none is given, and {ENV_CONFIG} is not set; name the one that `sluice run --config` is"
            " to read, as in `sluice check /etc/sluice/sluice.toml` (no file is looked for by itself)"
        )
    plan = compose(load(str(file or "") or None, os.environ, Flags()))
    show(report(plan, datetime.now(UTC), places.of(plan.settings, os.environ)))
    warn(tuple(plan.warnings()))
    return 0


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
