"""A wire with TLS carries the same as a plain one, however it is cut, and returns unread data."""

from __future__ import annotations

import errno
import random
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from itertools import count
from select import EPOLLIN

import pytest
from certificates import HOST, Certificates

from proxy.net.reactor import ROUND_NS
from proxy.net.sockets import ReadAhead, Wire
from proxy.net.tls import BrokerTls, ClientTls, TlsError, TlsWire, name_in

Versions = pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("server", HOST)
    made.issue("client", "other@example.org", common_name="orders-service")
    made.issue("expired", common_name="late-service", days=-1)
    return made


class Pair:
    """A wire with TLS, and its other end as a socket for Python's own TLS."""

    def __init__(self, wire: TlsWire, far: ssl.SSLSocket) -> None:
        self.wire = wire
        self.far = far
        self.steps = iter(wire.handshake, 0)

    def shake_hands(self) -> None:
        """Shake hands, step by step, until both ends are done."""
        done = {"near": False, "far": False}
        while not all(done.values()):
            if not done["far"]:
                with suppress(ssl.SSLWantReadError):
                    self.far.do_handshake()
                    done["far"] = True
            if not done["near"]:
                done["near"] = next(self.steps, None) is None

    def learn(self) -> None:
        """Let the other end see the result of the handshake."""
        self.far.do_handshake()
        self.far.recv(1)

    def receive(self, most: int) -> bytes | None:
        room = memoryview(bytearray(most))
        count = self.wire.receive_into(room)
        return None if count is None else bytes(room[:count])

    def read_far(self) -> bytes:
        """Read all that has arrived at the other end."""
        data = b""
        with suppress(ssl.SSLWantReadError):
            while chunk := self.far.recv(1 << 20):
                data += chunk
        return data


MakePair = Callable[..., Pair]


@pytest.fixture
def pair(certificates: Certificates) -> Iterator[MakePair]:
    """Make pairs: of a listener's wire and a client, or of a broker's wire and a broker."""
    with ExitStack() as opened:

        def make(
            *,
            near: ssl.SSLContext | None = None,
            far: ssl.SSLContext | None = None,
            broker: bool = False,
            version: str = "TLSv1.3",
            server_name: str = HOST,
            buffers: int = 0,
        ) -> Pair:
            with socket.create_server((HOST, 0)) as listening:
                one = opened.enter_context(socket.socket())
                if buffers:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
                one.connect(listening.getsockname())
                other, _ = listening.accept()
                opened.enter_context(other)
            other.setblocking(False)
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            near = near or (certificates.client() if broker else certificates.server())
            far = far or (certificates.server() if broker else certificates.client())
            far.minimum_version = far.maximum_version = _VERSIONS[version]
            plain = Wire(one)
            wire = BrokerTls(near).over(plain, server_name) if broker else ClientTls(near, required=True).over(plain)
            other = far.wrap_socket(
                other,
                server_side=broker,
                server_hostname=None if broker else HOST,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
            )
            opened.enter_context(other)
            return Pair(wire, other)

        yield make


def shaken(pair: Pair) -> Pair:
    pair.shake_hands()
    return pair


