"""The recorded clients, played to the embedded broker: it answers as the real one did.

What differs by nature is left aside: offsets, message ids, and how often a client had to ask.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness.wire_bytes import decode_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_records import decode_records

from admin.demo.broker.broker import Broker
from admin.demo.broker.channel import Channel
from admin.demo.broker.store import encode_record
from proxy.protocols.rocketmq.wire.codes import HEADER_JSON, RemoteProtocolError, RequestCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_CLIENTS = ("cpp", "java-binary", "java-json", "node")


def _commands(path: Path) -> list[RemotingCommand]:
    return list(decode_all(path.read_bytes()))


def _answers(commands: list[RemotingCommand]) -> dict[int, RemotingCommand]:
    return {command.opaque: command for command in commands if command.flag & 1}


def _raw_headers(data: bytes) -> Iterator[dict[str, Any]]:
    while data:
        length, header = int.from_bytes(data[:4], "big"), int.from_bytes(data[5:8], "big")
        yield json.loads(data[8 : 8 + header])
        data = data[4 + length :]


def _to_broker(captures: Path, name: str) -> list[Path]:
    return sorted((captures / name).glob("broker-*-to-broker.bin"))


def _recorded_answers(path: Path) -> dict[int, RemotingCommand]:
    return _answers(_commands(path.with_name(path.name.replace("to-broker", "to-client"))))


@pytest.mark.parametrize("name", _CLIENTS)
def test_answers_have_the_shape_of_the_real_brokers(bench: Any, captures: Path, name: str) -> None:
    checked = 0
    bench.broker.create_topic("T_node", 8)
    for path in _to_broker(captures, name):
        recorded = _recorded_answers(path)
        client = bench.client()
        for request in _commands(path):
            if request.code in (*_PULLS, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.QUERY_CONSUMER_OFFSET):
                # These say where in the real broker's log the client stood: the next tests are about them.
                continue
            client.send_bytes(_frame(path, request))
            ours = _answers(client.answers())
            if request.flag & 2:
                assert ours == {}
                continue
            answer, real = ours[request.opaque], recorded[request.opaque]
            assert (answer.code, answer.flag, answer.header_type) == (real.code, real.flag, HEADER_JSON)
            assert set(answer.fields) == set(real.fields)
            assert bool(answer.remark) == bool(real.remark)
            assert bool(answer.body) == bool(real.body)
            if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                assert answer.body == real.body
            if request.code in _SENDS:
                for field in ("queueId", "TRACE_ON", "MSG_REGION"):
                    assert answer.fields[field] == real.fields[field]
                assert len(answer.fields["msgId"]) == len(real.fields["msgId"])
                # A broker's own unique keys are longer on a machine with an IPv6 address.
                assert len(answer.fields["transactionId"]) in (32, len(real.fields["transactionId"]))
            checked += 1
    assert checked >= 20


def _frame(path: Path, request: RemotingCommand) -> bytes:
    """Return the request's bytes as they were recorded."""
    data = path.read_bytes()
    at = 0
    for command in decode_all(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if command == request:
            return data[at:end]
        at = end
    raise AssertionError(f"{path} has no such request")


@pytest.mark.parametrize("name", ["cpp", "java-binary", "java-json"])
def test_recorded_consumers_find_the_recorded_messages(bench: Any, captures: Path, name: str) -> None:
    """Sends first, then the consumer's requests, moved to where this broker's queues begin."""
    sent = 0
    producer = bench.client()
    for path in _to_broker(captures, name):
        for request in _commands(path):
            if request.code in _SENDS:
                producer.send_bytes(_frame(path, request))
                sent += 1
    producer.answers()
    stored = sum(bench.broker.stored_by_topic().values())
    assert stored >= sent >= 20

    found = 0
    for path in _to_broker(captures, name):
        recorded = _recorded_answers(path)
        first: dict[tuple[str, str], int] = {}
        client = bench.client()
        for request in _commands(path):
            fields = dict(request.fields)
            if request.code == RequestCode.HEART_BEAT:
                client.send_bytes(_frame(path, request))
                client.answers()
            elif request.code in _PULLS and not fields["topic"].startswith("%RETRY%"):
                key = (fields["topic"], fields["queueId"])
                fields["queueOffset"] = str(
                    int(fields["queueOffset"]) - first.setdefault(key, int(fields["queueOffset"]))
                )
                client.send(request.code, fields, version=request.version)
                bench.wait(15)
                (answer,) = _answers(client.answers()).values()
                real = recorded.get(request.opaque)
                if real is not None:
                    assert (answer.code, set(answer.fields)) == (real.code, set(real.fields))
                    found += len(answer.body) > 0
    assert found == 4


@pytest.mark.parametrize("name", _CLIENTS)
def test_routes_are_those_of_the_real_name_server(bench: Any, captures: Path, name: str) -> None:
    for topic, queues in (("T_cap", 4), ("%RETRY%CGcap", 1), ("T_node", 8)):
        if name != "cpp":
            # This one asks for the template first.
            bench.broker.create_topic(topic, queues)
    for path in sorted((captures / name).glob("namesrv-*-to-broker.bin")):
        client = bench.client()
        client.send_bytes(path.read_bytes())
        ours = client.answers()[:3]
        theirs = _commands(path.with_name(path.name.replace("to-broker", "to-client")))[:3]
        assert [(answer.opaque, answer.code, answer.body.replace(b"loopback", b"broker-a")) for answer in ours] == [
            (answer.opaque, answer.code, answer.body) for answer in theirs
        ]


def test_answers_spell_their_headers_as_the_real_broker(bench: Any, captures: Path) -> None:
    path = captures / "java-json" / "broker-1-to-broker.bin"
    client = bench.client()
    client.send_bytes(path.read_bytes())
    ours = list(_raw_headers(client.channel.take()))
    theirs = list(_raw_headers(path.with_name("broker-1-to-client.bin").read_bytes()))
    assert len(ours) == len(theirs)
    for answer, real in zip(ours, theirs, strict=True):
        for key in ("code", "flag", "language", "opaque", "version"):
            assert answer[key] == real[key]
        assert answer.get("extFields", {}).keys() == real.get("extFields", {}).keys()
        assert all(isinstance(value, str) for value in answer.get("extFields", {}).values())


def test_records_of_a_real_broker_are_written_again_byte_for_byte(pulled_bodies: list[bytes]) -> None:
    records = 0
    for body in pulled_bodies:
        again = b""
        for record in decode_records(body):
            records += 1
            again += encode_record(
                record.message,
                queue_offset=record.queue_offset,
                physical_offset=record.physical_offset,
                store_ms=record.store_ms,
                store_host=record.store_host,
            )
        assert again == body
    assert records > 100


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.sampled_from(_CLIENTS), st.randoms(use_true_random=False))
def test_damaged_recordings_end_the_connection_at_worst(captures: Path, name: str, random: Random) -> None:
    broker, channel = Broker(), Channel("127.0.0.1", 1)
    data = bytearray(random.choice(_to_broker(captures, name)).read_bytes()[:12_000])
    for _ in range(random.randrange(1, 20)):
        at = random.randrange(len(data))
        data[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
    with suppress(RemoteProtocolError):
        broker.receive(channel, data, 0)
    broker.end_long_polls(1e9)
    assert broker.held_pulls == 0
