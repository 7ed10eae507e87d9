"""Real clients of every kind while their broker is restarted: through Sluice they fare as they do without it."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.clients import java, start_client
from harness.process import ManagedProcess
from harness.rocketmq import RocketMQ, StartRocketMQ
from harness.sidecar import StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_RESTARTS = 5
_KINDS = ("send", "push", "lite", "request")
# Clients try several times in it: pulls every 3 s, sends and requests as fast as they fail.
_OUTAGE_S = 10.0
# A client says every 30 s who it is: before that a broker that was restarted has nobody to give a reply to.
_SETTLED_S = 40.0
_MEASURED_S = 10
_WARM_UP_S = 15.0


class _Load(NamedTuple):
    """One client program with its broker, and what it has shown so far."""

    name: str
    rocketmq: RocketMQ
    client: ManagedProcess
    connections: list[int]
    rates: list[dict[str, float]]

    def look(self) -> None:
        """Note how many connections the client has to its broker, and its rates of the last seconds."""
        self.connections.append(_connections(self.client.pid, self.rocketmq))
        seconds = [json.loads(line) for line in self.client.lines if line.startswith("{")][-_MEASURED_S:]
        self.rates.append({kind: sum(second[kind] for second in seconds) / len(seconds) for kind in _KINDS})
        print(f"{self.name}: {self.connections[-1]} connections, {self.rates[-1]} a second", flush=True)


def _connections(pid: int, rocketmq: RocketMQ) -> int:
    """Count the established connections of a process to the address that a broker advertises."""
    fds = Path(f"/proc/{pid}/fd").iterdir()
    inodes = set()
    for fd in fds:
        try:
            inodes.add(str(fd.readlink()))
        except OSError:
            continue
    address = socket.inet_aton(rocketmq.advertised_host)[::-1].hex().upper()
    remotes = {f"{address}:{port:04X}" for port in (rocketmq.port, rocketmq.vip_port)}
    # Netty binds to IPv6 sockets unless it is told otherwise.
    count = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            remote, state, inode = fields[2], fields[3], fields[9]
            count += state == "01" and f"socket:[{inode}]" in inodes and any(remote.endswith(each) for each in remotes)
    return count


def _start(name: str, rocketmq: RocketMQ, home: Path) -> _Load:
    topics = rocketmq.create_topic("sent"), rocketmq.create_topic("asked")
    command = java("MixedLoad.java", rocketmq.namesrv, *topics, name, home=home)
    return _Load(name, rocketmq, start_client(command, home=home), [], [])


def test_clients_fare_as_without_sluice(
    start_rocketmq: StartRocketMQ, start_sluice: StartSluice, client_home: Path
) -> None:
    behind, alone = start_rocketmq(), start_rocketmq(advertised_host="127.0.0.1")
    sluice = start_sluice(behind, limits=("topic:*=unlimited",))
    loads = [_start("sluice", behind, client_home / "sluice"), _start("direct", alone, client_home / "direct")]
    try:
        time.sleep(_WARM_UP_S)
        for load in loads:
            load.look()
        with ThreadPoolExecutor() as both:
            for _ in range(_RESTARTS):
                list(both.map(lambda load: load.rocketmq.stop_broker(), loads))
                time.sleep(_OUTAGE_S)
                list(both.map(lambda load: load.rocketmq.start_broker(), loads))
                time.sleep(_SETTLED_S)
                for load in loads:
                    load.look()
    finally:
        for load in loads:
            load.client.kill()
    through, direct = loads
    print("\n".join(line for line in sluice.process.lines if "broker" in line))
    for ours, theirs in zip(through.connections, direct.connections, strict=True):
        assert ours <= theirs + 1
    for kind in _KINDS:
        ours, theirs = (sum(rates[kind] for rates in load.rates) for load in loads)
        # Without Sluice, too, one kind or the other needs longer than that after some restart.
        assert ours >= 0.7 * theirs, kind
