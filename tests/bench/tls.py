"""The cost of TLS: Sluice and HAProxy terminate it, in turns, in one run, each beside the same without TLS.

    .venv/bin/python tests/bench/tls.py            # 3 rounds of each row, about three minutes
    .venv/bin/python tests/bench/tls.py --quick    # one round, half a minute

``up`` is the clients' data, which is decrypted: oneway sends of RocketMQ, of 536 bytes and of 64 KiB, over 16
connections that write as fast as they can. ``down`` is data for the clients, which is encrypted. ``handshakes``
connects, completes a full handshake and leaves, 8 at a time. The measured peer has core 0 to itself. The load and the
sink share core 1. They are Python with the same OpenSSL, so where ``core used`` is well below 100 % the rate is theirs.
The processor time per frame or handshake is the peer's own anyway.

Ratios are within a round, and medians of the rounds. ``TLS adds`` is the additional processor time relative to the same
peer without TLS. Certificates are of ECDSA, P-256, unless ``--rsa`` is given. Both peers use OpenSSL's default
negotiation.
"""

import argparse
import contextlib
import json
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import machine
import peers
import script
import trustme
from peers import BenchError, Peer, Place, Running
from report import aligned

HOST: Final = "127.0.0.1"
CONNECTIONS: Final = 16
HANDSHAKES_AT_ONCE: Final = 8
CHUNK_BYTES: Final = 256 * 1024
SIZES: Final = {"536": 536, "64K": 64 * 1024}
ROWS: Final = (*(f"{way}-{size}" for way in ("up", "down") for size in SIZES), "handshakes")
PLENTY: Final = 1_000_000_000
_WARMUP_S: Final = 0.5
_ONEWAY_SEND, _ANSWER = (310, 2), (0, 1)


class Measured(NamedTuple):
    per_s: float
    cpu_us: float
    core: float


