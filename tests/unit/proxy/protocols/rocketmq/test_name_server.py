"""A client's connection to a name server: addresses are replaced in some answers, and nothing else changes."""

import struct
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook import frames
from playbook.captures import CAPTURES, Capture

from admin.config.faults import FaultsError, read
from proxy.common.buffers import KEPT_NS, GatherRoom
from proxy.deciding.batch import ConnectionInfo, Side
from proxy.protocols.base import Close, ListenerAddresses, SessionContext, WireCounters
from proxy.protocols.rocketmq.name_server import PROTOCOL, NameServerOptions
from proxy.protocols.rocketmq.routes import Addresses

_ROUTE, _CLUSTER, _SYSTEM_TOPICS, _KV_CONFIG, _MEMBERS = 105, 106, 304, 101, 901
_BODIES = {
    _ROUTE: b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.5:10911"},"brokerName":"a"}],"queueDatas":[]}',
    _CLUSTER: b'{"brokerAddrTable":{"a":{"brokerAddrs":{"0":"10.0.0.5:10911"}}},"clusterAddrTable":{"c":["a"]}}',
    _SYSTEM_TOPICS: b'{"brokerAddr":"10.0.0.5:10911","topicList":["TBW102"]}',
}
_TOLD = b"sluice.example.com:20911"
_FRONT = ListenerAddresses("rocketmq", ("0.0.0.0", 20911), (("10.0.0.5", 10911),))
_AMQP = ListenerAddresses("amqp", ("0.0.0.0", 5672), (("10.0.0.5", 10911),))


class _Connection:
    def __init__(
        self,
        options: NameServerOptions | None = None,
        listeners: Sequence[ListenerAddresses] = (_AMQP, _FRONT),
        room: GatherRoom | None = None,
        address: str = "192.0.2.1",
    ) -> None:
        self.now_ns = 0
        self.counters = WireCounters()
        self.room = room or GatherRoom()
        self.warnings: list[tuple[str, str]] = []
        info = ConnectionInfo(1, "routes", "default", f"{address}:40000", address, local="192.0.2.7")
        context = SessionContext(
            info,
            self.counters,
            lambda: None,
            wants_responses=False,
            limits_kind=lambda _: False,
            options=options or NameServerOptions(advertise="sluice.example.com"),
            room=self.room,
            listeners=lambda: listeners,
            warn=lambda *warning: self.warnings.append(warning),
        )
        self.session = PROTOCOL.open_session(context)
        self.got = {side: bytearray() for side in Side}

    def feed(self, side: Side, data: bytes, *cuts: int) -> None:
        """Give the session bytes of a peer, cut at these positions."""
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            if start == end:
                continue
            # The session must not keep references to a chunk.
            chunk = bytearray(data[start:end])
            try:
                assert self.session.receive(side, memoryview(chunk), self.now_ns) is None
            finally:
                for each in Side:
                    for buffer in self.session.take(each):
                        self.got[each] += buffer
                chunk[:] = bytes(len(chunk))

    def ask(self, code: int, opaque: int = 1, flag: int = 0) -> None:
        self.feed(Side.CLIENT, frames.json_frame(code, {"topic": "T"}, opaque=opaque, flag=flag))

    def answer(self, body: bytes, *, opaque: int = 1, code: int = 0, binary: bool = False) -> bytes:
        """Let the name server answer. Return the client's bytes."""
        self.got[Side.CLIENT].clear()
        self.feed(Side.BROKER, _answer(body, opaque=opaque, code=code, binary=binary))
        return bytes(self.got[Side.CLIENT])


def _answer(body: bytes, *, opaque: int = 1, code: int = 0, binary: bool = False) -> bytes:
    make = frames.binary_frame if binary else frames.json_frame
    return make(code, opaque=opaque, flag=frames.RESPONSE, body=body)


def _told(body: bytes) -> bytes:
    return body.replace(b"10.0.0.5:10911", _TOLD)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("code", _BODIES)
