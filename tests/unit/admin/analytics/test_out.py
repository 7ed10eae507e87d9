"""One report at a time in a directory, and none before the Java process of a killed one has ended."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest

from admin.analytics import out
from admin.analytics.out import OutLock
from admin.common.errors import StartError


def test_second_report_is_told_that_there_is_one(tmp_path: Path) -> None:
    with OutLock(tmp_path / "out"), pytest.raises(StartError, match="another report is writing there"):
        OutLock(tmp_path / "out")
    with OutLock(tmp_path / "out"):
        pass


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"file/out: cannot be used: .*; choose another with --out"):
        OutLock(tmp_path / "file" / "out")


@pytest.fixture
def orphan() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE)


def test_java_process_that_lives_on_is_waited_for(tmp_path: Path, orphan: subprocess.Popen[bytes]) -> None:
    with OutLock(tmp_path) as lock:
        lock.owned_by(orphan.pid)
        left = (tmp_path / "_lock").read_bytes()
    (tmp_path / "_lock").write_bytes(left)
    assert orphan.stdin is not None
    orphan.stdin.close()
    with OutLock(tmp_path):
        # It could be had only after the end of the other one.
        assert out._started(orphan.pid) == ""
    orphan.wait()


def test_java_process_that_does_not_end_is_named(
    tmp_path: Path, orphan: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_ORPHAN_S", 0.0)
    with OutLock(tmp_path) as lock:
        lock.owned_by(orphan.pid)
        left = (tmp_path / "_lock").read_bytes()
    (tmp_path / "_lock").write_bytes(left)
    with pytest.raises(StartError, match=f"pid {orphan.pid}, still writes there; end it"):
        OutLock(tmp_path)
    os.kill(orphan.pid, signal.SIGKILL)
    orphan.communicate()


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense",
        msgspec.json.encode({"host": "elsewhere", "pid": 1, "started": "1"}),
        msgspec.json.encode({"host": socket.gethostname(), "pid": os.getpid(), "started": "another process"}),
    ],
    ids=["damaged", "of another machine", "of a process that had this number before"],
)
def test_nothing_else_is_waited_for(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_lock").write_bytes(content)
    with OutLock(tmp_path):
        pass