class TestHandshakes:
    @Versions
    @pytest.mark.parametrize("broker", [False, True])
    def test_handshake_agrees_on_a_version(self, pair: MakePair, version: str, *, broker: bool) -> None:
        made = shaken(pair(version=version, broker=broker))
        assert made.wire.version == version
        assert made.wire.certificate == ("" if not broker else HOST)

    def test_clients_certificate_has_a_name(self, pair: MakePair, certificates: Certificates) -> None:
        near, far = certificates.server(clients=ssl.CERT_REQUIRED), certificates.client("client")
        assert shaken(pair(near=near, far=far)).wire.certificate == "orders-service"

    @Versions
    @pytest.mark.parametrize(
        ("shown", "told"),
        [
            (None, "the client sent no certificate, and the listener requires one"),
            ("expired", "the peer's certificate was rejected: certificate has expired"),
        ],
    )
    def test_clients_without_a_valid_certificate_get_a_tls_alert(
        self, pair: MakePair, certificates: Certificates, version: str, shown: str | None, told: str
    ) -> None:
        near, far = certificates.server(clients=ssl.CERT_REQUIRED), certificates.client(shown)
        made = pair(near=near, far=far, version=version)
        with pytest.raises(TlsError, match=told):
            made.shake_hands()
        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
            made.learn()

    def test_brokers_certificate_is_verified_for_its_name(self, pair: MakePair) -> None:
        with pytest.raises(TlsError, match=r"not valid for 'elsewhere.example'"):
            pair(broker=True, server_name="elsewhere.example").shake_hands()

    def test_broker_of_an_unknown_authority_is_not_trusted(self, pair: MakePair) -> None:
        with pytest.raises(TlsError, match=r"self-signed certificate|unable to get local issuer certificate"):
            pair(broker=True, near=ssl.create_default_context()).shake_hands()

    def test_client_that_does_not_trust_the_certificate_is_reported_as_such(self, pair: MakePair) -> None:
        made = pair(far=ssl.create_default_context())
        with pytest.raises(ssl.SSLError):
            made.shake_hands()
        with pytest.raises(TlsError, match="the peer rejected Sluice's certificate"):
            next(made.steps)

    @pytest.mark.parametrize(
        ("said", "told"),
        [
            (b"AMQP\0\0\x09\x01", "the client did not start a TLS handshake; enable TLS in the client, or"),
            (b"GET / HTTP/1.1\r\n\r\n", "the client sent HTTP instead of a TLS handshake"),
            (b"\x16\3\1\0\5hello", "bad message|unexpected message"),
            (b"\x16\3\1\xff\xff" + bytes(40_000), "encrypted length too long|packet length too long|bad"),
        ],
    )
    def test_invalid_handshake_is_explained(self, pair: MakePair, said: bytes, told: str) -> None:
        made = pair()
        socket.socket.send(made.far, said)
        with pytest.raises(TlsError, match=told):
            list(made.steps)

    def test_disconnect_during_the_handshake_is_reported(self, pair: MakePair) -> None:
        made = pair()
        with suppress(ssl.SSLWantReadError):
            made.far.do_handshake()
        assert next(made.steps) == EPOLLIN
        made.far.shutdown(socket.SHUT_RDWR)
        with pytest.raises(TlsError, match="the peer disconnected during the handshake"):
            next(made.steps)

    def test_data_with_the_end_of_a_handshake_counts_as_unread(self, pair: MakePair) -> None:
        made = pair()
        for _ in range(2):
            with suppress(ssl.SSLWantReadError):
                made.far.do_handshake()
                made.far.send(b"at once")
                break
            next(made.steps)
        assert list(made.steps) == []
        assert made.wire.has_unread
        assert not made.wire.has_left(half_closes=False)
        assert made.receive(100) == b"at once"
        assert not made.wire.has_unread


class TestBytes:
    @Versions
    def test_bytes_arrive_unchanged_in_any_chunks(self, pair: MakePair, version: str) -> None:
        made = shaken(pair(version=version))
        drawn = random.Random(17)
        data = drawn.randbytes(700_000)
        got, at = b"", 0
        while len(got) < len(data):
            with suppress(ssl.SSLWantWriteError):
                at += made.far.send(data[at : at + drawn.choice([1, 100, 20_000, 300_000])]) if at < len(data) else 0
            room = drawn.choice([1, 7, 16 * 1024, 16 * 1024 + 1, 256 * 1024])
            got += made.receive(room) or b""
        assert got == data
        assert not made.wire.has_unread

    def test_read_data_is_unread_until_it_is_taken(self, pair: MakePair) -> None:
        made = shaken(pair())
        made.far.send(bytes(10_000))
        assert made.receive(9_999) == bytes(9_999)
        assert made.wire.has_unread
        with pytest.raises(BlockingIOError):
            socket.socket.recv(made.wire._sock, 1)
        assert made.receive(10) == b"\0"
        assert not made.wire.has_unread
        assert made.receive(10) is None

    @Versions
    def test_writes_are_left_until_the_last_byte_of_ciphertext_is_with_the_kernel(
        self, pair: MakePair, version: str
    ) -> None:
        made = shaken(pair(version=version, buffers=4096))
        drawn = random.Random(4)
        data = [drawn.randbytes(drawn.choice([0, 1, 30, 5_000, 70_000])) for _ in range(60)]
        left, got, turns = made.wire.send_now(data), b"", 0
        while left:
            assert len(b"".join(made.wire._unsent)) <= 160_000
            got += made.read_far()
            left = made.wire.send_now(left)
            turns += 1
        assert turns > 3
        assert not made.wire._unsent
        assert got + made.read_far() == b"".join(data)


