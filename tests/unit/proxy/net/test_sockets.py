from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from proxy.net import sockets
from proxy.net.reactor import Reactor
from proxy.net.sockets import Address, Inherited, ListeningSocket, ReadAhead, Wire, format_address

HOST = "127.0.0.1"


class Resolver(trio.abc.HostnameResolver):
    """Resolves scripted names. Others are an error, as with the system's resolver."""

    def __init__(self, names: dict[str, list[tuple[str, int]]]) -> None:
        self.names = names

    async def getaddrinfo(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        key = host.decode() if isinstance(host, bytes) else host
        if key not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, at or port))
            for address, at in self.names[key]
        ]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "never asked")


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire and, as a plain socket, its other end, with small buffers."""
    with socket.create_server((HOST, 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        near.connect(listening.getsockname())
        far, _ = listening.accept()
    wire = Wire(near)
    far.setblocking(False)
    yield wire, far
    wire._sock.close()
    far.close()


@pytest.fixture
async def listening() -> AsyncIterator[ListeningSocket]:
    (bound,) = await listen(HOST, 0, 16)
    yield bound
    bound.close()


def nobody(*_: object) -> None:
    """Do nothing, as no reactor runs."""


async def listen(host: str, port: int, backlog: int, *, v6only: bool = False) -> list[ListeningSocket]:
    make = partial(ListeningSocket, Reactor(), nobody, nobody, backlog)
    bound = await sockets.bind(host, port, make, v6only=v6only)
    for each in bound:
        each.start()
    return bound


def accept(listening: ListeningSocket) -> tuple[Wire, Address]:
    """Accept a waiting connection."""
    accepted = listening.accept()
    assert accepted is not None
    return accepted


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with suppress(BlockingIOError):
        while chunk := sock.recv(1 << 20):
            data += chunk
    return data


@pytest.mark.parametrize(
    ("address", "text"),
    [(("127.0.0.1", 10911), "127.0.0.1:10911"), (("::1", 80), "[::1]:80"), (("::1", 80, 0, 0), "[::1]:80")],
)
def test_addresses_are_written_as_people_write_them(address: Any, text: str) -> None:
    assert format_address(address) == text


class TestWire:
    async def test_receives_available_data(self, pair: tuple[Wire, socket.socket]) -> None:
        wire, far = pair
        buffer = memoryview(bytearray(10))
        assert wire.receive_into(buffer) is None
        far.send(b"hello")
        await trio.lowlevel.wait_readable(wire.fileno())
        assert wire.receive_into(buffer) == 5
        assert bytes(buffer[:5]) == b"hello"
        far.shutdown(socket.SHUT_WR)
        await trio.lowlevel.wait_readable(wire.fileno())
        assert wire.receive_into(buffer) == 0

    @pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025, 5000])
    async def test_all_slices_arrive_in_order(self, pair: tuple[Wire, socket.socket], count: int) -> None:
        wire, far = pair
        slices: Sequence[Any] = [b"%05d" % number for number in range(count)]
        expected = b"".join(slices)
        received = b""
        while slices:
            slices = wire.send_now(slices)
            received += read_all(far)
        while len(received) < len(expected):
            received += read_all(far)
        assert received == expected

    async def test_unwritten_bytes_are_returned(self, pair: tuple[Wire, socket.socket]) -> None:
        """To the byte, wherever in a slice the kernel stopped."""
        wire, far = pair
        data = bytes(range(256)) * 4096
        slices: Sequence[Any] = [memoryview(data)[at : at + 1000] for at in range(0, len(data), 1000)]
        received, stops = b"", 0
        while slices:
            slices = wire.send_now(slices)
            stops += bool(slices)
            await wait_all_tasks_blocked()
            received += read_all(far)
        while len(received) < len(data):
            received += read_all(far)
        assert received == data
        assert stops > 1

    async def test_full_socket_takes_nothing_and_loses_nothing(self, pair: tuple[Wire, socket.socket]) -> None:
        wire, _ = pair
        while not wire.send_now([b"x" * 4096]):
            pass
        rest = [b"one", b"two"]
        assert wire.send_now(rest) == rest
        assert wire.send_now([b"one"]) == [b"one"]

    async def test_becomes_writable_when_the_peer_has_read(
        self, pair: tuple[Wire, socket.socket], nursery: trio.Nursery
    ) -> None:
        wire, far = pair
        while not wire.send_now([b"x" * 65536]):
            await wait_all_tasks_blocked()
        writable = trio.Event()

        async def wait() -> None:
            await trio.lowlevel.wait_writable(wire.fileno())
            writable.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not writable.is_set()
        while not writable.is_set():
            read_all(far)
            await wait_all_tasks_blocked()

    def test_the_end_resumes_reading(self, pair: tuple[Wire, socket.socket]) -> None:
        wire, far = pair
        wire.end()
        assert far.recv(10) == b""
        far.send(b"still")
        buffer = memoryview(bytearray(10))
        assert wire.receive_into(buffer) == 5


class TestReadAhead:
    async def test_read_ahead_bytes_come_first(self, pair: tuple[Wire, socket.socket]) -> None:
        wire, far = pair
        of_all = ReadAhead()
        far.send(b"abc")
        assert wire.read_ahead(of_all) == 3
        assert wire.read_ahead(of_all) == 0
        far.send(b"de")
        room = memoryview(bytearray(2))
        received = b""
        for count in (2, 1, 2):
            assert wire.unread_bytes() == 5 - len(received)
            assert wire.receive_into(room) == count
            received += room[:count]
        assert received == b"abcde"
        assert (of_all.taken_bytes, wire.receive_into(room)) == (0, None)

    async def test_the_end_is_seen_behind_all_that_the_peer_has_left(self, pair: tuple[Wire, socket.socket]) -> None:
        wire, far = pair
        of_all = ReadAhead()
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += far.send(bytes(4096))
        far.close()
        while wire.read_ahead(of_all) is not None:
            await trio.lowlevel.checkpoint()
        assert wire.ended
        assert wire.unread_bytes() == of_all.taken_bytes == sent
        room = memoryview(bytearray(sent))
        assert [wire.receive_into(room), wire.receive_into(room)] == [sent, 0]

    async def test_a_reset_keeps_earlier_data(self, pair: tuple[Wire, socket.socket]) -> None:
        wire, far = pair
        of_all = ReadAhead()
        far.send(b"abc")
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        with pytest.raises(ConnectionResetError):
            wire.read_ahead(of_all)
        assert wire.read_ahead(of_all) is None
        room = memoryview(bytearray(8))
        assert wire.receive_into(room) == 3

    async def test_closing_gives_back_undelivered_permits(self, pair: tuple[Wire, socket.socket]) -> None:
        wire, far = pair
        of_all = ReadAhead()
        far.send(b"abc")
        wire.read_ahead(of_all)
        wire.close()
        assert of_all.taken_bytes == 0


class TestConnect:
    async def test_reaches_a_listening_socket(self, listening: ListeningSocket) -> None:
        wire = await sockets.connect(*listening.address)
        accepted, peer = accept(listening)
        assert peer == wire._sock.getsockname()
        wire.close()
        accepted.close()

    async def test_a_refused_connection_gets_a_text(self, reserved_address: tuple[str, int]) -> None:
        with pytest.raises(ConnectionRefusedError) as caught:
            await sockets.connect(*reserved_address)
        assert caught.value.strerror == "Connection refused"

    async def test_addresses_of_a_name_are_tried_in_turn(
        self, listening: ListeningSocket, reserved_address: tuple[str, int]
    ) -> None:
        trio.socket.set_custom_hostname_resolver(Resolver({"broker.test": [reserved_address, listening.address]}))
        wire = await sockets.connect("broker.test", 1)
        assert wire._sock.getpeername() == listening.address
        wire.close()

    async def test_name_that_does_not_resolve_is_an_oserror(self) -> None:
        trio.socket.set_custom_hostname_resolver(Resolver({}))
        with pytest.raises(socket.gaierror, match="Name or service not known"):
            await sockets.connect("nowhere.test", 1)

    @pytest.mark.parametrize("host", ["a..b", "x" * 70])
    async def test_invalid_host_name_is_an_oserror(self, host: str) -> None:
        with pytest.raises(socket.gaierror, match=f"'{host}' is not a valid host name"):
            await sockets.connect(host, 1)
        with pytest.raises(socket.gaierror, match=f"'{host}' is not a valid host name"):
            await listen(host, 0, 1)

    async def test_lack_of_room_here_is_a_separate_reason(
        self, listening: ListeningSocket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: Any) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(sockets.socket, "socket", fail)
        with pytest.raises(sockets.NoRoomError, match="Too many open files"):
            await sockets.connect(*listening.address)


class TestListen:
    async def test_taken_address_is_an_oserror(self, listening: ListeningSocket) -> None:
        with pytest.raises(OSError, match="in use"):
            await listen(*listening.address, 1)

    async def test_all_addresses_of_a_name_or_none(self, reserve: Callable[..., int]) -> None:
        port = reserve("127.0.0.2", HOST)
        (taken,) = await listen(HOST, port, 1)
        trio.socket.set_custom_hostname_resolver(Resolver({"both.test": [("127.0.0.2", port), (HOST, port)]}))
        with pytest.raises(OSError, match="in use"):
            await listen("both.test", port, 1)
        # The first of the two was closed again.
        (again,) = await listen("127.0.0.2", port, 1)
        for closing in (again, taken):
            closing.close()

    async def test_address_is_free_again_after_close(self, reserved_address: tuple[str, int]) -> None:
        (listening,) = await listen(*reserved_address, 1)
        client = await sockets.connect(*listening.address)
        accepted, _ = accept(listening)
        listening.close()
        (again,) = await listen(*listening.address, 1)
        for closing in (again, accepted, client):
            closing.close()

    async def test_ipv6_is_served_beside_ipv4_on_the_same_port(self, reserve: Callable[..., int]) -> None:
        """Requires the loopback of IPv6: sysctl net.ipv6.conf.lo.disable_ipv6=0."""
        port = reserve(HOST, "::1")
        (beside,) = await listen(HOST, port, 1)
        (bound,) = await listen("::1", port, 1)
        assert bound.address == ("::1", port)
        client = await sockets.connect(*bound.address)
        accepted, peer = accept(bound)
        assert peer[0] == "::1"
        for closing in (bound, beside, accepted, client):
            closing.close()

    async def test_the_ipv6_wildcard_serves_ipv4_too_and_knows_clients_by_their_ipv4_address(self) -> None:
        (bound,) = await listen("::", 0, 1)
        for host in (HOST, "::1"):
            client = await sockets.connect(host, bound.address[1])
            accepted, peer = accept(bound)
            assert peer == client.local_address()
            assert accepted.local_address() == (host, bound.address[1])
            assert accepted.remote_address() == peer
            for closing in (accepted, client):
                closing.close()
        bound.close()

    @pytest.mark.parametrize("first", ["::", HOST])
    async def test_the_ipv6_wildcard_leaves_ipv4_to_another_listener(
        self, first: str, reserve: Callable[..., int]
    ) -> None:
        port = reserve(HOST)
        bound = [*await listen(first, port, 1, v6only=True)]
        bound += await listen("::" if first == HOST else HOST, port, 1, v6only=True)
        assert {each.address for each in bound} == {(HOST, port), ("::", port)}
        for closing in bound:
            closing.close()

    async def test_with_an_inherited_socket_for_ipv6_alone_ipv4_is_served_beside_it(self) -> None:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=False) as given:
            port = given.getsockname()[1]
            make = partial(ListeningSocket, Reactor(), nobody, nobody, 1)
            inherited = Inherited([given.dup()])
            bound = await sockets.bind("::", port, make, inherited)
            assert [each.address for each in bound] == [("::", port), ("0.0.0.0", port)]
            # The next process gets both from this one.
            again = Inherited([socket.socket(fileno=os.dup(each.fileno())) for each in bound])
            bound += await sockets.bind("::", port, make, again)
            assert len(bound) == 4
            assert again.close() == []
            for closing in bound:
                closing.close()


@pytest.mark.parametrize("host", [HOST, "::1"])
class TestPause:
    """Requires the loopback of IPv6: sysctl net.ipv6.conf.lo.disable_ipv6=0."""

    @pytest.fixture
    async def bound(self, host: str) -> AsyncIterator[ListeningSocket]:
        (bound,) = await sockets.bind(host, 0, partial(ListeningSocket, Reactor(), nobody, nobody, 16))
        yield bound
        bound.close()

    async def test_refuses_before_the_start_and_in_a_pause(self, bound: ListeningSocket) -> None:
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await sockets.connect(*bound.address)
            bound.start()
            (await sockets.connect(*bound.address)).close()
            accepted, _ = accept(bound)
            accepted.close()
            bound.pause()

    async def test_pending_connections_are_reset(self, bound: ListeningSocket) -> None:
        bound.start()
        waiting = [await sockets.connect(*bound.address) for _ in range(3)]
        bound.pause()
        for client in waiting:
            with pytest.raises(ConnectionResetError):
                client.receive_into(memoryview(bytearray(1)))
            client.close()

    async def test_leaves_connections_alone_and_keeps_the_address(self, bound: ListeningSocket) -> None:
        bound.start()
        client = await sockets.connect(*bound.address)
        accepted, _ = accept(bound)
        bound.pause()
        family = socket.AF_INET6 if ":" in bound.address[0] else socket.AF_INET
        with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
            other.bind(bound.address)
        accepted.send_now([b"still"])
        await trio.lowlevel.wait_readable(client.fileno())
        assert client.receive_into(memoryview(bytearray(9))) == 5
        # And it can listen again beside them.
        bound.start()
        (await sockets.connect(*bound.address)).close()
        for closing in (accepted, client):
            closing.close()

    async def test_accept_without_a_client_returns_none(self, bound: ListeningSocket) -> None:
        assert bound.accept() is None
        for _ in range(2):
            bound.start()
            (await sockets.connect(*bound.address)).close()
            accepted, _ = accept(bound)
            accepted.close()
            bound.pause()
            bound.pause()
            assert bound.accept() is None


class TestAccept:
    async def test_error_of_one_connection_is_passed_over(
        self, listening: ListeningSocket, failing_accept: Callable[..., None]
    ) -> None:
        failing_accept(errno.ECONNABORTED, errno.EPROTO)
        client = await sockets.connect(*listening.address)
        accepted, _ = accept(listening)
        accepted.close()
        client.close()

    @pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
    async def test_out_of_descriptors_is_reported(
        self, listening: ListeningSocket, failing_accept: Callable[..., None], code: int
    ) -> None:
        failing_accept(code)
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what is told
            accept(listening)
        assert caught.value.errno == code

    async def test_client_that_is_gone_already_is_passed_over(
        self, listening: ListeningSocket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = Wire.__init__
        faults = [OSError(errno.EINVAL, "gone")]

        def fail_once(self: Wire, sock: socket.socket, *, inherits: bool) -> None:
            if faults:
                raise faults.pop()
            real(self, sock, inherits=inherits)

        clients = [socket.create_connection(listening.address) for _ in range(2)]
        monkeypatch.setattr(Wire, "__init__", fail_once)
        accepted, peer = accept(listening)
        assert peer == clients[1].getsockname()
        accepted.close()
        for client in clients:
            client.close()

    @pytest.fixture
    def failing_accept(self, listening: ListeningSocket) -> Callable[..., None]:
        def fail(*codes: int) -> None:
            listening._sock = FailingSocket(listening._sock, list(codes))  # type: ignore[assignment]  # acts like one

        return fail


class FailingSocket:
    def __init__(self, sock: socket.socket, codes: list[int]) -> None:
        self._sock = sock
        self._codes = codes

    def accept(self) -> Any:
        if self._codes:
            code = self._codes.pop(0)
            raise OSError(code, errno.errorcode[code])
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_peer_that_is_gone_without_a_word_is_noticed(
    pair: tuple[Wire, socket.socket],
    listening: ListeningSocket,
    is_given: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    listening.is_given = is_given
    with socket.create_connection(listening.address):
        accepted, _ = accept(listening)
    for sock in (pair[0]._sock, accepted._sock):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [1, 60, 10, 6]
    accepted.close()


async def test_an_inherited_socket_is_used_for_its_address_and_others_are_closed() -> None:
    with socket.create_server((HOST, 0)) as given, socket.create_server((HOST, 0)) as other:
        address, left = given.getsockname(), format_address(other.getsockname())
        inherited = sockets.Inherited((given.dup(), other.dup()))
        make = partial(ListeningSocket, Reactor(), nobody, nobody, 16)
        (bound,) = await sockets.bind(*address, make, inherited)
        # Connections made before the hand-over are accepted.
        with socket.create_connection(address) as client:
            bound.start()
            wire, peer = accept(bound)
            assert peer == client.getsockname()
            wire.close()
        bound.close()
        assert inherited.close() == [left]
        assert inherited.close() == []


async def test_processes_share_a_port_if_all_of_them_want_to() -> None:
    make = partial(ListeningSocket, Reactor(), nobody, nobody, 64)
    with socket.create_server((HOST, 0), backlog=64) as given:
        address = given.getsockname()
        with pytest.raises(OSError, match="in use"):
            await sockets.bind(*address, make, reuse_port=True)
        # An inherited socket without the option gets it.
        (first,) = await sockets.bind(*address, make, sockets.Inherited((given.dup(),)), reuse_port=True)
        (second,) = await sockets.bind(*address, make, reuse_port=True)
        for each in (first, second):
            each.start()
        # The kernel chooses by addresses and ports of both ends.
        clients = [socket.create_connection(address, timeout=5) for _ in range(20)]
        given.close()
        for each in (first, second):
            accept(each)[0].close()
            each.close()
        for client in clients:
            client.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


async def test_connections_to_a_held_socket_are_accepted_later(listening: ListeningSocket) -> None:
    listening.hold()
    with socket.create_connection(listening.address):
        assert listening.accept() is None
        listening.start()
        accept(listening)[0].close()


async def test_a_passed_socket_pauses_while_another_listens_and_resumes_when_it_is_closed() -> None:
    with socket.create_server((HOST, 0)) as free:
        address = free.getsockname()
    # Linux releases a port that it chose itself during a pause.
    with socket.create_server(address) as given:
        make = partial(ListeningSocket, Reactor(), nobody, nobody, 16)
        (bound,) = await sockets.bind(*address, make, sockets.Inherited((given.dup(),)))
        bound.pause()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        bound.close()
        # The next owner serves waiting connections.
        with socket.create_connection(address) as client:
            accepted, peer = given.accept()
            accepted.close()
            assert peer == client.getsockname()
