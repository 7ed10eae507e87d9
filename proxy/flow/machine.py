"""What the machine says of memory, disk and processor: what may be used, what this process uses, what is free.

Each function reads anew and returns None for what cannot be known; none raises. ``memory_limit`` takes about a
millisecond and can change while the process runs; the others take some 10 µs. Linux only: elsewhere memory is unknown.

In a container the machine's memory is not what may be used: the lowest limit counts, of the control group that this
process is in and of all above it. Of groups above the container's own, version 1 tells the lowest limit; version 2
hides them, so give the container itself a limit.
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
    """What may be used.

    Attributes:
        limit_bytes: so much.
        source: the file that says so.
    """

    limit_bytes: int
    source: str


def memory_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """Return the lowest of the machine's memory and all limits of control groups that apply to this process.

    A group of version 2 that has ``memory.high`` is slowed down there until it uses less, so that counts, too.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    found = [MemoryLimit(limit_bytes, str(file)) for file, limit_bytes in _limits(root)]
    return min(found, default=None)


def resident_bytes(root: Path = _ROOT) -> int | None:
    """Return how much memory this process has in use: its resident set.

    It includes pages of files that the process has mapped, but not what the kernel holds for its sockets and files.

    Args:
        root: where ``proc`` is.
    """
    words = _read(root / "proc/self/statm").split()
    return int(words[1]) * _PAGE_BYTES if len(words) > 1 and words[1].isdecimal() else None


def busy_ns(root: Path = _ROOT) -> int | None:
    """Return for how long the thread that asks has run since it began, or was to run and had no processor.

    Waiting for sockets, files or locks is not counted. So a share of all time near 1 means that the thread has none to
    spare, whether it uses the processor itself, others do, or a control group's limit holds it back.

    Args:
        root: where ``proc`` is.
    """
    words = _read(root / "proc/thread-self/schedstat").split()
    return int(words[0]) + int(words[1]) if len(words) > 1 and all(map(str.isdecimal, words)) else None


def free_bytes(folder: Path) -> int | None:
    """Return how much this process could still write where a folder is; None if the folder cannot be asked.

    What is kept back for root is not counted. A quota counts if the file system shows it there, as XFS does with those
    of folders. What evicts a pod for what it has written is not visible here.
    """
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
    """Return the group that this process is in, of either version: see cgroups(7), /proc/pid/cgroup."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, group = rest.partition(":")
        if "memory" in controllers.split(","):
            yield 1, group
        elif number == "0" and colon:
            yield 2, group


def _mounts(root: Path) -> Iterator[tuple[int, str, Path]]:
    """Return where groups with memory are seen: the version, which group is the topmost there, and the folder.

    See proc(5), /proc/pid/mountinfo.
    """
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
    """Return where a group is below the topmost one that is seen.

    It is that one itself where the group is not below it: a container that shares the host's namespace of groups, but
    sees its own only, has the whole path as its group and a mount that begins there, or at a group above.
    """
    top = mount_root.rstrip("/")
    if group == top or group.startswith(top + "/"):
        inside = group[len(top) :].strip("/")
        return "" if ".." in inside.split("/") else inside
    return ""


def _up(mount: Path, inside: str) -> Iterator[Path]:
    """Return the folder of a group, and those of all above it that are seen."""
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
