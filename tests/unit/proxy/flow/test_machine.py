import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy.flow.machine import busy_ns, free_bytes, memory_limit, resident_bytes

MIB = 1024**2
V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate"
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
V1_CPU = "32 31 0:29 {root} /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct"
UNLIMITED_V1 = "9223372036854771712"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 GiB of memory, without control groups."""
    write(tmp_path, {"proc/meminfo": "MemTotal:        8388608 kB\nMemFree:         1000 kB\n"})
    return tmp_path


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def groups(root: Path, cgroup: str, mount: str, limits: Mapping[str, str]) -> None:
    write(root, {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mount})
    write(root, {f"sys/fs/cgroup/{name}": text for name, text in limits.items()})


def limit_of(root: Path) -> tuple[int, str] | None:
    """Return the limit in MiB, and the file it is from."""
    limit = memory_limit(root)
    return None if limit is None else (limit.limit_bytes // MIB, str(Path(limit.source).relative_to(root)))


def test_without_groups_the_machines_memory_is_the_limit(root: Path) -> None:
    assert limit_of(root) == (8192, "proc/meminfo")


def test_container_sees_its_own_group_as_the_topmost(root: Path) -> None:
    groups(root, "0::/", V2.format(root="/"), {"memory.max": str(512 * MIB), "memory.high": "max"})
    assert limit_of(root) == (512, "sys/fs/cgroup/memory.max")


@pytest.mark.parametrize(
    ("limits", "least"),
    [
        ({"a/b/c/memory.max": str(900 * MIB)}, (900, "a/b/c/memory.max")),
        ({"a/b/c/memory.max": "max", "a/b/memory.max": str(700 * MIB)}, (700, "a/b/memory.max")),
        ({"a/b/c/memory.max": str(900 * MIB), "a/memory.max": str(300 * MIB)}, (300, "a/memory.max")),
        ({"a/b/c/memory.max": str(900 * MIB), "a/memory.max": str(1000 * MIB)}, (900, "a/b/c/memory.max")),
        ({"a/b/c/memory.max": str(900 * MIB), "a/b/c/memory.high": str(800 * MIB)}, (800, "a/b/c/memory.high")),
        ({"a/other/memory.max": str(1 * MIB)}, None),
        ({"a/b/c/memory.max": str(9000 * MIB)}, None),
    ],
)
def test_lowest_limit_on_the_way_up_counts(
    root: Path, limits: Mapping[str, str], least: tuple[int, str] | None
) -> None:
    groups(root, "0::/a/b/c", V2.format(root="/"), limits)
    assert limit_of(root) == ((8192, "proc/meminfo") if least is None else (least[0], f"sys/fs/cgroup/{least[1]}"))


@pytest.mark.parametrize(
    ("group", "mount_root", "folder"),
    [
        ("/", "/", ""),
        ("/docker/1f", "/", "docker/1f/"),
        ("/docker/1f", "/docker/1f", ""),
        ("/docker/1f/inner", "/docker/1f", "inner/"),
        ("/docker/1f", "/docker", "1f/"),
        ("/docker/1fe", "/docker/1f", ""),
        ("/../other", "/", ""),
        ("/", "/..", ""),
        ("/a b", "/", "a b/"),
    ],
)
def test_the_group_is_found_below_the_mount(root: Path, group: str, mount_root: str, folder: str) -> None:
    limits = {f"memory/{folder}memory.limit_in_bytes": str(256 * MIB)}
    write(root, {"sys/fs/cgroup/cpu/docker/1f/memory.limit_in_bytes": "1"})
    mounts = f"{V1_CPU.format(root=mount_root)}\n{V1.format(root=mount_root)}"
    groups(root, f"5:cpu,cpuacct:/x\n4:memory:{group}\n1:name=systemd:/y\n0::/z", mounts, limits)
    assert limit_of(root) == (256, f"sys/fs/cgroup/memory/{folder}memory.limit_in_bytes")


def test_group_without_a_limit_has_the_machines(root: Path) -> None:
    groups(root, "4:memory:/a", V1.format(root="/"), {"memory/a/memory.limit_in_bytes": UNLIMITED_V1})
    assert limit_of(root) == (8192, "proc/meminfo")


def test_both_versions_at_once_are_both_checked(root: Path) -> None:
    mounts = V1.format(root="/") + "\n" + V2.format(root="/").replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    limits = {"memory/a/memory.limit_in_bytes": str(64 * MIB), "unified/b/cgroup.procs": "1"}
    groups(root, "4:memory:/a\n0::/b", mounts, limits)
    assert limit_of(root) == (64, "sys/fs/cgroup/memory/a/memory.limit_in_bytes")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proc/self/mountinfo", "x\n31 23 - cgroup2\n31 23 0:28 / /sys/fs/cgroup rw\n"),
        ("proc/self/cgroup", "\n0\n::\nmemory:\n"),
        ("proc/meminfo", "MemTotal: much kB"),
        ("sys/fs/cgroup/memory.max", "²"),
        ("sys/fs/cgroup/memory.max", ""),
    ],
)
def test_invalid_limits_are_ignored(root: Path, name: str, text: str) -> None:
    groups(root, "0::/", V2.format(root="/"), {"memory.max": str(512 * MIB)})
    write(root, {name: text})
    expected = {"proc/meminfo": (512, "sys/fs/cgroup/memory.max")}
    assert limit_of(root) == expected.get(name, (8192, "proc/meminfo"))


def test_the_limit_is_unknown_without_a_source(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    assert resident_bytes(tmp_path) is None


def test_thread_is_busy_while_it_runs_and_while_it_is_to_run(tmp_path: Path) -> None:
    assert busy_ns(tmp_path) is None
    write(tmp_path, {"proc/thread-self/schedstat": "700 50 12"})
    assert busy_ns(tmp_path) == 750
    write(tmp_path, {"proc/thread-self/schedstat": "no figures"})
    assert busy_ns(tmp_path) is None


def test_memory_alarm_ends_in_a_process_that_gives_nothing_back() -> None:
    # In a separate process, because memory freed by other tests would be reused first.
    outcome = subprocess.run([sys.executable, "-c", FILL_AND_DRAIN], check=True, capture_output=True, text=True)
    first, drained, second = outcome.stdout.split()
    assert drained == "False"
    assert 0.7 < int(second) / int(first) < 1.3


FILL_AND_DRAIN = """
from proxy.flow.alarms import MemoryAlarm
from proxy.flow.machine import resident_bytes

alarm, messages, kept = MemoryAlarm(), [], []
limit_bytes = (resident_bytes() + 30_000_000) / 0.6

def look():
    alarm.update(0, resident_bytes(), len(messages) * 200, limit_bytes)

def fill():
    look()
    while not alarm.stands:
        messages.extend(bytes(150) for _ in range(1000))
        kept.append(bytes(150))
        look()
    return len(messages)

print(fill())
while messages:
    messages.pop()
look()
print(alarm.stands)
print(fill())
"""


def test_free_space_is_the_amount_this_process_may_write(tmp_path: Path) -> None:
    free = free_bytes(tmp_path)
    assert free is not None
    usage = shutil.disk_usage(tmp_path)
    assert abs(free - usage.free) < max(0.1 * usage.free, 64 * MIB)
    assert 0 <= free <= usage.total


def test_free_space_of_a_folder_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "none") is None
