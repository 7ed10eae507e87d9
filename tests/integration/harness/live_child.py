"""A process that edits limits as fast as it can and says so, made to be killed at any instant.

Run as a script it is a fork server: for each line ``DIRECTORY SEED`` on its stdin it forks a child, whose standings
and lines go to stdout; the first is ``pid N``. A child opens the state directory, says what it found, then edits:

    found {"path": rate, …}         what stands
    audited [id, …]                 the changes in the audit trail, the latest first
    set-aside [path, …]
    try TASK NUMBER                 before an edit of the names of that task
    ack TASK NUMBER ID…             after it, with the ids of its changes
"""

import json
import os
import random
import sys
from datetime import UTC, datetime
from pathlib import Path

import structlog
import trio

from admin.config.rulebook import Rulebook
from admin.config.sources import Flags, load
from admin.edits import journal
from admin.edits.model import Author, SetLimit
from admin.edits.service import EditService
from admin.edits.store import DirectoryStore
from admin.run.composition import compose
from limiter.rules.rule_set import RuleSet

WRITERS = 6
"""Tasks that edit at once; each has names of its own, and edits all of them together."""
NAMES_EACH = 2
_AUTHOR = Author("test")
_AUDITED_SHOWN = 300


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def edit(rulebook: Rulebook, directory: Path, seed: int) -> None:
    # Small, so that files are written anew and rotated all the time.
    journal._LEAST_BYTES = 12_000  # type: ignore[misc]  # final for all but this
    store = DirectoryStore(directory, datetime.now(UTC), audit_bytes=100_000)
    desk = EditService(rulebook, store)
    found = {path: each.limit["rate"] for path, each in store.active.items() if each.limit is not None}
    in_force = {
        f"limits/{each.kind}/{each.name}": each.limit["rate"] for each in desk.limits() if each.edit is not None
    }
    assert {path: float(rate) for path, rate in found.items()} == in_force
    audited = await desk.audit(limit=_AUDITED_SHOWN)
    say("found", json.dumps(found))
    say("audited", json.dumps([change.id for change in audited]))
    say("set-aside", json.dumps(store.set_aside))
    number = seed * 1_000_000

    async def write(task: int) -> None:
        nonlocal number
        while True:
            number += 1
            mine = number
            say("try", task, mine)
            edits = [
                SetLimit(kind="topic", name=f"t{task}-{each}", limit={"rate": mine}, reason="x" * random.randrange(900))
                for each in range(NAMES_EACH)
            ]
            changes = await desk.change(edits, _AUTHOR)
            say("ack", task, mine, *(change.id for change in changes))

    async def apply(_: RuleSet) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        await nursery.start(desk.run, apply)
        for task in range(WRITERS):
            nursery.start_soon(write, task)


def serve() -> None:
    # What is said on stdout is for whoever watches.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    rulebook = compose(load(None, {}, Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"]))).rulebook
    for line in sys.stdin:
        directory, seed = line.rsplit(" ", 1)
        pid = os.fork()
        if pid == 0:
            # Not its parent: on a busy machine that would come after what is found.
            say("pid", os.getpid())
            random.seed(int(seed))
            try:
                trio.run(edit, rulebook, Path(directory), int(seed))
            except BaseException as error:  # noqa: BLE001 - told to whoever watches
                say("failed", repr(error).replace("\n", " "))
            os._exit(1)
        os.waitpid(pid, 0)
        say("over", pid)


if __name__ == "__main__":
    serve()
