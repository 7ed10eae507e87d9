"""A stream that speaks TLS and can end its own direction, which trio's cannot."""

import ssl
from contextlib import suppress

import trio

_MAX_BYTES = 64 * 1024


class TlsStream(trio.abc.HalfCloseableStream):
    """TLS over a stream; the handshake is part of the first call.

    Args:
        stream: what it goes over.
        context: what it speaks TLS by.
        server_name: of the server, if that is what the other end is.
    """

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._shaken = False
        self._aside = b""
        self._shaking = trio.Lock()
        self._sending = trio.Lock()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it."""
        await self._shake_hands()
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for the stream."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive some of what comes; nothing at the end, which TLS has to say."""
        await self._shake_hands()
        if self._aside:
            aside, self._aside = self._aside, b""
            return aside
        while True:
            try:
                return self._tls.read(max_bytes or _MAX_BYTES)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLWantReadError:
                await self._hear()

    async def send_eof(self) -> None:
        """End this direction."""
        await self._shake_hands()
        # OpenSSL would drop what it finds as it looks for the other end's end.
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while some := self._tls.read(_MAX_BYTES):
                self._aside += some
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        await self._flush()
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def _shake_hands(self) -> None:
        async with self._shaking:
            while not self._shaken:
                try:
                    self._tls.do_handshake()
                    self._shaken = True
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._hear()
            await self._flush()

    async def _hear(self) -> None:
        heard = await self._stream.receive_some()
        if heard:
            self._incoming.write(heard)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            if self._outgoing.pending:
                await self._stream.send_all(self._outgoing.read())
