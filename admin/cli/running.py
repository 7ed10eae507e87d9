"""Commands that do not need a running Sluice: ``sluice run``, ``check`` and ``demo``."""

import os
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from admin.cli import protocol_words
from admin.cli.options import FileName, warn
from admin.common.errors import SettingsError
from admin.config.addresses import DEFAULT_ADMIN

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "human", "json"]

_LIMIT: Final = f"e.g. {protocol_words.MAIN_KIND}:orders=500/s; see below"
_ADMIN: Final = f"address of the admin page, API, metrics and health checks, or off ({DEFAULT_ADMIN})"


RUN_EPILOGUE: Final = (
    "A limit is KIND:NAME=RATE/s, KIND:NAME=0/s (refuse everything) or KIND:NAME=unlimited. RATE is in messages per "
    "second. NAME may be a pattern with * ? []. An exact name takes precedence over patterns. Among patterns, the one "
    "with the most literal characters takes precedence, so KIND:* applies only if nothing else matches. If no limit is "
    f"given, the protocol's defaults apply ({protocol_words.RATES}). Otherwise, names that match no limit are "
    "unlimited. A name that contains =, a comma or white space can be given only in the file.\n\n"
    "Flags override environment variables, and variables override the file. A limit from a flag or a variable replaces "
    "all fields of the limit that the file contains for the same name. SLUICE_LISTEN, SLUICE_BROKER and SLUICE_LIMIT "
    "accept multiple values, separated by spaces. Limits may also be separated by commas. Other variables are named "
    "after the key in the file: SLUICE_LOG_LEVEL sets log.level.\n\n"
    "Live edits are stored in --state-dir. The default is a folder that is named after the first listener. It is in "
    "$STATE_DIRECTORY if that is set, in /var/lib/sluice for root, and in the user's state directory otherwise. An "
    "admin address that other machines can reach requires a token: --admin-token-file, SLUICE_ADMIN_TOKEN or "
    "SLUICE_ADMIN_READ_TOKEN. SIGHUP reloads the configuration. SIGTERM and Ctrl-C drain connections and then stop "
    "Sluice."
)

CHECK_EPILOGUE: Final = "Exit codes: 0 valid, 2 invalid."
DEMO_EPILOGUE: Final = "Exit codes: 0 all checks passed, 1 a check failed. Changes made during the demo are not saved."


Addresses = Annotated[list[str] | None, Parameter(metavar="HOST:PORT")]
File = Annotated[FileName | None, Parameter(metavar="FILE")]


def run(  # noqa: D417 - the other options have computed help
    *,
    listen: Addresses = None,
    broker: Addresses = None,
    protocol: Annotated[
        str | None, Parameter(help=f"{protocol_words.PROTOCOLS} ({protocol_words.DEFAULT})", metavar="PROTOCOL")
    ] = None,
    limit: Annotated[list[str] | None, Parameter(help=_LIMIT, metavar="LIMIT")] = None,
    config: File = None,
    admin: Annotated[str | None, Parameter(help=_ADMIN, metavar="HOST:PORT")] = None,
    log_level: Annotated[LogLevel | None, Parameter(metavar="LEVEL")] = None,
    log_format: Annotated[LogFormat | None, Parameter(metavar="FORMAT")] = None,
    state_dir: Annotated[FileName | None, Parameter(metavar="DIRECTORY")] = None,
    admin_token_file: File = None,
    grace_s: Annotated[float | None, Parameter(metavar="SECONDS")] = None,
    take_over: bool = False,
) -> int:
    """Run the sidecar until SIGTERM or Ctrl-C.

    Give one --listen and one --broker for each listener, and one --limit for each limit.

    Args:
        listen: address that clients connect to
        broker: address of the broker
        config: TOML configuration file; see deploy/sluice.toml
        log_level: debug, info, warning or error (info)
        log_format: auto, human or json (auto)
        state_dir: where live edits are stored, or off (see below)
        admin_token_file: tokens for the admin address, one per line: NAME ROLE TOKEN
        grace_s: how long requests in flight may take to finish on exit, in seconds (10)
        take_over: take over from the process with the same state directory, which then exits
    """
    # Slow to import.
    import trio  # noqa: PLC0415 - see above

    from admin.config import logs  # noqa: PLC0415 - see above
    from admin.config.sources import Flags, load  # noqa: PLC0415 - see above
    from admin.run import sidecar  # noqa: PLC0415 - see above
    from admin.run.composition import Plan, compose  # noqa: PLC0415 - see above
    from admin.run.process import short_pauses  # noqa: PLC0415 - see above

    given: dict[tuple[str, ...], tuple[str, object]] = {
        ("admin", "listen"): ("--admin", admin),
        ("admin", "token_file"): ("--admin-token-file", admin_token_file),
        ("state_dir",): ("--state-dir", state_dir),
        ("log", "level"): ("--log-level", log_level),
        ("log", "format"): ("--log-format", log_format),
        ("grace_s",): ("--grace-s", grace_s),
        ("take_over",): ("--take-over", take_over or None),
    }
    flags = Flags(
        listen=listen or (),
        broker=broker or (),
        protocol=protocol,
        limits=limit or (),
        values={place: flag for place, flag in given.items() if flag[1] is not None},
    )
    environ = dict(os.environ)

    def replan() -> Plan:
        plan = compose(load(None if config is None else str(config), environ, flags))
        if not plan.listeners:
            raise SettingsError(
                "no listeners are configured; give --listen and --broker, or a --config file with [[listeners]]"
            )
        return plan

    plan = replan()
    logs.start(plan.settings.log)
    with short_pauses():
        exit_code: int = trio.run(sidecar.run_until_signal, plan, replan)
    return exit_code


def check(
    config: Annotated[FileName | None, Parameter(help="TOML file to validate (SLUICE_CONFIG)", metavar="FILE")] = None,
) -> int:
    """Validate a configuration and print its listeners, rules and settings.

    Reads the file and environment variables like `sluice run --config FILE`.
    """
    from admin.config import folders  # noqa: PLC0415 - as in run
    from admin.config.sources import ENV_CONFIG, Flags, load  # noqa: PLC0415 - as in run
    from admin.run.check import report, show  # noqa: PLC0415 - as in run
    from admin.run.composition import compose, unspooled  # noqa: PLC0415 - as in run

    plan = compose(load(str(config or "") or None, os.environ, Flags()))
    if not (plan.listeners or config or os.environ.get(ENV_CONFIG)):
        raise SettingsError(
            f"nothing to check; give the configuration file, as in `sluice check /etc/sluice/sluice.toml`, or set"
            f" {ENV_CONFIG}"
        )
    place = folders.state_dir(plan.settings, os.environ)
    show(report(plan, datetime.now(UTC), place))
    spool = folders.spool(plan.settings.spool, place.path)
    warn((*plan.warnings(), *unspooled(plan.rule_set, spool)))
    return 0


def demo(
    *, seconds: Annotated[float | None, Parameter(help="stop after N seconds, not on Ctrl-C", metavar="N")] = None
) -> int:
    """Demonstrate Sluice with an embedded broker, one runaway topic and a few quiet ones.

    No other software is needed. At the end, a table shows the messages sent, passed, refused and stored.
    """
    import trio  # noqa: PLC0415 - as in run

    from admin.demo.embedded import perform  # noqa: PLC0415 - as in run

    if seconds is not None and not 0 < seconds < float("inf"):
        raise SettingsError(f"--seconds {seconds:g}: must be more than 0")
    exit_code: int = trio.run(partial(perform, seconds=seconds))
    return exit_code
