"""The messages between the processes of a take-over, both of them here."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from admin.common.errors import StartError
from admin.config.sources import Flags, load
from admin.edits import limiter_state
from admin.edits.model import Author, SetLimit
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.run import hand_over
from admin.run.composition import compose
from admin.run.hand_over import HandOver
from limiter.deciding.limits import SavedLimits, Spent

LIMITS = SavedLimits(5, {"messages": [], "bytes": []}, [])
SPENT = [Spent("messages", "topic", "orders", "topic:orders", False, 7)]


class Handing:
    """A data path with one listener that only hands over."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.calls: list[str] = []
        self.debits: list[list[Spent]] = []
        self.hangs = False

    def descriptors(self) -> list[int]:
        return [self.listening.fileno()]

    async def hand_over(self, grace_s: float) -> SavedLimits:
        await trio.lowlevel.checkpoint()
        self.calls.append(f"hand over {grace_s:g}")
        if self.hangs:
            await trio.sleep(3600)
        return LIMITS

    async def resume(self) -> None:
        await trio.lowlevel.checkpoint()
        self.calls.append("go on")

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        return SPENT if saved == LIMITS else []

    def debit(self, spent: list[Spent]) -> None:
        self.debits.append(spent)


class Old:
    """The old process, as far as necessary."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.store = Store(directory)
        plan = compose(load(None, {}, Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])))
        self.edits = EditService(plan.rulebook, self.store)
        self.data_path: Any = Handing()
        self.handed_over = trio.Event()
        self.leaving = HandOver(self.store, None, self.data_path, self.edits, 3.0, self.handed_over)

    async def edit(self) -> None:
        await self.edits.change([SetLimit(kind="topic", name="orders", limit={"rate": 1})], Author("test"))


@pytest.fixture
async def old(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Old]:
    # Longer than the address of a Unix socket may be.
    process = Old(tmp_path / ("d" * 100) / "state")
    await nursery.start(process.leaving.run)
    yield process
    process.data_path.listening.close()
    process.store.close()


def close(predecessor: hand_over.Predecessor) -> None:
    for sock in predecessor.sockets:
        sock.close()
    os.close(predecessor.lock)
    predecessor.close()


async def test_hand_over_passes_sockets_lock_and_limits_then_settles_later_spending(
    old: Old, nursery: trio.Nursery
) -> None:
    predecessor = await hand_over.reach(old.directory)
    assert predecessor is not None
    (listening,) = predecessor.sockets
    assert listening.getsockname() == old.data_path.listening.getsockname()
    assert predecessor.pid == os.getpid()
    assert os.fstat(predecessor.lock).st_ino == os.fstat(old.store.lock).st_ino
    assert old.data_path.calls == []
    assert await predecessor.take() == LIMITS
    assert old.data_path.calls == ["hand over 3"]
    assert not old.handed_over.is_set()
    await predecessor.serve()
    await old.handed_over.wait()
    new: Any = Handing()
    nursery.start_soon(predecessor.settle, new)
    await old.leaving.finish()
    await wait_all_tasks_blocked()
    assert new.debits == [SPENT]
    new.listening.close()
    close(predecessor)


@pytest.mark.parametrize("taken", [False, True])
async def test_successor_that_leaves_early_changes_nothing(old: Old, taken: bool) -> None:  # noqa: FBT001 - a parameter
    predecessor = await hand_over.reach(old.directory)
    assert predecessor is not None
    if taken:
        await predecessor.take()
    with structlog.testing.capture_logs() as logged:
        close(predecessor)
        # Edits waited for that, and are repeated.
        await old.edit()
    assert [line["log_level"] for line in logged if "take-over" in line["event"]] == ["warning"]
    assert old.data_path.calls == (["hand over 3", "go on"] if taken else [])
    again = await hand_over.reach(old.directory)
    assert again is not None
    close(again)


async def test_unwritable_limits_are_a_warning_and_the_process_continues(
    old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SavedLimits) -> bytes:
        raise OverflowError("a figure has more than 64 bits")

    monkeypatch.setattr(limiter_state, "encode", fail)
    predecessor = await hand_over.reach(old.directory)
    assert predecessor is not None
    with structlog.testing.capture_logs() as logged, pytest.raises(StartError, match="take_over failed"):
        await predecessor.take()
    assert [line["reason"] for line in logged if "take-over" in line["event"]] == ["a figure has more than 64 bits"]
    assert old.data_path.calls == ["hand over 3", "go on"]
    close(predecessor)
    again = await hand_over.reach(old.directory)
    assert again is not None
    close(again)


async def test_no_edit_is_made_once_the_other_may_have_read_them(old: Old, nursery: trio.Nursery) -> None:
    predecessor = await hand_over.reach(old.directory)
    assert predecessor is not None
    nursery.start_soon(old.edit)
    await wait_all_tasks_blocked()
    # As with a commit in progress on a thread.
    assert old.edits.lock.statistics().tasks_waiting == 1
    assert old.store.active == {}
    close(predecessor)
    await wait_all_tasks_blocked()


async def test_silent_successor_is_dropped(old: Old, autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    predecessor = await hand_over.reach(old.directory)
    assert predecessor is not None
    await trio.sleep(61)
    with pytest.raises(StartError, match="take_over failed"):
        await predecessor.take()
    assert old.data_path.calls == []
    close(predecessor)


async def test_hanging_hand_over_times_out_after_a_minute(old: Old, autojump_clock: MockClock) -> None:
    old.data_path.hangs = True
    predecessor = await hand_over.reach(old.directory)
    assert predecessor is not None
    with pytest.raises(
        StartError,
        match="take_over failed: the other process did not respond in time; the running process should still",
    ):
        await predecessor.take()
    assert trio.current_time() < 3600
    close(predecessor)
    # It notices the other's end only later.
    await trio.sleep(3600)
    again = await hand_over.reach(old.directory)
    assert again is not None
    assert old.data_path.calls == ["hand over 3", "go on"]
    close(again)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, bytes(7) + b"\x01\xc1"])
async def test_malformed_message_is_an_explained_error(tmp_path: Path, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / hand_over.NAME))
        listening.listen()

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(said)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, answer)
            with pytest.raises(StartError, match="take_over failed: "):
                await hand_over.reach(tmp_path)


async def test_the_socket_is_for_this_user_alone(old: Old) -> None:
    assert (old.directory / hand_over.NAME).stat().st_mode & 0o777 == 0o600


async def test_a_directory_that_takes_no_socket_is_a_warning(old: Old, nursery: trio.Nursery) -> None:
    (old.directory / hand_over.NAME).unlink()
    (old.directory / hand_over.NAME).mkdir()
    with structlog.testing.capture_logs() as logged:
        await nursery.start(HandOver(old.store, None, old.data_path, old.edits, 3.0, old.handed_over).run)
    assert [line["event"] for line in logged] == ["take-over unavailable"]