def test_answers_about_brokers_name_sluice(*, code: int, binary: bool) -> None:
    connection = _Connection()
    connection.ask(code)
    assert connection.session.in_flight() == 1
    assert connection.answer(_BODIES[code], binary=binary) == _answer(_told(_BODIES[code]), binary=binary)
    assert connection.session.in_flight() == 0
    assert connection.counters.routes == {"rewritten": 1}
    assert connection.counters.frames == {Side.CLIENT: 1, Side.BROKER: 1}
    assert connection.session.language == "JAVA"
    assert connection.session.describe(0).client.version == "V5_5_0"
    assert connection.session.describe(0).requests == 1


def test_an_answer_to_an_unknown_request_is_treated_as_one_about_brokers() -> None:
    connection = _Connection()
    assert connection.answer(_BODIES[_ROUTE], opaque=9) == _answer(_told(_BODIES[_ROUTE]), opaque=9)
    assert connection.answer(b"anything", opaque=9) == _answer(b"anything", opaque=9)
    assert connection.counters.routes == {"rewritten": 1}
    assert not connection.warnings


def test_a_request_of_the_name_server_is_forwarded() -> None:
    connection = _Connection()
    request = frames.json_frame(40, opaque=1, body=_BODIES[_ROUTE])
    connection.ask(_ROUTE)
    connection.feed(Side.BROKER, request)
    assert connection.got[Side.CLIENT] == request
    assert connection.session.in_flight() == 1


def test_oneway_request_and_an_answer_of_the_client_are_owed_nothing() -> None:
    connection = _Connection()
    connection.ask(_ROUTE, flag=frames.ONEWAY)
    connection.ask(0, flag=frames.RESPONSE)
    connection.feed(Side.CLIENT, frames.frame(b"{no header}"))
    assert connection.session.in_flight() == 0


@pytest.mark.parametrize("body", [b"x\x9c\x03\x00", b'{"brokerDatas":[{"brokerAddrs":7}]}', _BODIES[_ROUTE][:-1]])
def test_unreadable_answers_pass_unchanged_and_are_logged(body: bytes) -> None:
    connection = _Connection()
    connection.ask(_ROUTE)
    assert connection.answer(body) == _answer(body)
    assert connection.counters.routes == {"unread": 1}
    ((about, detail),) = connection.warnings
    assert about == "name server response forwarded unchanged"
    assert detail.startswith(f"a response of {len(_answer(body))} bytes: it")


def test_an_answer_without_room_is_forwarded_unchanged() -> None:
    connection = _Connection(room=GatherRoom(128 * 1024))
    body = _BODIES[_ROUTE].replace(b"[]", b"[%b]" % (b" " * 300_000))
    connection.ask(_ROUTE)
    whole = _answer(body)
    connection.feed(Side.BROKER, whole, *range(50_000, len(whole), 50_000))
    assert connection.got[Side.CLIENT] == whole
    assert connection.counters.routes == {"unread": 1}
    assert connection.warnings[0][1].endswith(": not enough memory to read it")
    assert connection.room.taken_bytes == 0
    connection.ask(_ROUTE)
    assert connection.answer(_BODIES[_ROUTE]) == _answer(_told(_BODIES[_ROUTE]))


def test_room_of_an_unfinished_answer_is_given_back() -> None:
    connection = _Connection()
    connection.ask(_ROUTE)
    connection.feed(Side.BROKER, _answer(b" " * 500_000)[:-1])
    assert connection.room.taken_bytes > 0
    connection.session.close()
    assert connection.room.taken_bytes == 0


