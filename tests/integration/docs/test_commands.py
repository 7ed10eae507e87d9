"""Runs every command of each page, in order, against a `sluice run` with a broker behind it."""

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from claims import BLOCK
from guides import write_package
from harness.api import ask
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, sends
from harness.paths import PARTS, ROOT, VENV_BIN, program, required
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.sidecar import Sluice
from page_commands import NOT_RUN, PAGES, SHELL, Command, commands_of, files_of, is_there
from small_log import write_small_log

pytestmark = [pytest.mark.integration, pytest.mark.long]

_TIMEOUT_S = 580.0
_LISTED = {each.line for each in NOT_RUN}
_TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
_COMMANDS = {page: tuple(commands_of(text)) for page, text in _TEXTS.items()}
_RUN_HERE = [page for page, commands in _COMMANDS.items() if any(each.line not in _LISTED for each in commands)]

_OTHER_LANGUAGES = {"text", "toml", "python", "properties", "yaml"}

_CONFIG = """
[[limits]]
kind = "topic"
name = "orders"
rate = 500

[rejection_log]
instance = "small-1"
"""
"""The instance of the log that a report is made from."""
_GUIDE = "docs/getting-started.md"
_AMQP_PAGES = {"docs/confirm-after-consume.md"}
"""Pages whose commands need a sidecar with queues, but no broker."""

