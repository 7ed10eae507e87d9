"""A relay that records all bytes."""

import itertools
import socket
import threading
from pathlib import Path
from typing import Final, Self

from harness.ports import free_port

_HOST: Final = "127.0.0.1"
_READ: Final = 65_536


class Recorder:
    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self.connections: list[list[tuple[bool, bytes]]] = []
        own = free_port()
        self.address = f"{_HOST}:{own}"
        self._listener = socket.create_server((_HOST, own))
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._upstream)
            chunks: list[tuple[bool, bytes]] = []
            self.connections.append(chunks)
            self._start(self._relay, client, upstream, chunks, True)
            self._start(self._relay, upstream, client, chunks, False)

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket, kept: list[tuple[bool, bytes]], from_client: bool) -> None:  # noqa: FBT001
        while data := _read(source):
            kept.append((from_client, data))
            target.sendall(data)
        try:
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return


def write_recording(folder: Path, name: str, chunks: list[tuple[bool, bytes]]) -> None:
    """Write a connection's bytes in each direction, and the order in which they came."""
    for direction, from_client in (("to-broker", True), ("to-client", False)):
        data = b"".join(chunk for whose, chunk in chunks if whose is from_client)
        (folder / f"{name}-{direction}.bin").write_bytes(data)
    runs = [
        (whose, sum(len(chunk) for _, chunk in run)) for whose, run in itertools.groupby(chunks, lambda each: each[0])
    ]
    lines = [f"{'>' if from_client else '<'} {size}\n" for from_client, size in runs]
    (folder / f"{name}.order").write_text("".join(lines), encoding="ascii")


def _read(source: socket.socket) -> bytes:
    try:
        return source.recv(_READ)
    except OSError:
        return b""