def frame(size: int, code: int, flag: int) -> bytes:
    fields = {"a": "bench", "b": "bench", "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    fields |= {"i": "", "j": "0", "k": "false", "m": "false"}
    header = json.dumps(
        {
            "code": code,
            "extFields": fields,
            "flag": flag,
            "language": "JAVA",
            "opaque": 7,
            "serializeTypeCurrentRPC": "JSON",
            "version": 435,
        },
        separators=(",", ":"),
    ).encode()
    body = bytes(size - 8 - len(header))
    return struct.pack(">ii", size - 4, len(header)) + header + body


def chunk(row: str) -> memoryview:
    """Return complete frames to send over and over."""
    way, _, size = row.partition("-")
    one = frame(SIZES[size], *(_ONEWAY_SEND if way == "up" else _ANSWER))
    return memoryview(one * (CHUNK_BYTES // len(one)))


def flood(sock: socket.socket, data: memoryview) -> None:
    """Send as long as the peer reads."""
    with contextlib.suppress(OSError):
        while True:
            sock.sendall(data)


def swallow(sock: socket.socket, counter: list[int]) -> None:
    """Read and count until the end."""
    room = memoryview(bytearray(1024 * 1024))
    with contextlib.suppress(OSError):
        while count := sock.recv_into(room):
            counter[0] += count


def sink(port: int, row: str) -> None:
    """Discard data like a broker, or send. Write the number of bytes so far for each line that is read."""
    counters: list[list[int]] = []
    listening = socket.create_server((HOST, port), backlog=1024)

    def serve() -> None:
        while True:
            sock, _ = listening.accept()
            counters.append([0])
            threading.Thread(target=swallow, args=(sock, counters[-1]), daemon=True).start()
            if row.startswith("down"):
                threading.Thread(target=flood, args=(sock, chunk(row)), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    for _ in sys.stdin:
        print(sum(each[0] for each in counters), flush=True)


def connected(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connection, after its handshake if there is one."""
    sock = socket.create_connection((HOST, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock if context is None else context.wrap_socket(sock, server_hostname=HOST)


def shake_hands_for_ever(port: int, context: ssl.SSLContext | None, counter: list[int]) -> None:
    while True:
        sock = connected(port, context)
        sock.sendall(b"\0")
        sock.close()
        counter[0] += 1


def load(port: int, row: str, authority: str) -> None:
    """Be the clients. Write the number of bytes or handshakes so far for each line that is read."""
    context = ssl.create_default_context(cafile=authority) if authority else None
    counters = [[0] for _ in range(HANDSHAKES_AT_ONCE if row == "handshakes" else CONNECTIONS)]
    if row == "handshakes":
        for counter in counters:
            threading.Thread(target=shake_hands_for_ever, args=(port, context, counter), daemon=True).start()
    else:
        socks = [connected(port, context) for _ in counters]
        if row.startswith("down"):
            for sock, counter in zip(socks, counters, strict=True):
                # Silent clients are not served.
                sock.sendall(frame(SIZES["536"], *_ONEWAY_SEND))
                threading.Thread(target=swallow, args=(sock, counter), daemon=True).start()
        else:
            threading.Thread(target=flood_all, args=(socks, chunk(row)), daemon=True).start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(sum(each[0] for each in counters), flush=True)


def flood_all(socks: Sequence[socket.socket], data: memoryview) -> None:
    """Send over all connections, in one thread: sixteen threads would wait for the interpreter's lock."""
    at = dict.fromkeys(socks, 0)
    with selectors.DefaultSelector() as ready:
        for sock in socks:
            sock.setblocking(False)
            ready.register(sock, selectors.EVENT_WRITE)
        while True:
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                sock = key.fileobj
                with contextlib.suppress(ssl.SSLWantWriteError, BlockingIOError):
                    while True:
                        # At most a record, because the rest of a larger write would have to be repeated.
                        at[sock] = (at[sock] + sock.send(data[at[sock] :][: 16 * 1024])) % len(data)


@contextlib.contextmanager
def child(what: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run one of the parts above on the load's core."""
    command = peers.pinned(peers.LOAD_CORE, [sys.executable, __file__, what, *arguments])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(process: subprocess.Popen[str]) -> int:
    """Ask one of them for its count."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        raise BenchError("the load has failed; what it said is above")
    return int(answer)


def haproxy(certificate: str) -> Peer:
    """The bench's HAProxy, with TLS in front if there is a certificate."""

    def command(place: Place) -> list[str]:
        line = peers.haproxy(place)
        config = place.scratch / "haproxy.cfg"
        bind = f"bind {HOST}:{place.listen}"
        config.write_text(config.read_text().replace(bind, f"{bind} ssl crt {certificate}" if certificate else bind))
        return line

    return Peer("haproxy-tls" if certificate else "haproxy", command, ("haproxy",), "apt-get install haproxy")


def sluice(certificate: str) -> Peer:
    """Sluice with a limit that is not reached, with TLS in front if there is a certificate."""

    def command(place: Place) -> list[str]:
        tls = f'tls = "require"\ntls_certificate_file = "{certificate}"\ntls_key_file = "{certificate}"\n'
        config = place.scratch / "sluice.toml"
        config.write_text(
            f'[[listeners]]\nlisten = "{HOST}:{place.listen}"\nbroker = "{HOST}:{place.broker}"\n'
            f'{tls if certificate else ""}[[limits]]\nkind = "topic"\nname = "bench"\nrate = {PLENTY}\n'
        )
        flags = ("--admin", f"{HOST}:{place.admin}", "--state-dir", str(place.scratch / "state"))
        return [str(peers.sluice_program()), "run", "--config", str(config), *flags]

    needs = (str(peers.sluice_program()),)
    return Peer("sluice-tls" if certificate else "sluice", command, needs, peers.INSTALL_SLUICE, limited=True)


def measured(running: Running, receiving: subprocess.Popen[str], row: str, authority: str, seconds: float) -> Measured:
    assert running.pid is not None
    with child("load", str(running.target), row, authority) as sending:
        assert sending.stdout is not None
        sending.stdout.readline()
        counting = receiving if row.startswith("up") else sending
        time.sleep(_WARMUP_S)
        counted, cpu, began_s = asked(counting), machine.cpu_s(running.pid), time.monotonic()
        time.sleep(seconds)
        counted, cpu, took_s = asked(counting) - counted, machine.cpu_s(running.pid) - cpu, time.monotonic() - began_s
    pieces = counted if row == "handshakes" else counted / SIZES[row.partition("-")[2]]
    if not pieces:
        raise BenchError(f"{running.peer.name}: nothing came through{peers.last_words(running.log)}")
    if bypassed := running.bypassed():
        raise BenchError(f"{running.peer.name}: the limiter was bypassed: {dict(bypassed)}")
    return Measured(pieces / took_s, cpu * 1e6 / pieces, cpu / took_s)


def table(row: str, rounds: dict[str, list[Measured]]) -> str:
    what = "handshake" if row == "handshakes" else "frame"
    heads = [row, f"{what}s/s", "MB/s", f"CPU us/{what}", "TLS adds", "core used", "x haproxy-tls", "CPU x haproxy-tls"]
    lines = [heads]
    for name, each in rounds.items():
        per_s = median(one.per_s for one in each)
        plain = rounds.get(name.removesuffix("-tls"), each) if name.endswith("-tls") else each
        added = median(one.cpu_us - other.cpu_us for one, other in zip(each, plain, strict=True))
        pairs = list(zip(each, rounds["haproxy-tls"], strict=True))
        lines.append(
            [
                name,
                f"{per_s:,.0f}",
                "" if row == "handshakes" else f"{per_s * SIZES[row.partition('-')[2]] / 1e6:,.0f}",
                f"{median(one.cpu_us for one in each):,.2f}",
                f"{added:,.2f}" if name.endswith("-tls") else "",
                f"{median(one.core for one in each):.0%}",
                f"{median(one.per_s / other.per_s for one, other in pairs):.2f}",
                f"{median(one.cpu_us / other.cpu_us for one, other in pairs):.2f}",
            ]
        )
    return aligned(lines)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tls.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--row", action="append", choices=ROWS, help="only this row; may be given several times")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each peer and row (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one (default 2)")
    parser.add_argument("--quick", action="store_true", help="one round of a second")
    parser.add_argument("--rsa", action="store_true", help="a certificate of RSA, 2048 bits")
    parser.add_argument("--base-port", type=int, default=21_000, help="first of the ports (default 21000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args(arguments)
    if given.quick:
        given.rounds, given.seconds = 1, 1.0
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    return given


def bench(given: argparse.Namespace) -> int:
    """Measure everything. Return the exit status."""
    machine.check()
    where = machine.described()
    print(
        f"{where['cpu']}, {where['cores']} cores; {ssl.OPENSSL_VERSION}; {'RSA' if given.rsa else 'ECDSA'}\n",
        flush=True,
    )
    busy = machine.busy_share()
    kept: dict[str, dict[str, list[Measured]]] = {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        scratch = Path(folder)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(scratch / "ca.pem"))
        key = trustme.KeyType.RSA if given.rsa else trustme.KeyType.ECDSA
        certificate = scratch / "server.pem"
        authority.issue_cert(HOST, key_type=key).private_key_and_cert_chain_pem.write_to_path(str(certificate))
        broker = given.base_port
        measuring = [make(shown) for shown in ("", str(certificate)) for make in (haproxy, sluice)]
        for row in given.row or ROWS:
            rounds: dict[str, list[Measured]] = {peer.name: [] for peer in measuring}
            for _ in range(given.rounds):
                for number, peer in enumerate(measuring):
                    peer.check()
                    place = Place(broker + 1 + 2 * number, broker + 2 + 2 * number, broker, scratch / peer.name)
                    trusted = str(scratch / "ca.pem") if peer.name.endswith("-tls") else ""
                    with child("sink", str(broker), row) as receiving:
                        # It listens before it answers.
                        asked(receiving)
                        with peers.started(peer, place) as running:
                            rounds[peer.name].append(measured(running, receiving, row, trusted, given.seconds))
            print(table(row, rounds), end="\n\n", flush=True)
            kept[row] = rounds
    busy = max(busy, machine.busy_share())
    if busy > machine.QUIET:
        print(f"This machine was up to {busy:.0%} busy with other work: the figures are worth little.", flush=True)
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["sink"]:
        sink(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["load"]:
        load(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        sys.exit(script.status("tls", lambda: bench(options(sys.argv[1:]))))
