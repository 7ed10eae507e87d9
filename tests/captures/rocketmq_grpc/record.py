"""Records this directory again: real clients, Sluice, a recording relay, and a real Proxy.

Sluice limits nothing here. It keeps clients from bypassing the relay.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
sys.path[:0] = [str(_HERE.parents[1] / folder) for folder in ("integration", "support")]
sys.path[:0] = [str(_HERE.parents[2])]

from harness.clients import grpc_client, run_client  # noqa: E402 - needs the path
from harness.ports import free_port  # noqa: E402
from harness.recorder import Recorder, write_recording  # noqa: E402
from harness.rocketmq_proxy import RocketMQProxy  # noqa: E402
from harness.sidecar import Route, Sluice  # noqa: E402

# This client's connections with more bytes are left out.
_MOST_BYTES: Final = 200_000


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as running:
        folder = Path(scratch)
        proxy = running.enter_context(RocketMQProxy(folder / "proxy"))
        proxy.create_topic("recorded", message_type="NORMAL")
        for each in ("normal", "fifo", "delay", "transaction"):
            proxy.create_topic(f"kinds-{each}", message_type=each.upper())
        for group in ("push", "delay", "transaction", "simple"):
            proxy.create_group(f"kinds-{group}")
        proxy.create_group("kinds-fifo", in_order=True)
        proxy.create_group("kinds-dead", in_order=True, most_retries=1)
        for language, source in (("python", "flat_out.py"), ("node", "flat_out.js"), ("java", "GrpcFlatOut")):
            _record(folder / f"{language}-sends", proxy, source, "1", "1", "recorded")
        _record(folder / "java-kinds", proxy, "GrpcKinds", "kinds")


def _record(home: Path, proxy: RocketMQProxy, source: str, *arguments: str) -> None:
    name, language = home.name, home.name.partition("-")[0]
    (home / "sluice").mkdir(parents=True)
    with Recorder(proxy.grpc) as recorder:
        route = Route(f"127.0.0.1:{free_port()}", recorder.address)
        limits = ("topic:*=unlimited",)
        with Sluice(home / "sluice", [route], protocol="rocketmq-grpc", limits=limits):
            run_client(
                grpc_client(language, source, route.listen, "plain", *arguments, home=home), home=home, seconds=60
            )
    for number, chunks in enumerate(recorder.connections, 1):
        size = sum(len(chunk) for _, chunk in chunks)
        print(name, number, size)
        if 0 < size <= _MOST_BYTES:
            write_recording(_HERE, f"{name}-{number}", chunks)


if __name__ == "__main__":
    main()
