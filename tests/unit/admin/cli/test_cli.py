import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from admin.cli import main

Write = Callable[[str], str]
SLUICE = Path(sys.executable).with_name("sluice")
LISTENER = '[[listeners]]\nlisten = "127.0.0.1:1"\nbroker = "127.0.0.1:2"\n'
COMMANDS = "run, check, limits, switch, reload, state, audit, connections, …"
PAIR = ["--listen", "127.0.0.1:0", "--broker", "127.0.0.1:1"]


@pytest.fixture(autouse=True)
def _own_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the machine's, which another run of the tests may use."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


def complaint(capsys: pytest.CaptureFixture[str], *tokens: str, exit_code: int = 2) -> str:
    """Run a command that must fail. Return its one line without the program's name."""
    assert main(tokens) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("sluice: ")
    return line.removeprefix("sluice: ")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "rnu",
            f'unknown command "rnu"; did you mean "run"? Available commands: {COMMANDS}; see sluice --help',
        ),
        ("run --listn x", "unknown option: --listn; did you mean --listen? see sluice run --help"),
        ("run --listen", "--listen: the value is missing; see sluice run --help"),
        ("run x", 'unexpected argument "x"; see sluice run --help'),
        ("switch of", 'unexpected argument "of"; did you mean "off"? see sluice switch --help'),
        ("run --grace-s x", 'invalid value for --grace-s: unable to convert "x" into a number; see sluice run --help'),
        ("run --grace-s -1", "--grace-s -1.0: must be at least 0"),
        ("run --config /nowhere.toml", "/nowhere.toml: cannot be read: no such file or directory; pass a TOML file"),
        ("run", "no listeners are configured; give --listen and --broker, or a --config file with [[listeners]]"),
        ("demo --seconds 0", "--seconds 0: must be more than 0"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], command: str, line: str
) -> None:
    assert complaint(capsys, *command.split()) == line


def test_check_without_a_file_names_the_usual_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    for command in (["check"], ["check", ""]):
        line = complaint(capsys, *command)
        assert line.startswith("nothing to check; give the configuration file, as in `sluice check")
    assert complaint(capsys, "check", "/dev/zero").startswith("/dev/zero: cannot be read: file too large")
    monkeypatch.setenv("SLUICE_CONFIG", write("grace_s = -1\n"))
    assert complaint(capsys, "check") == "sluice.toml:1: grace_s = -1: must be at least 0"


def test_a_broken_file_names_file_line_key_value_and_allowed_values(
    capsys: pytest.CaptureFixture[str], write: Write
) -> None:
    file = write("[bounds]\nmax_connections = 'many'\n")
    expected = 'sluice.toml:2: bounds.max_connections = "many": must be a whole number'
    assert complaint(capsys, "run", *PAIR, "--config", file) == expected
    assert complaint(capsys, "check", file) == expected


def test_an_occupied_port_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listening = ["run", "--listen", address, "--broker", "127.0.0.1:1", "--admin", "off", "--log-level", "error"]
        reason = (
            f"cannot listen on {address}: it is in use; stop the process that listens there or choose another address"
        )
        assert complaint(capsys, *listening, exit_code=1) == f"listener: {reason}"
        assert complaint(capsys, "run", *PAIR, "--admin", address, exit_code=1) == f"admin: {reason} with --admin"
        # There was no process to take over from.
        told = complaint(capsys, *listening, "--take-over", "--state-dir", str(tmp_path), exit_code=1)
        nobody = f"take_over found no process in {tmp_path}; set the --state-dir of the running process"
        assert told == f"listener: cannot listen on {address}: it is in use; {nobody}; {reason.rpartition('; ')[2]}"


def test_unexpected_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ExceptionGroup("all", [ZeroDivisionError("so it\nhappened")])

    monkeypatch.setattr("admin.config.sources.load", fail)
    line = complaint(capsys, "run", *PAIR, exit_code=1)
    assert line.startswith("internal error: ZeroDivisionError")
    assert "so it happened" in line


GROUPS = {
    "": ["run", "check", "limits", "switch", "reload", "state", "audit", "connections", "top", "completion", "demo"],
    "limits": ["list", "get", "set", "unset", "explain", "apply", "diff", "export"],
    "switch": ["off", "on", "reset"],
    "audit": ["revert"],
    "connections": ["list", "close"],
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], group: str) -> None:
    assert main([*group.split(), "--help"]) == 0
    listed = capsys.readouterr().out
    for command in GROUPS[group]:
        assert f" {command} " in listed
        assert main([*group.split(), command, "--help"]) == 0
        words = " ".join(filter(None, ("sluice", group, command)))
        text = capsys.readouterr().out
        assert f"Usage: {words}" in text
        if group or command in {"reload", "state"}:
            assert "--json" in text
            assert "--admin " in text


