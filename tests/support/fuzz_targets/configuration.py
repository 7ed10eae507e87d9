"""The text of a configuration file: it is applied correctly, or an error names the fault."""

import io
import tempfile
import tomllib
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from admin.common.errors import OperatorError
from admin.config.sources import Flags, load
from admin.run import check
from admin.run.composition import compose
from fuzz_targets import Changed

# A larger table of errors and rules takes more steps.
STEPS: Final = (20_000_000, 100_000)

# One plan in this many is laid out, which takes much longer than the rest.
_LAID_OUT: Final = 8
_SAMPLE: Final = Path(__file__).parents[3] / "deploy/sluice.toml"
_MOMENT: Final = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="sluice-fuzz-")
_FILE: Final = Path(_FOLDER.name, "sluice.toml")
_LISTENER: Final = '[[listeners]]\nlisten = "127.0.0.1:1"\nbroker = "127.0.0.1:2"\n'
_LIMIT: Final = '[[limits]]\nkind = "topic"\nname = "orders-*"\nrate = 500\n'
_LINES: Final = (
    'protocol = "amqp"',
    'protocol = "rocketmq-namesrv"',
    "[listeners.options]",
    'remote_view_from = ["::1"]',
    "[defaults.topic]",
    "[[limits]]",
    "[[listeners]]",
    'kind = "queue"',
    'name = "a"',
    'rate = "unlimited"',
    "rate = 0",
    "bytes_per_s = 1e6",
    'action = "delay"',
    "max_delay_s = 2.5",
    'between = "22:00-06:00"',
    'days = ["mon", "fri"]',
    'time_zone = "Europe/Berlin"',
    "shared = true",
    'fair_by = "client"',
    'confirm = "after_consume"',
    "warm_up_s = 3",
    "[admin]",
    'listen = "off"',
    "[log]",
    'level = "debug"',
    "[spool]",
    "[flow]",
    "[bounds]",
    "max_connections = -1",
    "[alarms]",
    "x = [\n1,\n]",
    's = """\na = 1\n"""',
    "s = '''\n'''",
    'proxy_protocol_from = ["10.0.0.0/24"]',
    "busy_code = 2",
)


def mutated(data: bytes, max_bytes: int, changed: Changed, random: Random) -> bytes:
    if random.random() < 0.4:
        return changed(data, max_bytes)
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    match random.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[random.randrange(len(lines))])
        case 2:
            lines[at] = changed(lines[at], len(lines[at]) + 16)
        case 3:
            other = random.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines.insert(at, random.choice(_LINES).encode())
    return b"\n".join(lines)[:max_bytes]


def seeds() -> Iterable[bytes]:
    """Return the sample, by its tables, and small files."""
    sample = _SAMPLE.read_text(encoding="utf-8")
    bare = "\n".join(line.partition("  #")[0].removeprefix("#") for line in sample.splitlines() if line[:2] != "# ")
    yield bare.encode()
    yield _LISTENER.encode()
    yield (_LISTENER + _LIMIT).encode()
    for table in bare.split("\n["):
        yield (_LISTENER + "[" + table).encode()
    for line in _LINES:
        yield (_LISTENER + line + "\n" + _LIMIT).encode()
        yield (_LISTENER + _LIMIT + line + "\n").encode()


def run(data: bytes) -> None:
    _FILE.write_bytes(data)
    try:
        plan = compose(load(str(_FILE), {}, Flags()))
    except OperatorError as error:
        assert error.lines
        for line in error.lines:
            assert line.strip(), error.lines
            assert line.isprintable(), line
        if any("not TOML" in line for line in error.lines):
            assert not _is_toml(data), error.lines
        return
    for line in plan.warnings():
        assert line.strip()
        assert line.isprintable(), line
    report = check.report(plan, _MOMENT)
    if zlib.crc32(data) % _LAID_OUT == 0:
        Console(width=200, file=io.StringIO()).print(report)


def _is_toml(data: bytes) -> bool:
    try:
        tomllib.loads(data.decode())
    except ValueError:
        return False
    return True
