"""The measured programs as processes: build, start pinned, wait until they listen, end by pid."""

import contextlib
import http.client
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rows import ROCKETMQ

BENCH = Path(__file__).resolve().parent
LOAD_CRATE = BENCH / "load"
LOAD = LOAD_CRATE / "target" / "release" / "load"
NGINX_STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")

INSTALL_SLUICE = f"{sys.executable} -m pip install -e ."

PROXY_CORE = 0
LOAD_CORE = 1
BYPASSED = "sluice_bypassed_total"

# Two for each connection of a relay that has 10 000, and some.
MANY_FILES = 32_768

START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 15.0


class BenchError(Exception):
    """The bench cannot continue. The message says why and what to do."""


@dataclass(frozen=True)
class Place:
    """One peer's ports on the loopback, its broker's port, its scratch folder and its protocol."""

    listen: int
    admin: int
    broker: int
    scratch: Path
    protocol: str = ROCKETMQ


@dataclass(frozen=True)
class Peer:
    """A program between the load and the sink."""

    name: str
    command: Callable[[Place], list[str]] | None
    needs: tuple[str, ...] = ()
    install: str = ""
    limited: bool = False
    group: str = ""
    left_out: Callable[[Path], str | None] | None = None

    def answers_to(self, name: str) -> bool:
        """Say whether a name is its own or that of its group."""
        return name in (self.name, self.group)

    def check(self) -> None:
        """Raise BenchError if a requirement is missing."""
        for need in self.needs:
            if shutil.which(need) is None and not Path(need).exists():
                raise BenchError(
                    f"{self.name} needs {need}: install it with `{self.install}`, or run --without {self.name}"
                )


@dataclass(frozen=True)
class Running:
    peer: Peer
    target: int
    pid: int | None
    admin: int
    log: Path | None = None

    def bypassed(self) -> Counter[str]:
        """Count the requests that bypassed Sluice's limiter since its start, by reason. Empty for other peers."""
        if not self.peer.limited:
            return Counter()
        page = metrics_page(self.admin)
        if BYPASSED not in page:
            raise BenchError(f"{self.peer.name} shows no {BYPASSED}, so nobody knows whether it limited anything")
        samples = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(BYPASSED))
        return Counter({name.removeprefix(BYPASSED): round(float(count)) for name, count in samples})


def haproxy(place: Place) -> list[str]:
    """Plain TCP relay, one thread, no logs, otherwise HAProxy's defaults."""
    config = place.scratch / "haproxy.cfg"
    config.write_text(
        f"""global
    nbthread 1
defaults
    mode tcp
    timeout connect 10s
    timeout client 1h
    timeout server 1h
listen relay
    bind 127.0.0.1:{place.listen}
    server sink 127.0.0.1:{place.broker}
"""
    )
    return ["haproxy", "-db", "-f", str(config)]


def open_files() -> int:
    """Raise the limit of open files to its maximum, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (MANY_FILES, hard):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
            break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def nginx(place: Place) -> list[str]:
    """Plain TCP relay by the stream module, one process, no access log."""
    config = place.scratch / "nginx.conf"
    config.write_text(
        f"""load_module {NGINX_STREAM};
