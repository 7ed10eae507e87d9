"""Reads memory, disk and CPU figures from Linux. Functions return None if a figure is unknown.

Because cgroup v2 hides a container's parent groups, only limits on the container itself are found.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path("/")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class MemoryLimit(NamedTuple):
    limit_bytes: int
    source: str


def memory_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """Return the lowest of the machine's memory and this process's cgroup limits, including ``memory.high``."""
    found = [MemoryLimit(limit_bytes, str(file)) for file, limit_bytes in _limits(root)]
    return min(found, default=None)


def resident_bytes(root: Path = _ROOT) -> int | None:
    """Return the size of the resident set, which includes mapped files but not kernel buffers."""
    words = _read(root / "proc/self/statm").split()
    return int(words[1]) * _PAGE_BYTES if len(words) > 1 and words[1].isdecimal() else None


def busy_ns(root: Path = _ROOT) -> int | None:
    """Return how long the calling thread has run or waited for a CPU since it started."""
    words = _read(root / "proc/thread-self/schedstat").split()
    return int(words[0]) + int(words[1]) if len(words) > 1 and all(map(str.isdecimal, words)) else None


def free_bytes(folder: Path) -> int | None:
    """Return the space available to non-root users. It respects quotas that the file system reports, as XFS does."""
    try:
        figures = os.statvfs(folder)
    except OSError:
        return None
    return figures.f_bavail * figures.f_frsize


def _limits(root: Path) -> Iterator[tuple[Path, int]]:
    meminfo = root / "proc/meminfo"
    total = re.search(r"^MemTotal: *([0-9]+) kB$", _read(meminfo), re.MULTILINE)
    if total is not None:
        yield meminfo, int(total[1]) * 1024
    groups = dict(_groups(root))
    for version, mount_root, mount in _mounts(root):
        group = groups.get(version)
        if group is None:
            continue
        for folder in _up(mount, _inside(group, mount_root)):
            yield from _limits_of(folder)


def _limits_of(folder: Path) -> Iterator[tuple[Path, int]]:
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        text = _read(folder / name).strip()
        if text.isdecimal():
            yield folder / name, int(text)
    stat = re.search(r"^hierarchical_memory_limit ([0-9]+)$", _read(folder / "memory.stat"), re.MULTILINE)
    if stat is not None:
        yield folder / "memory.stat", int(stat[1])


def _groups(root: Path) -> Iterator[tuple[int, str]]:
    """Yield the version and path of each of the process's cgroups. See ``/proc/pid/cgroup`` in cgroups(7)."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, group = rest.partition(":")
        if "memory" in controllers.split(","):
            yield 1, group
        elif number == "0" and colon:
            yield 2, group


def _mounts(root: Path) -> Iterator[tuple[int, str, Path]]:
    """Yield the version, root and path of each cgroup mount. See ``/proc/pid/mountinfo`` in proc(5)."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, of_type = before.split(), after.split()
        if len(fields) < 5 or len(of_type) < 3:
            continue
        version = {"cgroup2": 2, "cgroup": 1}.get(of_type[0])
        if version is None or (version == 1 and "memory" not in of_type[2].split(",")):
            continue
        yield version, _unescaped(fields[3]), root / _unescaped(fields[4]).lstrip("/")


def _inside(group: str, mount_root: str) -> str:
    """Return a group's path relative to the mount.

    In the host's cgroup namespace, a container sees its group's full path, which is also the mount's root.
    """
    top = mount_root.rstrip("/")
    if group == top or group.startswith(top + "/"):
        inside = group[len(top) :].strip("/")
        return "" if ".." in inside.split("/") else inside
    return ""


def _up(mount: Path, inside: str) -> Iterator[Path]:
    folder = mount / inside
    yield folder
    while folder != mount:
        folder = folder.parent
        yield folder


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
