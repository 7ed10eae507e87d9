"""TLS cut, changed and invented: an error of the peer or nothing at all, never a byte that it has not sent."""

import socket
import ssl
from contextlib import ExitStack, suppress
from random import Random

import pytest
from certificates import HOST, Certificates

from proxy.net.sockets import Wire
from proxy.net.tls import ClientTls, TlsWire

# A wire's and OpenSSL's buffers of received data: a few records.
MAX_HELD_BYTES = 80_000


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("server", HOST)
    made.issue("client", common_name="orders-service")
    return made


class Ends:
    """The wire of a listener, its peer's socket, and a client that supplies valid data."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, opened: ExitStack) -> None:
        with socket.create_server((HOST, 0)) as listening:
            self.far = opened.enter_context(socket.create_connection(listening.getsockname()))
            near, _ = listening.accept()
        self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.far.setblocking(False)
        self.wire = ClientTls(server, required=True).over(Wire(near))
        opened.callback(self.wire.close)
        self._heard, self._said = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self._heard, self._said, server_hostname=HOST)

    def next_words(self) -> bytes:
        """Return the client's next data of the handshake."""
        with suppress(BlockingIOError):
            self._heard.write(self.far.recv(1 << 20))
        with suppress(ssl.SSLWantReadError):
            self.client.do_handshake()
        return self._said.read()

    def encrypted(self, data: bytes) -> bytes:
        """Return the client's encryption of data."""
        self.client.write(data)
        return self._said.read()

    def say(self, data: bytes) -> None:
        with suppress(OSError):
            self.far.sendall(data)


def changed(random: Random, data: bytes) -> bytes:
    """Return data with some of it missing, doubled, or changed."""
    mutable = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(mutable) + 1)
        match random.randrange(4):
            case 0:
                mutable[at : at + 1] = random.randbytes(1)
            case 1:
                del mutable[at : at + random.randrange(1, 40)]
            case 2:
                mutable[at:at] = random.randbytes(random.randrange(1, 40))
            case _:
                mutable[at:at] = mutable[:at]
    return bytes(mutable)


@pytest.mark.parametrize("seed", range(10))
def test_mutated_handshake_fails_or_waits(seed: int, factor: int, certificates: Certificates) -> None:
    random = Random(seed)
    server = certificates.server(clients=random.choice(list(ssl.VerifyMode)))
    client = certificates.client(random.choice((None, "client")))
    client.maximum_version = random.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
    for _ in range(20 * factor):
        with ExitStack() as opened:
            ends = Ends(server, client, opened)
            done = False
            with suppress(OSError, ssl.SSLError):
                for _ in range(4):
                    words = ends.next_words()
                    if random.random() < 0.5:
                        words = changed(random, words)
                    if random.random() < 0.1:
                        words = random.randbytes(random.randrange(1, 60_000))
                    for part in _cut(random, words):
                        ends.say(part)
                        done = not ends.wire.handshake()
                        assert ends.wire._incoming.pending < MAX_HELD_BYTES
                        if done:
                            break
            # Changed data never passes for another client.
            assert not done or ends.wire.certificate in {"", "orders-service"}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("seed", range(10))
def test_mutated_records_never_deliver_foreign_bytes(
    seed: int, version: ssl.TLSVersion, factor: int, certificates: Certificates
) -> None:
    random = Random(seed)
    server, client = certificates.server(), certificates.client()
    client.maximum_version = version
    for _ in range(5 * factor):
        with ExitStack() as opened:
            ends = Ends(server, client, opened)
            while True:
                ends.say(ends.next_words())
                if not ends.wire.handshake():
                    break
            ends.next_words()
            sent, got = b"", b""
            with suppress(OSError):
                for _ in range(20):
                    data = random.randbytes(random.randrange(1, 20_000))
                    records = ends.encrypted(data)
                    if random.random() < 0.2:
                        records = changed(random, records)
                    sent += data
                    for part in _cut(random, records):
                        ends.say(part)
                        got += _received(ends.wire, random)
                        assert ends.wire._incoming.pending < MAX_HELD_BYTES
            assert sent.startswith(got)


def _cut(random: Random, data: bytes) -> list[bytes]:
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(3)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def _received(wire: TlsWire, random: Random) -> bytes:
    room = memoryview(bytearray(random.choice((1, 100, 20_000, 100_000))))
    return b"".join(bytes(room[:count]) for count in iter(lambda: wire.receive_into(room) or 0, 0))
