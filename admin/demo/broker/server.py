"""The embedded broker on trio: listeners, one reader and one writer for each connection, and the end of long polls.

The embedded broker is not on the data path, so it opens its own sockets, with trio's streams. What is answered is
decided in ``broker``, which does no I/O.
"""

from typing import Final

import trio

from admin.config.addresses import Endpoint
from admin.demo.broker.broker import Broker
from admin.demo.broker.channel import Channel
from proxy.protocols.rocketmq.wire.codes import RemoteProtocolError

_HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 64 << 10
#: So much longer than it asked for a client may wait in vain for messages.
_LONG_POLL_TICK_S: Final = 0.1


class Loopback:
    """A running embedded broker; ``serve_broker`` makes it.

    Attributes:
        broker: everything but the sockets.
        broker_address: ``address:port`` where the broker listens.
        name_server_address: ``address:port`` where the name server listens.
    """

    def __init__(self, broker_address: str, name_server_address: str) -> None:
        self.broker = Broker()
        self.broker_address = broker_address
        self.name_server_address = name_server_address
        self.broker.advertise(broker_address)

    def stored(self, topic: str) -> int:
        """Return how many messages a topic has been given so far."""
        return self.broker.stored_by_topic().get(topic, 0)

    async def serve_stream(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends."""
        try:
            channel = Channel(*stream.socket.getpeername())
        except OSError:
            # Gone between being accepted and now.
            return
        writing = trio.Lock()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write_in_between, channel, stream, writing)
                data = bytearray()
                try:
                    async for chunk in stream:
                        data += chunk
                        self.broker.receive(channel, data, trio.current_time())
                        # Nothing more is read from a client that does not read its answers.
                        await _flush(channel, stream, writing)
                except RemoteProtocolError:
                    # As with a real broker, such a connection ends; what was answered before is still written.
                    await _flush(channel, stream, writing)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.broker.disconnect(channel)


async def _write_in_between(channel: Channel, stream: trio.SocketStream, writing: trio.Lock) -> None:
    """Write what other connections or the time have caused."""
    while True:
        await channel.wake.wait()
        channel.wake = trio.Event()
        await _flush(channel, stream, writing)


async def _flush(channel: Channel, stream: trio.SocketStream, writing: trio.Lock) -> None:
    async with writing:
        if waiting := channel.take():
            await stream.send_all(waiting)


async def serve_broker(
    broker_port: int = 0,
    name_server_port: int = 0,
    *,
    task_status: trio.TaskStatus[Loopback] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the embedded broker and name server on 127.0.0.1 until cancelled; port 0 takes a free one.

    Args:
        broker_port: TCP port of the broker.
        name_server_port: TCP port of the name server.
        task_status: started with the running broker once both servers listen.

    Raises:
        OSError: a port is taken.
    """
    listeners = [
        *await trio.open_tcp_listeners(broker_port, host=_HOST),
        *await trio.open_tcp_listeners(name_server_port, host=_HOST),
    ]
    loopback = Loopback(*(str(Endpoint(*listener.socket.getsockname())) for listener in listeners))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, loopback.serve_stream, listeners)
        task_status.started(loopback)
        while True:
            await trio.sleep(_LONG_POLL_TICK_S)
            loopback.broker.end_long_polls(trio.current_time())