@pytest.mark.parametrize("ends", [False, True])
def test_answer_that_a_client_does_not_read_keeps_no_room_from_others(*, ends: bool) -> None:
    room = GatherRoom(1024 * 1024)
    stalled, other = (_Connection(room=room, address=address) for address in ("192.0.2.1", "192.0.2.9"))
    stalled.ask(_ROUTE)
    whole = _answer(b" " * 900_000)
    stalled.feed(Side.BROKER, whole[:800_000])
    other.now_ns = KEPT_NS
    other.ask(_ROUTE)
    body = _BODIES[_ROUTE].replace(b"[]", b"[%b]" % (b" " * 500_000))
    assert other.answer(body) == _answer(_told(body))
    assert room.taken_bytes == 0
    if ends:
        stalled.session.end(Side.BROKER, 0)
        assert not stalled.session.take(Side.CLIENT)
    else:
        with pytest.raises(Close, match="other connections needed the memory"):
            stalled.feed(Side.BROKER, whole[800_000:])
        stalled.session.close()
    assert not stalled.got[Side.CLIENT]


_STREAM = [
    (_ROUTE, False),
    (_KV_CONFIG, True),
    (_CLUSTER, True),
    (_ROUTE, True),
    (_MEMBERS, False),
    (_SYSTEM_TOPICS, False),
]


def _stream() -> tuple[bytes, bytes, bytes]:
    """Return the client's requests, the answers, and the expected answers."""
    asked = answered = told = b""
    for opaque, (code, binary) in enumerate(_STREAM):
        make = frames.binary_frame if binary else frames.json_frame
        asked += make(code, {"topic": "T"}, opaque=opaque)
        body = _BODIES.get(code, b"brokerAddr" * 3)
        answered += _answer(body, opaque=opaque, binary=binary)
        told += _answer(_told(body), opaque=opaque, binary=binary)
    return asked, answered, told


@given(st.data())
def test_it_does_not_matter_where_the_streams_are_cut(data: st.DataObject) -> None:
    asked, answered, told = _stream()
    connection = _Connection()
    for side, stream in ((Side.CLIENT, asked), (Side.BROKER, answered)):
        cuts = data.draw(st.lists(st.integers(1, len(stream) - 1), unique=True, max_size=12).map(sorted))
        connection.feed(side, stream, *cuts)
        assert connection.session.between_frames(side)
    assert connection.got == {Side.BROKER: asked, Side.CLIENT: told}


def test_stream_that_ends_anywhere_loses_nothing() -> None:
    asked, answered, _ = _stream()
    for end in range(len(answered)):
        connection = _Connection(listeners=())
        connection.feed(Side.CLIENT, asked)
        connection.feed(Side.BROKER, answered[:end])
        for side in Side:
            connection.session.end(side, 0)
        rest = b"".join(map(bytes, connection.session.take(Side.CLIENT)))
        assert bytes(connection.got[Side.CLIENT]) + rest == answered[:end]


@pytest.mark.parametrize("capture", [each for each in CAPTURES if "namesrv" in each.name], ids=str)
def test_recorded_clients_get_other_addresses_in_their_own_dialect(capture: Capture) -> None:
    told = (("127.0.0.2", 10911), ("sluice.example.com", 1))
    connection = _Connection(NameServerOptions(addresses=Addresses([told])), listeners=())
    connection.feed(Side.CLIENT, capture.to_broker)
    connection.feed(Side.BROKER, capture.to_client)
    assert connection.got[Side.BROKER] == capture.to_broker
    expected, routes = b"", 0
    for whole in frames.split(capture.to_client):
        then = whole[4:].replace(b'"127.0.0.2:10911"', b'"sluice.example.com:1"')
        routes += then != whole[4:]
        expected += struct.pack(">i", len(then)) + then
    assert connection.got[Side.CLIENT] == expected
    assert connection.counters.routes == {"rewritten": routes}
    assert routes > 0
    assert connection.session.in_flight() == 0


def test_name_server_that_sends_no_frame_is_closed() -> None:
    connection = _Connection()
    first = _answer(b"")
    with pytest.raises(Close, match="bad_answer"):
        connection.feed(Side.BROKER, first + struct.pack(">iI", 4, 5))
    assert connection.got[Side.CLIENT] == first
    assert connection.session.between_frames(Side.BROKER)


def test_frame_longer_than_the_option_ends_the_connection() -> None:
    request = frames.json_frame(_ROUTE)
    _Connection(NameServerOptions(max_frame_bytes=len(request))).feed(Side.CLIENT, request)
    with pytest.raises(Close, match="bad_frame"):
        _Connection(NameServerOptions(max_frame_bytes=len(request) - 1)).feed(Side.CLIENT, request)


