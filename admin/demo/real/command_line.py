"""The command line of the demos."""

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from admin.common.errors import OperatorError
from admin.demo.real.broker import RealBroker
from admin.demo.real.stage import Options, perform


def main(broker: type[RealBroker], about: str | None) -> int:
    """Run the demo and return its exit status: 0 it went as it ought to, 1 it did not, 128 + N ended by signal N."""
    program = broker.program
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--jars", type=_folder, required=True, metavar="DIRECTORY", help="what is fetched for it")
    parser.add_argument("--log", type=Path, required=True, metavar="DIRECTORY", help="for the rejection log; emptied")
    parser.add_argument("--seconds", type=_seconds, metavar="N", help="end after so long instead of on Ctrl-C")
    parser.add_argument("--calm", dest="calm_s", type=_seconds, metavar="N", help="seconds before the flood (3)")
    parser.add_argument("--calm-after", dest="calm_after_s", type=_seconds, metavar="N", help="seconds after it (0)")
    parser.add_argument("--without", dest="sluice", action="store_false", help="the same without Sluice")
    parser.add_argument("--record", type=Path, metavar="FILE", help="each second's figures go here, as JSON")
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="do not open the page")
    options = parser.parse_args(namespace=Options())
    if options.seconds is not None and options.calm_s + options.calm_after_s >= options.seconds:
        parser.error(f"--seconds {options.seconds:g}: leaves no time for a flood")
    try:
        exit_code: int = trio.run(perform, options, broker)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OperatorError, BaseExceptionGroup) as error:
        lines = list(_lines(error))
        sys.stderr.writelines(f"{program}: {line}\n" for line in lines)
        return 1
    return exit_code


def _lines(error: BaseException) -> Iterator[str]:
    """Yield what an operator is told; anything else is a fault of the demo's and goes on."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _lines(each)
    elif isinstance(error, OperatorError):
        yield from error.lines
    else:
        raise error


def _folder(text: str) -> Path:
    return Path(text).resolve()


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value