@pytest.mark.parametrize(
    "command", ["limits list", "limits set", "switch off", "audit", "connections", "state", "top", "reload"]
)
def test_client_commands_say_how_the_sidecar_is_found(capsys: pytest.CaptureFixture[str], command: str) -> None:
    main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert "SLUICE_URL" in text
    assert "SLUICE_ADMIN" not in text


def test_check_names_values_replaced_by_the_environment(
    capsys: pytest.CaptureFixture[str], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ADMIN", "127.0.0.1:7")
    assert main(["check", write(LISTENER + '[admin]\nlisten = "127.0.0.1:8"\n')]) == 0
    line = 'admin.listen from SLUICE_ADMIN=127.0.0.1:7, instead of "127.0.0.1:8" (sluice.toml:5)'
    assert f"  {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("sluice limits e", ["explain", "export"]),
        ("sluice limits set topic a 5 --rea", ["--reason"]),
        ("sluice limits set to", ["topic", "total"]),
        ("sluice limits set topic a 5 --action s", ["shadow"]),
        ("sluice state --token-file slu", ["sluice.toml"]),
    ],
)
def test_bash_completes_commands_and_flags(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, completions: list[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "sluice.toml").touch()
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    words = line.split()
    ask = (
        f"source {script}; COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1};"
        f" COMP_LINE={line!r}; COMP_POINT={len(line)}; _sluice; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == completions


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    assert "--dry-run" in capsys.readouterr().out or shell == "fish"


def test_a_token_file_that_others_can_read_gets_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, reserve: Callable[..., int]
) -> None:
    token = tmp_path / "token"
    token.write_text("token-of-ada", encoding="utf-8")
    token.chmod(0o644)
    address = f"127.0.0.1:{reserve()}"
    assert main(["state", "--admin", address, "--token-file", str(token)]) == 1
    warning, line = capsys.readouterr().err.splitlines()
    assert warning == f"sluice: warning: --token-file {token}: other users can read it; run chmod 600 {token}"
    assert line.startswith(f"sluice: no response from http://{address}")


def test_help_and_errors_load_no_data_path() -> None:
    """Wrong flags and help must not wait for imports."""
    slow = {"trio", "h11", "httpx2", "rich.table", "proxy.protocols"}
    code = f"import sys, admin.cli; print({slow} & {{*sys.modules}})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"


def test_check_names_the_missing_keys_of_a_file_without_listeners(
    capsys: pytest.CaptureFixture[str], write: Write
) -> None:
    assert main(["check", write("limiting = false\n")]) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.out
    assert captured.err.splitlines() == [
        "sluice: warning: no listener is configured; `sluice run` requires --listen and --broker",
        "sluice: warning: limiting = false, so all requests pass",
    ]


def test_off_a_terminal_no_line_is_wrapped_or_padded(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    name = "x" * 150
    assert main(["check", write(f'[[limits]]\nkind = "topic"\nname = "{name}"\nrate = 1\n')]) == 0
    text = capsys.readouterr().out
    assert f"topic:{name} " in text
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [("--version", 0), ("check /nowhere.toml", 2), ("run --listen 192.0.2.1:1 --broker a:1", 1)],
)
def test_the_console_script_ends_with_the_exit_code_and_no_traceback(command: str, exit_code: int) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, *command.split()], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr
    if exit_code:
        assert done.stderr.startswith("sluice: ")
        assert done.stderr.count("\n") == 1


def test_a_reader_that_disconnects_is_not_an_error(write: Write) -> None:
    file = write(LISTENER)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([SLUICE, "check", file], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["run", "--help"], ["check", "sluice.toml"]])
def test_a_full_device_is_one_line(write: Write, command: list[str]) -> None:
    write(LISTENER)
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device, not a file of the test's
        done = subprocess.run([SLUICE, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "sluice: cannot write the output: no space left on device\n",
    )


def test_unread_complaints_are_not_an_error(write: Write) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([SLUICE, "check", write("x = 1")], stderr=writer, stdout=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (["--admin", "http://127.0.0.1:1", "limits"], "`sluice COMMAND --admin`"),
        (["limits", "--admin=127.0.0.1:1", "list"], "`sluice limits COMMAND --admin`"),
        (["run", "--admin", "http://127.0.0.1:1"], "`sluice state --admin URL`"),
    ],
)
def test_an_option_at_the_wrong_place_is_reported_with_the_right_one(
    capsys: pytest.CaptureFixture[str], words: list[str], example: str
) -> None:
    assert main(words) == 2
    assert example in capsys.readouterr().err
