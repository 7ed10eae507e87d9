"""Processor time of one send of RocketMQ 5, of Sluice and of HAProxy as a TCP relay, in front of a real Proxy."""

import argparse
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "tests" / "bench")]

from harness.grpc_calls import GrpcCalls, send_request  # noqa: E402 - needs the path
from harness.haproxy import HAProxy  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.rocketmq_proxy import RocketMQProxy  # noqa: E402
from harness.sidecar import Route, Sluice  # noqa: E402
from machine import cpu_s  # noqa: E402

# Connections, and concurrent calls on each.
_CONNECTIONS, _CALLS = 4, 16
_TOPIC: Final = "bench"
_REQUEST: Final = send_request(_TOPIC, b"x" * 512, "01" * 17)
# Sluice's limits on the sends.
_LIMITS: Final = {"unlimited": "unlimited", "limited": "1000000/s", "refused": "0/s"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of load for each figure (5)")
    parser.add_argument("--rounds", type=int, default=3, help="of all peers in turn; the median counts (3)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="grpc-cost-") as scratch, ExitStack() as running:
        folder = Path(scratch)
        proxy = running.enter_context(RocketMQProxy(folder / "proxy"))
        proxy.create_topic(_TOPIC, message_type="NORMAL")
        haproxy = running.enter_context(HAProxy(folder / "haproxy", proxy.grpc))
        peers = {"HAProxy": (haproxy.address, haproxy.pid)}
        for name, limit in _LIMITS.items():
            (folder / name).mkdir()
            listen = f"127.0.0.1:{free_port()}"
            routes = [Route(listen, proxy.grpc)]
            limits = (f"topic:{_TOPIC}={limit}",)
            sluice = Sluice(folder / name, routes, protocol="rocketmq-grpc", limits=limits, covered=False)
            peers[f"Sluice, {name}"] = (listen, running.enter_context(sluice).process.pid)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
        for address, _ in peers.values():
            _load(address, 1.0)
        for _ in range(given.rounds):
            for name, (address, pid) in peers.items():
                before = cpu_s(pid)
                sends = _load(address, given.seconds)
                found[name].append(((cpu_s(pid) - before) * 1e6 / sends, sends / given.seconds))
    print("| peer | µs of processor a send | sends a second |\n|---|---|---|")
    for name, each in found.items():
        print(f"| {name} | {median(us for us, _ in each):.1f} | {median(rate for _, rate in each):.0f} |")
    return 0


def _load(address: str, seconds: float) -> int:
    """Send. Return the numbers of answered, passed and refused sends."""
    host, _, port = address.rpartition(":")
    answered, end = 0, time.monotonic() + seconds
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        for _ in range(_CONNECTIONS):
            sock = stack.enter_context(socket.create_connection((host, int(port))))
            calls = GrpcCalls()
            ready.register(sock, selectors.EVENT_READ, calls)
            begin = b"".join(calls.call("SendMessage", _REQUEST)[1] for _ in range(_CALLS))
            sock.sendall(calls.take_replies() + begin)
        while time.monotonic() < end:
            for key, _ in ready.select(1.0):
                client, calls = key.fileobj, key.data
                assert isinstance(client, socket.socket)
                data = client.recv(65_536)
                if not data:
                    raise SystemExit(f"{address} has closed the connection: {calls.goodbye}")
                ended = calls.feed(data)
                answered += len(ended)
                if any(answer.reset or not answer.body for _, answer in ended):
                    raise SystemExit(f"{address} has not answered a call: {ended[0][1].headers}")
                again = b"".join(calls.call("SendMessage", _REQUEST)[1] for _ in ended)
                client.sendall(calls.take_replies() + again)
    return answered


if __name__ == "__main__":
    sys.exit(main())
