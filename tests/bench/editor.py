"""Who edits limits while `edits.py` measures: a process of its own, which prints what became of its edits as JSON.

Each of its keep-alive connections sends the next request when the schedule says so, or with `--rate 0` as soon as the
answer to the last one is in. An edit's latency counts from the moment at which its request was due.
"""

import argparse
import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

TOPICS_PER_CONNECTION = 20
RECEIVE_BYTES = 256 * 1024


@dataclass
class Done:
    """What became of the edits of one connection.

    Attributes:
        edits: how many were acknowledged.
        failed: requests whose answer was no success.
        latencies_ms: of each request.
        groups: the moments that the changes bear; those that were made durable together share one.
    """

    edits: int = 0
    failed: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)


class Editor:
    """One connection.

    Args:
        port: of the admin address.
        number: of the connection; each edits topics of its own.
        batch: edits in a request; 0 is a request of the single kind.
    """

    def __init__(self, port: int, number: int, batch: int) -> None:
        self.done = Done()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number, self._batch = number, batch
        self._next = count(1)

    def run(self, requests_per_s: float, begin_s: float, until_s: float) -> None:
        """Edit until it is time; with a rate of 0 as fast as it goes."""
        due_s = begin_s
        with self._socket:
            while True:
                now_s = time.monotonic()
                if not requests_per_s:
                    due_s = now_s
                if due_s >= until_s or now_s >= until_s:
                    return
                if due_s > now_s:
                    time.sleep(due_s - now_s)
                self._request()
                self.done.latencies_ms.append((time.monotonic() - due_s) * 1000)
                if requests_per_s:
                    due_s += 1 / requests_per_s

    def _request(self) -> None:
        if self._batch:
            edits = [
                {
                    "type": "set_limit",
                    "kind": "topic",
                    "name": self._topic(number),
                    "limit": {"rate": 1_000_000 + number},
                }
                for number in (next(self._next) for _ in range(self._batch))
            ]
            changes = self._ask("POST", "limits:batch", {"edits": edits, "reason": "bench"}).get("changes", [])
        else:
            number = next(self._next)
            path = f"limits/topic/{self._topic(number)}"
            change = self._ask("PUT", path, {"rate": 1_000_000 + number, "reason": "bench"})
            changes = [change] if change else []
        self.done.edits += len(changes)
        self.done.groups |= {change["at"] for change in changes}

    def _topic(self, number: int) -> str:
        return f"edited-{self._number}-{number % TOPICS_PER_CONNECTION}"

    def _ask(self, method: str, path: str, body: object) -> dict[str, Any]:
        """Return the answer; nothing of one that is no success."""
        data = json.dumps(body).encode()
        head = f"{method} /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._received()
        head_bytes, _, rest = answer.partition(b"\r\n\r\n")
        length = int(head_bytes.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(rest) < length:
            rest += self._received()
        if not head_bytes.startswith(b"HTTP/1.1 200"):
            self.done.failed += 1
            return {}
        found: dict[str, Any] = json.loads(rest)
        return found

    def _received(self) -> bytes:
        if not (received := self._socket.recv(RECEIVE_BYTES)):
            raise ConnectionError("the admin address closed the connection")
        return received


def main() -> int:
    """Edit, and print what became of it."""
    parser = argparse.ArgumentParser(prog="editor.py", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="of the admin address")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="requests per second; 0 is as many as it goes")
    parser.add_argument("--batch", type=int, required=True, help="edits in a request; 0 is PUT of one limit")
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    editors = [Editor(given.port, number, given.batch) for number in range(given.connections)]
    begin_s = time.monotonic()
    each_per_s = given.rate / given.connections
    threads = []
    for number, editor in enumerate(editors):
        # Evenly, not all at the same moments.
        first_s = begin_s + (number / given.rate if given.rate else 0.0)
        threads.append(threading.Thread(target=editor.run, args=(each_per_s, first_s, begin_s + given.seconds)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Done()
    for editor in editors:
        total.edits += editor.done.edits
        total.failed += editor.done.failed
        total.latencies_ms += editor.done.latencies_ms
        total.groups |= editor.done.groups
    print(json.dumps({**asdict(total), "groups": len(total.groups), "seconds": time.monotonic() - begin_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