daemon off;
master_process off;
worker_processes 1;
pid {place.scratch}/nginx.pid;
error_log stderr warn;
worker_rlimit_nofile {open_files()};
events {{ worker_connections {open_files()}; }}
stream {{
    server {{
        listen 127.0.0.1:{place.listen};
        proxy_pass 127.0.0.1:{place.broker};
        proxy_timeout 1h;
    }}
}}
"""
    )
    return ["nginx", "-e", "stderr", "-p", str(place.scratch), "-c", str(config)]


def python() -> str:
    return sys.executable


def trio_relay(place: Place) -> list[str]:
    return [sys.executable, str(BENCH / "relay.py"), f"127.0.0.1:{place.listen}", f"127.0.0.1:{place.broker}"]


def sluice(*limits: str) -> Callable[[Place], list[str]]:
    """Sluice as an operator starts it, with these limits."""

    def command(place: Place) -> list[str]:
        flags = ["--listen", f"127.0.0.1:{place.listen}", "--broker", f"127.0.0.1:{place.broker}"]
        flags += ["--admin", f"127.0.0.1:{place.admin}", "--state-dir", str(place.scratch / "state")]
        for limit in limits:
            flags += ["--limit", limit]
        return [str(sluice_program()), "run", "--protocol", "rocketmq", *flags]

    return command


def sluice_program() -> Path:
    return Path(sys.executable).parent / "sluice"


def sluice_peer(name: str, *limits: str) -> Peer:
    """Return Sluice under another name."""
    return Peer(name, sluice(*limits), (str(sluice_program()),), INSTALL_SLUICE, limited=True)


DIRECT = Peer("direct", None)
HAPROXY = Peer("haproxy", haproxy, ("haproxy",), "apt-get install haproxy")
NGINX = Peer("nginx", nginx, ("nginx", str(NGINX_STREAM)), "apt-get install nginx libnginx-mod-stream")
TRIO_RELAY = Peer("trio-relay", trio_relay)

RELAYS = (DIRECT, HAPROXY, NGINX, TRIO_RELAY)


def build_load() -> None:
    if shutil.which("cargo") is None:
        raise BenchError("the load generator needs cargo: install Rust 1.88 or newer, e.g. from https://rustup.rs")
    build = subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=LOAD_CRATE, check=False)
    if build.returncode:
        raise BenchError("the load generator does not build; cargo says why above")


def pinned(core: int, command: list[str]) -> list[str]:
    """Run on one core, and end with the bench even if the bench is killed."""
    # The shell detects a bench that was killed before setpriv could request the signal.
    alive = ["sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
    return ["setpriv", "--pdeathsig", "TERM", *alive, "taskset", "-c", str(core), *command]


@contextlib.contextmanager
def process(name: str, command: list[str], core: int, port: int, log: Path) -> Iterator[int]:
    """Start a process, wait until its port is open, yield its pid, and end it."""
    if listens(port):
        raise BenchError(f"port {port} on 127.0.0.1 is taken: choose others with --base-port")
    with log.open("wb") as output:
        child = subprocess.Popen(
            pinned(core, command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches the bench alone, which then ends its children in order.
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_DEADLINE_S
        while not listens(port):
            if child.poll() is not None or time.monotonic() > deadline:
                state = "is not listening" if child.poll() is None else f"ended with status {child.returncode}"
                raise BenchError(f"{name} {state}{last_words(log)}")
            time.sleep(0.05)
        yield child.pid
        if child.poll() is not None:
            raise BenchError(f"{name} ended by itself with status {child.returncode}{last_words(log)}")
    finally:
        child.terminate()
        try:
            child.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def last_words(log: Path | None) -> str:
    """Return the end of a process's output, to be added to an error."""
    said = log.read_text(errors="replace")[-2000:].strip() if log else ""
    return f"; it said:\n{said}" if said else ""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def sink(
    listen: int, control: int, *, swallow: bool, scratch: Path, protocol: str = ROCKETMQ, credit: int | None = None
) -> Iterator[None]:
    """Run the sink as the broker."""
    command = [str(LOAD), "sink", "--listen", f"127.0.0.1:{listen}", "--control", f"127.0.0.1:{control}"]
    command += ["--protocol", protocol]
    if credit is not None:
        command += ["--credit", str(credit), "--session-window", str(credit)]
    if swallow:
        command.append("--swallow")
    with process("the sink", command, LOAD_CORE, control, scratch / "sink.log"):
        yield


@contextlib.contextmanager
def started(peer: Peer, place: Place) -> Iterator[Running]:
    """Run one peer. The direct way is the broker's own port."""
    if peer.command is None:
        yield Running(peer, place.broker, None, place.admin)
        return
    place.scratch.mkdir(parents=True, exist_ok=True)
    log = place.scratch / "log"
    with process(peer.name, peer.command(place), PROXY_CORE, place.listen, log) as pid:
        yield Running(peer, place.listen, pid, place.admin, log)


def metrics_page(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
