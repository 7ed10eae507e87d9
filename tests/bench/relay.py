"""A TCP relay in trio that does not parse data: the cost of Sluice without decisions."""

import contextlib
import select
import socket
import sys
from select import EPOLLIN, EPOLLOUT
from time import perf_counter_ns

import trio

BUFFER_BYTES = 2 * 1024 * 1024
MAX_READY = 128
MAX_ACCEPTED = 64
ROUND_NS = 1_000_000
"""How long sockets are served before all other tasks have their turn."""
FAILED = select.EPOLLERR | select.EPOLLHUP


class End:
    other: "End"

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.fd = sock.fileno()
        self.events = 0
        self.rest: memoryview | None = None
        self.buffer: memoryview | None = None
        self.over = False


class Relay:
    def __init__(self, listener: socket.socket, broker_address: tuple[str, int]) -> None:
        self.listener = listener
        self.broker_address = broker_address
        self.ends: dict[int, End] = {}
        self.free: list[memoryview] = []
        self.epoll = select.epoll()
        self.epoll.register(listener, EPOLLIN)

    async def run(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.epoll.fileno())
            ends_ns = perf_counter_ns() + ROUND_NS
            for fd, events in self.epoll.poll(0, MAX_READY):
                if fd == self.listener.fileno():
                    self.accept()
                elif end := self.ends.get(fd):
                    self.serve(end, events)
                if perf_counter_ns() >= ends_ns:
                    await trio.lowlevel.checkpoint()
                    ends_ns = perf_counter_ns() + ROUND_NS

    def accept(self) -> None:
        """Accept waiting connections, and begin to connect each to the broker."""
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            for _ in range(MAX_ACCEPTED):
                client, broker = End(self.listener.accept()[0]), End(socket.socket())
                client.other, broker.other = broker, client
                self.ends |= {client.fd: client, broker.fd: broker}
                # An error appears when it cannot be written to.
                broker.sock.connect_ex(self.broker_address)
                broker.rest = memoryview(b"")
                self.watch(broker, EPOLLIN | EPOLLOUT)

    def serve(self, end: End, events: int) -> None:
        """Write and read one ready socket. An error ends its connection."""
        try:
            if events & (EPOLLOUT | FAILED) and end.rest is not None:
                self.write(end)
            if events & (EPOLLIN | FAILED) and end.events & EPOLLIN:
                self.read(end)
        except BlockingIOError:
            pass
        except OSError as error:
            print(f"relay: a connection broke: {error}", file=sys.stderr)
            self.close(end)

    def read(self, end: End) -> None:
        """Read once and write to the other side, as much as possible."""
        buffer = self.free.pop() if self.free else memoryview(bytearray(BUFFER_BYTES))
        try:
            count = end.sock.recv_into(buffer)
        except OSError:
            self.free.append(buffer)
            raise
        if count:
            end.other.rest, end.other.buffer = buffer[:count], buffer
            with contextlib.suppress(BlockingIOError):
                self.write(end.other)
            if end.other.rest is not None:
                self.watch(end.other, end.other.events | EPOLLOUT)
                self.watch(end, end.events & ~EPOLLIN)
            return
        self.free.append(buffer)
        end.over = True
        if end.other.over:
            self.close(end)
        else:
            self.watch(end, end.events & ~EPOLLIN)
            end.other.sock.shutdown(socket.SHUT_WR)

    def write(self, end: End) -> None:
        """Write a socket's pending data. Once the kernel has all, the other side is read again."""
        assert end.rest is not None
        end.rest = end.rest[end.sock.send(end.rest) :]
        if end.rest:
            return
        if end.buffer is not None:
            self.free.append(end.buffer)
        end.rest = end.buffer = None
        self.watch(end, end.events & ~EPOLLOUT)
        self.watch(end.other, end.other.events | EPOLLIN)

    def watch(self, end: End, events: int) -> None:
        """Watch a socket for these events, or not at all for errors alone."""
        if events == end.events:
            return
        if not events:
            self.epoll.unregister(end.fd)
        elif end.events:
            self.epoll.modify(end.fd, events)
        else:
            self.epoll.register(end.fd, events)
        end.events = events

    def close(self, end: End) -> None:
        for each in (end, end.other):
            del self.ends[each.fd]
            # The epoll forgets closed sockets.
            each.sock.close()


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    with socket.create_server(address(sys.argv[1]), backlog=4096) as listening:
        listening.setblocking(False)
        trio.run(Relay(listening, address(sys.argv[2])).run)
