"""The demo's processes, with small programs of the shell."""

from pathlib import Path

import pytest
import trio

from admin.common.errors import StartError
from admin.demo.real.child import Child

WAIT_S = 60.0


def shell(script: str, folder: Path) -> Child:
    return Child("a part", ["/bin/sh", "-c", script], folder)


def running(pid: int) -> bool:
    """Return whether there is such a process that has not ended; whoever adopts it may take notice of that later."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_its_end_is_noticed_and_its_last_words_are_told(tmp_path: Path) -> None:
    child = shell("echo started; echo '\tat a.stack.trace'; echo broken >&2; exit 3", tmp_path)
    assert await child.ended() == 3
    assert not child.ending
    assert child.problem("has ended") == ["a part has ended; its last words:", "    started", "    broken"]


async def test_it_is_ready_when_it_says_so(tmp_path: Path) -> None:
    child = shell("echo boot success; exec sleep 600", tmp_path)
    await child.wait_for_line("boot success", WAIT_S)
    child.kill()


async def test_silence_is_an_error(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    child = shell("exec sleep 600", tmp_path)
    with pytest.raises(StartError, match=r"^a part was not ready within 60 s; its last words:$"):
        await child.wait_for_line("boot success", WAIT_S)
    child.kill()


async def test_it_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    child = shell("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done", tmp_path)
    await child.wait_for_line("ready", WAIT_S)
    await child.stop(WAIT_S)
    assert child.ending
    assert "asked" in child.output()


async def test_what_it_has_started_is_killed_with_it(tmp_path: Path) -> None:
    child = shell("sleep 600 & echo $! ready; wait", tmp_path)
    await child.wait_for_line("ready", WAIT_S)
    started = int(child.output().split()[0])
    child.kill()
    with trio.fail_after(WAIT_S):
        while running(started):  # noqa: ASYNC110 - nobody tells when somebody else's child has ended
            await trio.sleep(0.01)


def test_a_program_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admin.demo.real.child._NO_ORPHAN", ("/nowhere/setpriv",))
    with pytest.raises(StartError, match=r"^a part cannot be started: /nowhere/setpriv: No such file or directory$"):
        shell("true", tmp_path)
