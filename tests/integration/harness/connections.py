"""TCP connections of this machine, from the kernel."""

from pathlib import Path
from typing import Final

_ESTABLISHED: Final = "01"


def inodes_connected_to(port: int) -> set[str]:
    """Return the client-side sockets of connections to a port on any address."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == _ESTABLISHED and int(words[2].rpartition(":")[2], 16) == port:
                found.add(words[9])
    return found


def inodes_of(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # has been closed
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found