_ADDRESS = re.compile(r"(--broker )?\b(\d+\.\d+\.\d+\.\d+:\d+)\b")
_ADMIN = "127.0.0.1:9870"
_ETAG = re.compile(r'(?<=If-Match: )"[0-9a-f]+"')
_CHANGE = re.compile(r"(?<=audit revert )\d+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Reader:
    """Runs a page's commands in its own folder."""

    def __init__(self, folder: Path, sluice: Sluice, client: FrameClient, broker: str) -> None:
        self._folder = folder
        self._sluice = sluice
        self._client = client
        self._broker = broker
        self._addresses = {_ADMIN: sluice.admin}
        self._started = 0
        for each in ("deploy", "docs", "tests", "constraints.txt", "pyproject.toml", ".venv"):
            (folder / each).symlink_to(ROOT / each)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLUICE_", "PYTEST_", "XDG_"))}
        self._env = kept | {
            "PATH": f"{VENV_BIN}:{os.environ['PATH']}",
            "HOME": str(folder),
            "STATE_DIRECTORY": str(folder / "machine"),
            "SLUICE_URL": f"http://{sluice.admin}",
            # Packages that a reader of the guide would install.
            "PYTHONPATH": str(folder),
        }

    def type(self, command: Command) -> None:
        """Run one command. Any error fails the test."""
        line = self._adapted(command.line)
        if line.startswith("sluice run "):
            self._start_and_end(line)
        elif line.startswith("curl ") and " -N " in line:
            self._stream(line)
        elif command.shown:
            self._until_shown(line, command.shown)
        else:
            self._done(line)

    def _adapted(self, line: str) -> str:
        line = line.replace("/opt/sluice/bin/", f"{VENV_BIN}/").replace("/opt/sluice", str(self._folder / "opt"))
        line = _ADDRESS.sub(lambda found: (found[1] or "") + self._address(found[2], broker=bool(found[1])), line)
        line = _ETAG.sub(lambda _: self._etag(), line)
        line = _CHANGE.sub(lambda _: str(ask(self._sluice, "GET", "audit")[1]["changes"][0]["id"]), line)
        return re.sub(r"^curl ", "curl --fail-with-body ", line)

    def _address(self, text: str, *, broker: bool) -> str:
        return self._broker if broker else self._addresses.setdefault(text, f"127.0.0.1:{free_port()}")

    def _etag(self) -> str:
        with urllib.request.urlopen(f"http://{self._sluice.admin}/api/v1/limits/topic/orders") as answer:
            return str(answer.headers["ETag"])

    def _listeners(self) -> str:
        return f"SLUICE_LISTEN=127.0.0.1:{free_port()} SLUICE_BROKER={self._broker} "

    def _done(self, line: str) -> str:
        done = subprocess.run(
            [program("sh"), "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            # The tests are only found from the project's root.
            cwd=ROOT if " -m pytest " in line else self._folder,
            env=self._env,
        )
        if done.returncode != 0:
            pytest.fail(f"{line}\nended with {done.returncode}:\n{done.stdout}", pytrace=False)
        return done.stdout

    def _until_shown(self, line: str, shown: tuple[str, ...]) -> None:
        # Figures with some traffic after a refusal are only right after the pause that follows the refusal.
        wanted, printed = _shape("\n".join(shown)), ""
        for _ in range(20):
            self._client.ask(*sends(5, "orders"))
            printed = _shape(self._done(line).replace(f"{self._folder}/", ""))
            if printed == wanted:
                return
        pytest.fail(f"{line}\nprinted, numbers apart:\n{printed}\nand the page says:\n{wanted}", pytrace=False)

    def _start_and_end(self, line: str) -> None:
        self._started += 1
        settings = "" if "--listen" in line else self._listeners()
        admin = re.search(r"--admin (\S+)", line)
        where = admin[1] if admin else self._address("the sidecar that this starts", broker=False)
        if not admin:
            settings += f"SLUICE_ADMIN={where} "
        with ManagedProcess(
            "sluice",
            [
                program("env"),
                *(f"{name}={text}" for name, text in self._env.items()),
                "sh",
                "-c",
                f"{settings}exec {line}",
            ],
            log=self._folder / f"run-{self._started}.log",
            cwd=self._folder,
        ) as running:
            self._wait_until_ready(where, running)
            assert running.stop() == 0, running.tail()

    def _wait_until_ready(self, admin: str, running: ManagedProcess) -> None:
        self._done(
            f"until curl --silent --fail http://{admin}/readyz; do kill -0 {running.pid} || exit 1; sleep 0.1; done"
        )

    def _stream(self, line: str) -> None:
        with subprocess.Popen([program("sh"), "-c", f"exec {line}"], stdout=subprocess.PIPE, env=self._env) as running:
            assert running.stdout is not None
            assert running.stdout.readline()
            running.send_signal(signal.SIGTERM)


def _shape(text: str) -> str:
    """Return a text without numbers, and without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in _NUMBER.sub("#", text).strip().splitlines())


@pytest.fixture
def reader(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[Callable[[str], Reader]]:
    """A reader with everything that the page assumes, and a sidecar that has had some traffic."""
    sidecar = Sluice(tmp_path, (broker.route(),), config=_CONFIG)
    with ExitStack() as stack:
        stack.enter_context(sidecar)
        client = stack.enter_context(FrameClient(sidecar.routes[0].listen))
        assert refused(client.ask(*sends(600, "orders")))

        def read(page: str) -> Reader:
            asked = sidecar
            if page in _AMQP_PAGES:
                (folder := tmp_path / "amqp").mkdir()
                asked = stack.enter_context(Sluice(folder, (broker.route(),), protocol="amqp091"))
            reader = Reader(tmp_path, asked, client, broker.address)
            if "pyproject.toml" in files_of(_TEXTS[page]):
                (tmp_path / "pyproject.toml").unlink()
                write_package(_TEXTS[page], tmp_path)
            for name, text in files_of(_TEXTS[page]).items():
                if not (tmp_path / name).exists():
                    (tmp_path / name).write_text(text, encoding="utf-8")
            write_small_log(tmp_path / "machine" / "127.0.0.1-10911" / "rejections" / "small.jsonl")
            return reader

        yield read


@pytest.mark.parametrize("page", _RUN_HERE)
def test_the_commands_of_a_page_work(page: str, reader: Callable[[str], Reader]) -> None:
    typing = reader(page)
    for command in _COMMANDS[page]:
        if command.line not in _LISTED:
            typing.type(command)


def test_the_client_of_the_first_guide_is_limited(tmp_path: Path) -> None:
    guide = _TEXTS[_GUIDE]
    (code,) = re.findall(r"^```python\n(# send\.py\n.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    (limit,) = [each.line for each in _COMMANDS[_GUIDE] if each.line.endswith('--reason "try it"')]
    command = [str(VENV_BIN / "sluice"), "demo"]
    with ManagedProcess("demo", command, log=tmp_path / "demo.log", cwd=tmp_path) as running:
        running.wait_for_line("see also", timeout_s=_TIMEOUT_S)
        said = "\n".join(running.lines)
        (admin,) = re.findall(r"open (http://[\d.]+:\d+)", said)
        (name_server,) = re.findall(r"name server ([\d.]+:\d+)", said)
        subprocess.run([program("sh"), "-c", limit], check=True, cwd=ROOT, env=os.environ | {"SLUICE_URL": admin})
        assert "127.0.0.1:9876" in code
        code = code.replace("127.0.0.1:9876", name_server).replace("range(6000)", "range(100)")
        (tmp_path / "send.py").write_text(code, encoding="utf-8")
        required(PARTS / "python" / ".stamp", "make parts")
        client = [str(PARTS / "python" / "bin" / "python"), "send.py"]
        printed = subprocess.run(client, check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout
    assert " stored" in printed
    assert " refused: No route info of this topic" in printed


@pytest.mark.parametrize("page", PAGES)
def test_a_block_is_of_a_language_that_is_known_here(page: str) -> None:
    assert {language for language, _ in BLOCK.findall(_TEXTS[page])} <= {*SHELL, *_OTHER_LANGUAGES}


def test_skipped_commands_are_on_a_page() -> None:
    shown = {command.line for commands in _COMMANDS.values() for command in commands}
    assert not [each.line for each in NOT_RUN if each.line not in shown]
    assert len(_LISTED) == len(NOT_RUN)


def test_replacements_for_skipped_commands_exist() -> None:
    assert not [each.instead for each in NOT_RUN if not is_there(each.instead)]


def test_most_of_sluice_itself_is_run() -> None:
    assert not [line for line in _LISTED if line.startswith("sluice ")]