class TestEnds:
    @Versions
    def test_the_end_is_reported_and_reading_continues(self, pair: MakePair, version: str) -> None:
        made = shaken(pair(version=version))
        made.wire.send_now([b"last"])
        made.wire.end()
        assert made.far.recv(100) == b"last"
        assert made.far.recv(100) == b""
        made.far.send(b"answer")
        assert made.receive(100) == b"answer"

    @Versions
    def test_data_read_before_the_end_is_not_lost(self, pair: MakePair, version: str) -> None:
        made = shaken(pair(version=version))
        data = random.Random(2).randbytes(30_000)
        made.far.send(data[:10])
        made.far.send(data[10:])
        got = made.receive(5) or b""
        made.wire.end()
        while len(got) < len(data):
            assert made.wire.has_unread or len(got) < 10_000
            got += made.receive(4_000) or b""
        assert got == data
        assert made.receive(10) is None

    def test_the_peers_end_comes_after_its_data(self, pair: MakePair) -> None:
        made = shaken(pair())
        made.far.send(b"last")
        with suppress(ssl.SSLWantReadError):
            made.far.unwrap()
        assert made.receive(100) == b"last"
        assert made.wire.has_unread
        assert made.receive(100) == b""

    def test_end_without_a_word_of_tls_is_an_end(self, pair: MakePair) -> None:
        made = shaken(pair())
        made.far.send(b"last")
        socket.socket.shutdown(made.far, socket.SHUT_WR)
        assert made.receive(100) == b"last"
        assert made.receive(100) == b""

    def test_a_reset_is_an_error_after_earlier_data(self, pair: MakePair) -> None:
        made = shaken(pair())
        made.far.send(bytes(100))
        assert made.receive(60) == bytes(60)
        made.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.far.close()
        assert made.receive(60) == bytes(40)
        with pytest.raises(OSError, match="reset") as caught:
            made.receive(60)
        assert caught.value.errno == errno.ECONNRESET

    @Versions
    def test_garbage_is_an_error_and_the_peer_gets_an_alert(self, pair: MakePair, version: str) -> None:
        made = shaken(pair(version=version))
        made.far.send(b"good")
        socket.socket.send(made.far, b"\x17\3\3\0\x20" + bytes(32))
        assert made.receive(100) == b"good"
        assert made.wire.has_unread
        with pytest.raises(TlsError, match=r"TLS: .*bad record mac"):
            made.receive(100)
        with pytest.raises(ssl.SSLError, match=r"(?i)alert bad record mac"):
            made.far.recv(1)
        with pytest.raises(TlsError):
            made.wire.send_now([b"more"])

    def test_records_that_take_long_are_read_in_turns(self, pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
        made = shaken(pair())
        data = random.Random(1).randbytes(60_000)
        assert made.far.send(data) == len(data)
        now_ns = count(step=ROUND_NS)
        monkeypatch.setattr("proxy.net.tls.perf_counter_ns", lambda: next(now_ns))
        got = made.receive(len(data)) or b""
        # Of one piece. The rest is not lost.
        assert 0 < len(got) < 20_000
        while len(got) < len(data):
            assert not made.wire.has_left(half_closes=False)
            got += made.receive(len(data)) or b""
        assert got == data

    def test_unread_answers_of_tls_do_not_pile_up(self, pair: MakePair) -> None:
        made = shaken(pair(buffers=4096))

        def have_it_answer(times: int) -> None:
            for _ in range(times):
                made.wire._outgoing.write(bytes(100_000))
                made.far.send(b"x")
                made.receive(10)

        with pytest.raises(TlsError, match="without reading the replies"):
            have_it_answer(20)


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        ({}, ""),
        ({"subject": ((("countryName", "CH"),), (("commonName", "a"),), (("commonName", "b"),))}, "b"),
        (
            {"subject": ((("countryName", "CH"),),), "subjectAltName": (("DNS", "x.example"), ("URI", "spiffe://y"))},
            "x.example",
        ),
        ({"subjectAltName": (("URI", "spiffe://mesh/ns/orders"),)}, "spiffe://mesh/ns/orders"),
        ({"subject": ((("commonName", "a\x1b[2J\n"),),)}, "a?[2J?"),
        ({"subject": ((("commonName", "n" * 300),),)}, "n" * 255),
        (
            {"subject": ((("organizationName", "Shop"),), (("serialNumber", "7"),)), "subjectAltName": ()},
            "organizationName=Shop,serialNumber=7",
        ),
        (
            {"subject": ((("commonName", ""),),), "subjectAltName": (("othername", "<unsupported>"),)},
            "commonName=",
        ),
        ({"subject": (), "serialNumber": "01"}, "sha256:" + sha256(b"the certificate").hexdigest()),
    ],
)
def test_name_is_the_first_that_a_certificate_has(certificate: dict[str, object], name: str) -> None:
    assert name_in(certificate, b"the certificate" if certificate else b"") == name


def test_data_read_ahead_is_decrypted_in_order(pair: MakePair) -> None:
    both = pair()
    both.shake_hands()
    sent = bytes(range(256)) * 1000
    both.far.setblocking(False)
    size = both.far.send(sent)
    of_all = ReadAhead()
    both.wire.read_ahead(of_all)
    assert of_all.taken_bytes > size
    assert both.wire.has_unread
    received = b""
    while (chunk := both.receive(1000)) is not None:
        received += chunk
        assert both.wire.has_unread or len(received) == size
    assert received == sent[:size]
    assert of_all.taken_bytes == 0
