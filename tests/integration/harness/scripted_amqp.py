"""A minimal AMQP 0.9.1 broker and clients, for tens of thousands of channels, too many for a real broker here."""

import asyncio
import signal
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Final

from harness.amqp import HEADER_FRAME, PROTOCOL_HEADER, method, publish

_TIMEOUT_S: Final = 240.0
_OPENING_AT_ONCE: Final = 100
_HEARTBEAT_OFF: Final = 0
_LAYOUT: Final = {"channel_max": 2047, "frame_max": 131_072, "heartbeat": _HEARTBEAT_OFF}
_START: Final = method(
    0, "connection.start", version_major=0, version_minor=9, mechanisms="PLAIN AMQPLAIN", locales="en_US"
)
_TUNE: Final = method(0, "connection.tune", **_LAYOUT)
_CLASS_AND_METHOD: Final = {
    (10, 31): None,
    (10, 11): "connection.tune",
    (10, 40): "connection.open-ok",
    (10, 50): "connection.close-ok",
    (20, 10): "channel.open-ok",
    (20, 40): "channel.close-ok",
    (85, 10): "confirm.select-ok",
}


class _Confirming(asyncio.Protocol):
    published = 0

    def __init__(self) -> None:
        self._data = b""
        self._begun = False
        self._numbers: dict[int, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._begun:
            if len(self._data) < len(PROTOCOL_HEADER):
                return
            self._begun = True
            self._data = self._data[len(PROTOCOL_HEADER) :]
            self._transport.write(_START)
        at, answers = 0, []
        while len(self._data) - at >= 8:
            kind, channel, size = struct.unpack_from(">BHI", self._data, at)
            if len(self._data) < at + 8 + size:
                break
            if kind == HEADER_FRAME:
                # Bodies are empty, so the message is complete.
                type(self).published += 1
                self._numbers[channel] = number = self._numbers.get(channel, 0) + 1
                answers.append(method(channel, "basic.ack", delivery_tag=number))
            elif kind == 1:
                name = _CLASS_AND_METHOD.get(struct.unpack_from(">HH", self._data, at + 7))
                if name is not None:
                    answers.append(_TUNE if name == "connection.tune" else method(channel, name))
            at += 8 + size
        self._data = self._data[at:]
        self._transport.write(b"".join(answers))


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Confirming, "127.0.0.1", 0, backlog=1024)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await ended.wait()
    print(f"published {_Confirming.published}", flush=True)


class ManyClients:
    """Connections with confirm channels, all in one thread."""

    def __init__(self, address: str, connections: int, channels: int) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._wanted = connections
        self._channels = range(1, channels + 1)
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self) -> None:
        some = asyncio.Semaphore(_OPENING_AT_ONCE)

        async def one() -> None:
            async with some:
                self._open.append(await self._connect())

        async with asyncio.timeout(_TIMEOUT_S):
            await asyncio.gather(*(one() for _ in range(self._wanted)))

    async def publish(self, queue: str) -> int:
        """Publish once on each channel and return the number of acks. Other answers are errors."""
        data = b"".join(publish(channel, queue) for channel in self._channels)
        for _, writer in self._open:
            writer.write(data)
        async with asyncio.timeout(_TIMEOUT_S):
            acked = [await self._acked(reader) for reader, _ in self._open]
        return sum(acked)

    async def close(self) -> None:
        """Close the sockets without a close method."""
        for _, writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for _, writer in self._open), return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(PROTOCOL_HEADER)
        await self._expect(reader, [(10, 10)])
        login = method(0, "connection.start-ok", mechanism="PLAIN", response="\0guest\0guest", locale="en_US")
        writer.write(login)
        await self._expect(reader, [(10, 30)])
        writer.write(method(0, "connection.tune-ok", **_LAYOUT) + method(0, "connection.open", virtual_host="/"))
        await self._expect(reader, [(10, 41)])
        for channel in self._channels:
            writer.write(method(channel, "channel.open") + method(channel, "confirm.select"))
        await self._expect(reader, [(20, 11), (85, 11)] * len(self._channels))
        return reader, writer

    async def _acked(self, reader: asyncio.StreamReader) -> int:
        acked: set[int] = set()
        while len(acked) < len(self._channels):
            channel, numbers, _ = await _read(reader)
            assert numbers == (60, 80), numbers
            assert channel not in acked
            acked.add(channel)
        return len(acked)

    async def _expect(self, reader: asyncio.StreamReader, wanted: Iterable[tuple[int, int]]) -> None:
        """Read until all wanted answers have arrived, in any order of channels."""
        left = Counter(wanted)
        while left:
            _, came, payload = await _read(reader)
            if came not in left:
                raise OSError(f"one of {set(left)} was wanted, and {came} came: {payload!r}")
            left -= Counter([came])


async def _read(reader: asyncio.StreamReader) -> tuple[int, tuple[int, int], bytes]:
    _, channel, size = struct.unpack(">BHI", await reader.readexactly(7))
    payload = (await reader.readexactly(size + 1))[:-1]
    class_id, method_id = struct.unpack_from(">HH", payload)
    return channel, (class_id, method_id), payload


if __name__ == "__main__":
    asyncio.run(_serve())