def test_drain_reads_no_further_request() -> None:
    connection = _Connection()
    request = frames.json_frame(_ROUTE, body=b"body")
    assert connection.session.missing_bytes(Side.CLIENT) == 8
    connection.feed(Side.CLIENT, request[:8])
    assert not connection.session.between_frames(Side.CLIENT)
    assert connection.session.missing_bytes(Side.CLIENT) == len(request) - 12
    connection.feed(Side.CLIENT, request[8:-3])
    assert connection.session.missing_bytes(Side.CLIENT) == 3
    connection.feed(Side.CLIENT, request[-3:])
    assert connection.session.between_frames(Side.CLIENT)
    assert connection.session.backlog_bytes(Side.CLIENT) == connection.session.backlog_bytes(Side.BROKER) == 0


def test_tls_is_refused_or_relayed_unread() -> None:
    with pytest.raises(Close, match="tls"):
        _Connection().feed(Side.CLIENT, b"\x16\x03\x01")
    connection = _Connection(NameServerOptions(tls="pass"))
    connection.feed(Side.CLIENT, b"\x16\x03\x01")
    connection.feed(Side.BROKER, _BODIES[_ROUTE])
    assert connection.got == {Side.BROKER: b"\x16\x03\x01", Side.CLIENT: _BODIES[_ROUTE]}
    assert not connection.session.between_frames(Side.CLIENT)


_read = partial(read, NameServerOptions)


def test_options_are_read_as_an_operator_writes_them() -> None:
    options = _read({"advertise": "[2001:db8::7]", "addresses": {"::1:10911": "Sluice:20911", "b:1": "[::2]:2"}})
    assert options.advertise == "2001:db8::7"
    assert options.addresses == ((("::1", 10911), ("sluice", 20911)), (("b", 1), ("::2", 2)))
    assert str(options.addresses) == '{ "[::1]:10911" = "sluice:20911", "b:1" = "[::2]:2" }'
    assert _read({"addresses": options.addresses}).addresses is options.addresses
    assert str(_read({}).addresses) == "{}"
    assert _read({}) == NameServerOptions()


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("advertise", "sluice.example.com:10911", "without a port"),
        ("advertise", 'a"b', "without a port"),
        ("addresses", ["10.0.0.5:10911"], "must be a table of addresses"),
        ("addresses", {"10.0.0.5": "a:1"}, "'10.0.0.5' is not a valid address"),
        ("addresses", {"10.0.0.5:1": "a"}, "'a' is not a valid address"),
        ("addresses", {"10.0.0.5:1": 7}, "7 is not a valid address"),
        ("addresses", {"10.0.0.5:1": 'a"b:1'}, "is not a valid address"),
    ],
)
def test_error_of_an_option_names_allowed_values(option: str, value: object, what: str) -> None:
    with pytest.raises(FaultsError) as caught:
        _read({option: value})
    (fault,) = caught.value.faults
    assert fault.place == (option,)
    assert what in fault.what


def test_warnings_are_about_settings_that_let_clients_bypass_sluice() -> None:
    vip = ListenerAddresses("rocketmq", ("0.0.0.0", 20909), (("10.0.0.5", 10909),))
    addresses = Addresses([(("10.0.0.5", 10911), ("sluice", 1))])
    ((_, alone),) = PROTOCOL.lint(NameServerOptions(), [_AMQP])
    assert alone.startswith("replaces no addresses, so clients bypass Sluice")
    assert not list(PROTOCOL.lint(NameServerOptions(addresses=addresses), [_AMQP]))
    assert not list(PROTOCOL.lint(NameServerOptions(), [_FRONT, vip]))
    ((_, without),) = PROTOCOL.lint(NameServerOptions(), [_FRONT, _AMQP])
    assert "at 0.0.0.0:20911, but clients with a VIP channel connect to port 20909" in without
