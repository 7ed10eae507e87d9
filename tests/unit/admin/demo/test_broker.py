"""The embedded broker: answers to producers, and invalid bytes."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import trio
from harness.wire_bytes import decode_all, encode_batch
from hypothesis import given
from hypothesis import strategies as st

from admin.demo.broker import Broker, Channel, Loopback, cut, serve_broker
from proxy.protocols.rocketmq.batch_body import BatchMessage
from proxy.protocols.rocketmq.wire.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemoteProtocolError,
    RequestCode,
    ResponseCode,
)
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

CAPTURES = Path(__file__).parents[3] / "captures" / "rocketmq"
V1 = {"topic": "orders", "queueId": "1", "properties": "UNIQ_KEY\x01t\x02"}
V2 = {"b": "orders", "e": "1", "i": "UNIQ_KEY\x01t\x02", "m": "false"}


class Client:
    def __init__(self) -> None:
        self.broker = Broker()
        self.broker.advertised = "127.0.0.1:10911"
        self.channel = Channel("127.0.0.1", 40_000)
        self._data = bytearray()

    def write(self, data: bytes) -> list[RemotingCommand]:
        self._data += data
        self.broker.receive(self.channel, self._data)
        return list(decode_all(self.channel.take()))

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"", **how: int) -> list[RemotingCommand]:
        return self.write(encode(RemotingCommand(code=code, opaque=7, fields=fields, body=body, **how)))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.mark.parametrize(
    ("code", "fields"), [(RequestCode.SEND_MESSAGE, V1), (RequestCode.SEND_MESSAGE_V2, V2), (325, V2)]
)
def test_every_kind_of_send_is_counted(client: Client, code: int, fields: Mapping[str, str]) -> None:
    answers = [client.ask(code, fields, b"body")[0] for _ in range(2)]
    assert [answer.fields["queueOffset"] for answer in answers] == ["0", "1"]
    assert answers[0].fields["msgId"] == "7F00000100002A9F0000000000000000"
    assert answers[0].fields["transactionId"] == "t"
    assert client.broker.stored("orders") == 2


def test_oneway_sends_and_answers_get_no_answer(client: Client) -> None:
    assert client.ask(RequestCode.SEND_MESSAGE_V2, V2, flag=FLAG_ONEWAY) == []
    assert client.ask(RequestCode.SEND_MESSAGE_V2, V2, flag=FLAG_RESPONSE) == []
    assert client.broker.stored("orders") == 1


def test_a_batch_is_counted_as_its_messages(client: Client) -> None:
    batch = encode_batch([BatchMessage(b"%d" % number) for number in range(4)])
    (answer,) = client.ask(RequestCode.SEND_BATCH_MESSAGE, {**V2, "m": "true"}, batch)
    assert len(set(answer.fields["msgId"].split(","))) == 4
    assert client.broker.stored("orders") == 4
    for body in (b"", batch[:-1]):
        (answer,) = client.ask(RequestCode.SEND_BATCH_MESSAGE, {**V2, "m": "true"}, body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("changed", "remark"),
    [({"b": "a b"}, "a topic name"), ({"e": "99"}, "queueId[99]"), ({"e": "x"}, "<e> is no")],
)
def test_an_illegal_request_is_refused_with_a_reason(client: Client, changed: Mapping[str, str], remark: str) -> None:
    (answer,) = client.ask(RequestCode.SEND_MESSAGE_V2, {**V2, **changed})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in answer.remark
    (answer,) = client.ask(RequestCode.POP_MESSAGE, {})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(("version", "standard"), [(513, True), (400, False)])
def test_a_route_names_the_advertised_address_in_the_clients_json(
    client: Client, version: int, *, standard: bool
) -> None:
    client.broker.create_topic("orders", 2)
    (answer,) = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, version=version)
    assert (b'{"0":' in answer.body) is standard
    route = json.loads(answer.body.replace(b"{0:", b'{"0":'))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    assert route["queueDatas"][0]["writeQueueNums"] == 2
    (answer,) = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "other"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{"])
def test_bytes_that_are_not_a_frame_end_the_connection(client: Client, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        client.write(data)


@given(st.data())
def test_recorded_producers_are_answered_in_pieces_of_any_size(data: st.DataObject) -> None:
    recorded = (CAPTURES / "java-json" / "broker-1-to-broker.bin").read_bytes()
    client = Client()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(recorded)), max_size=5)))
    pieces = zip([0, *cuts], [*cuts, len(recorded)], strict=True)
    answers = [answer for start, end in pieces for answer in client.write(recorded[start:end])]
    asked = [command for command in decode_all(recorded) if not command.flag & FLAG_ONEWAY]
    assert [answer.opaque for answer in answers] == [command.opaque for command in asked]
    assert all(answer.code == ResponseCode.SUCCESS for answer in answers)


@pytest.fixture
async def loopback(nursery: trio.Nursery) -> AsyncIterator[Loopback]:
    yield await nursery.start(serve_broker)
    nursery.cancel_scope.cancel()


async def _connect(address: str) -> trio.SocketStream:
    host, port = address.rsplit(":", 1)
    return await trio.open_tcp_stream(host, int(port))


async def test_both_servers_answer_until_changed(loopback: Loopback) -> None:
    for address in (loopback.broker_address, loopback.name_server_address):
        async with await _connect(address) as stream:
            send = encode(RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=7, fields=V2))
            await stream.send_all(send * 100 + b"GET / HTTP/1.1\r\n\r\n")
            received = bytearray(b"".join([chunk async for chunk in stream]))
            assert [answer.code for answer in cut(received)] == [ResponseCode.SUCCESS] * 100
    assert loopback.broker.stored("orders") == 200
