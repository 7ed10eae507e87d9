"""A TCP relay in trio that looks at nothing: what Sluice would cost if deciding were free.

Run it as ``relay.py HOST:PORT HOST:PORT``: where it listens, and the broker behind it. It has a task per direction, one
receive and one send at a time, on bare trio sockets. Its buffers are as large as Sluice's largest.
"""

import socket
import sys

import trio

BUFFER_BYTES = 1024 * 1024


async def pump(source: trio.socket.SocketType, sink: trio.socket.SocketType) -> None:
    """Carry one direction to its end and pass the end on."""
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    while received := await source.recv_into(buffer):
        sent = await sink.send(view[:received])
        while sent < received:
            sent += await sink.send(view[sent:received])
    sink.shutdown(socket.SHUT_WR)


async def serve(client: trio.socket.SocketType, broker_address: tuple[str, int]) -> None:
    """Relay one connection; a socket error on either side ends both."""
    with client, trio.socket.socket() as broker:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await broker.connect(broker_address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, client, broker)
                nursery.start_soon(pump, broker, client)
        except* OSError as errors:
            print(f"relay: a connection broke: {errors.exceptions[0]}", file=sys.stderr)


async def relay(listen_address: tuple[str, int], broker_address: tuple[str, int]) -> None:
    """Accept until cancelled."""
    with trio.socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await listener.bind(listen_address)
        listener.listen(1024)
        async with trio.open_nursery() as nursery:
            while True:
                client, _ = await listener.accept()
                nursery.start_soon(serve, client, broker_address)


def address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    trio.run(relay, address(sys.argv[1]), address(sys.argv[2]))
