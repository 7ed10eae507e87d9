"""A relay that can stop reading, like a stalled peer or network."""

import contextlib
import socket
import threading
from typing import Final, Self

_CHUNK_BYTES: Final = 262_144


class Gate:
    """Listens on its own port and relays to an address, each way in a thread, until it is closed."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """Stop reading from the clients. The other direction continues."""
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.open()
        self._listening.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    broker = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._sockets += client, broker
                for source, target, waits in ((client, broker, True), (broker, client, False)):
                    threading.Thread(target=self._relay, args=(source, target, waits), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, waits: bool) -> None:  # noqa: FBT001 - of a thread
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if waits:
                    self._open.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
