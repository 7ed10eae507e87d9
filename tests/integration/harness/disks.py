"""Small or slow disks for a sidecar or a broker."""

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from harness.paths import program
from harness.process import ManagedProcess

# Mount a file system visible only to the command behind it, and become that command.
_MOUNT: Final = 'mount -t tmpfs -o "size=$1" sluice "$2"; shift 2; exec "$@"'

_SYNC_COUNT: Final = "syncs"

# Only the spool writes with these. Python's build decides which of them os.pwritev uses.
_SLOW: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>

static void *after_a_pause(const char *name)
{
    long ms = atol(getenv("TESTED_WRITE_MS"));
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    return dlsym(RTLD_NEXT, name);
}

#define SLOW(name) \\
    ssize_t name(int fd, const struct iovec *pieces, int count, off_t offset) \\
    { \\
        ssize_t (*real)(int, const struct iovec *, int, off_t) = after_a_pause(#name); \\
        return real(fd, pieces, count, offset); \\
    }
#define SLOW2(name) \\
    ssize_t name(int fd, const struct iovec *pieces, int count, off_t offset, int flags) \\
    { \\
        ssize_t (*real)(int, const struct iovec *, int, off_t, int) = after_a_pause(#name); \\
        return real(fd, pieces, count, offset, flags); \\
    }

SLOW(pwritev)
SLOW(pwritev64)
SLOW2(pwritev2)
SLOW2(pwritev64v2)
"""

# RocketMQ's commit log uses msync, Erlang the others.
_SLOW_SYNCS: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t nowhere, *count = &nowhere;

__attribute__((constructor)) static void share_count(void)
{
    int fd = open(getenv("TESTED_SYNC_COUNT"), O_RDWR);
    void *shared = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED)
        count = shared;
    close(fd);
}

static void *after_a_pause(const char *name)
{
    long ms = atol(getenv("TESTED_SYNC_MS"));
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    return dlsym(RTLD_NEXT, name);
}

int fsync(int fd) { return ((int (*)(int))after_a_pause("fsync"))(fd); }
int fdatasync(int fd) { return ((int (*)(int))after_a_pause("fdatasync"))(fd); }
int msync(void *at, size_t size, int flags)
{
    return ((int (*)(void *, size_t, int))after_a_pause("msync"))(at, size, flags);
}
"""


class SmallDisk:
    """A file system in memory of limited size, visible to one process and its children, which ends with them."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        shell = ["sh", "-ec", _MOUNT, "sh", str(size_bytes), str(path)]
        self.inside = [program("unshare"), "--mount", *as_root, *shell]

    def of(self, process: ManagedProcess) -> Path:
        """Return another process's view of the inner `path`."""
        return Path(f"/proc/{process.pid}/root{self.path}")


def fill(folder: Path, *, left_bytes: int) -> Path:
    """Fill the file system of a folder with one file, up to a size, and return the file."""
    path = folder / "in-the-way"
    use = os.statvfs(folder)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, use.f_bavail * use.f_frsize - left_bytes)
    return path


def _built(folder: Path, source: str) -> Path:
    (folder / "slow.c").write_text(source, encoding="ascii")
    library = folder / "slow.so"
    command = [program("cc"), "-shared", "-fPIC", "-o", str(library), str(folder / "slow.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


@functools.cache
def _library() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sluice-tests-slow-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = _built(folder, _SLOW)
    ctypes.CDLL(str(library))
    return library


def slow_writes(each_ms: int) -> dict[str, str]:
    """Return variables that delay each write of the spool by these milliseconds."""
    return {"LD_PRELOAD": str(_library()), "TESTED_WRITE_MS": str(each_ms)}


def slow_syncs(each_ms: int, folder: Path, *, seen_at: Path) -> list[str]:
    """Return a prefix for a command that delays each fsync, fdatasync and msync."""
    library = seen_at / _built(folder, _SLOW_SYNCS).name
    (folder / _SYNC_COUNT).write_bytes(bytes(8))
    counted = f"TESTED_SYNC_COUNT={seen_at / _SYNC_COUNT}"
    return ["env", f"LD_PRELOAD={library}", f"TESTED_SYNC_MS={each_ms}", counted]


def syncs(folder: Path) -> int:
    """Return the number of calls of fsync, fdatasync or msync by a command behind `slow_syncs`."""
    return int.from_bytes((folder / _SYNC_COUNT).read_bytes(), sys.byteorder)
