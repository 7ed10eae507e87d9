"""Conversations of real clients and a real broker, read by every part of the codec."""

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.wire_bytes import decode_all
from playbook.playbook import open_session
from playbook.read_by import read_by  # noqa: F401 - every test here, in each way of reading
from stored_records import decode_records

from proxy.deciding.batch import Side
from proxy.protocols.rocketmq.wire import lenient
from proxy.protocols.rocketmq.wire.codes import CONSUMING, FLAG_RESPONSE
from proxy.protocols.rocketmq.wire.command import decode, encode
from proxy.protocols.rocketmq.wire.header import STRICT, classify, read_answer

_CAPTURES = Path(__file__).parents[4] / "captures" / "rocketmq"
_ALL = sorted(_CAPTURES.glob("*/*.bin"))
_TO_BROKER = [path for path in _ALL if path.stem.endswith("to-broker")]
_TO_CLIENT = [path for path in _ALL if path.stem.endswith("to-client")]

_LIMITED = {
    "java-json/broker-1": {("topic", "T_cap"): 22},
    "java-json/broker-3": {("retry_group", "CGcap"): 5},
    "java-binary/broker-1": {("topic", "T_cap"): 22},
    "java-binary/broker-3": {("retry_group", "CGcap"): 5},
    "cpp/broker-1": {("topic", "T_cpp"): 21, ("retry_group", "CGpy"): 16},
    "node/broker-1": {("topic", "T_node"): 20},
}


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def _frames(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        yield data[at : at + 4 + length]
        at += 4 + length


def _headers(path: Path) -> Iterator[tuple[bytes, int]]:
    for frame in _frames(path):
        (word,) = struct.unpack_from(">I", frame, 4)
        yield frame[8 : 8 + (word & 0xFFFFFF)], word >> 24


def test_every_capture_is_here() -> None:
    assert len(_TO_BROKER) == len(_TO_CLIENT) == 12


@pytest.mark.parametrize("path", _ALL, ids=_name)
def test_commands_survive_being_written_and_read_again(path: Path) -> None:
    for frame in _frames(path):
        command = decode(frame)
        assert decode(encode(command)) == command


@pytest.mark.parametrize("path", _TO_BROKER, ids=_name)
def test_the_fast_reading_agrees_with_the_whole_command(path: Path) -> None:
    for frame, (header, header_type) in zip(_frames(path), _headers(path), strict=True):
        command, answer = decode(frame), classify(header, header_type)
        assert answer.reading == STRICT
        assert (answer.code, answer.opaque, answer.flag) == (command.code, command.opaque, command.flag)
        assert (answer.version, answer.language) == (command.version, command.language)


@pytest.mark.parametrize("path", [path for path in _TO_BROKER if path.parent.name != "java-binary"], ids=_name)
def test_the_lenient_reading_agrees_with_the_strict_one(path: Path) -> None:
    for header, header_type in _headers(path):
        slow = lenient.read_json(header)
        slow.reading = STRICT
        assert slow == classify(header, header_type)


@pytest.mark.parametrize("name", _LIMITED)
def test_sends_and_send_backs_are_limitable_and_nothing_else_is(name: str) -> None:
    found = Counter(
        (answer.kind, answer.name)
        for header, header_type in _headers(_CAPTURES / f"{name}-to-broker.bin")
        if (answer := classify(header, header_type)).kind
    )
    assert found == _LIMITED[name]


def _header_of(frame: bytes) -> bytes:
    return frame[8 : 8 + int.from_bytes(frame[5:8], "big")]


@pytest.mark.parametrize("path", _TO_CLIENT, ids=_name)
def test_answers_are_distinguished_from_the_brokers_own_requests(path: Path) -> None:
    for frame in _frames(path):
        command, answer = decode(frame), read_answer(memoryview(_header_of(frame)))
        assert answer is not None
        assert (answer.code, answer.opaque) == (command.code, command.opaque)
        assert bool(answer.flag & FLAG_RESPONSE) == (command.code != 40)


# --- Consuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", _TO_BROKER, ids=_name)
def test_pulls_name_their_subscription_and_other_requests_are_read_as_usual(path: Path) -> None:
    for frame, (header, header_type) in zip(_frames(path), _headers(path), strict=True):
        command = decode(frame)
        with_them, without = classify(header, header_type, subscriptions=True), classify(header, header_type)
        if command.code in CONSUMING and not command.flag & FLAG_RESPONSE:
            assert with_them.reading == STRICT
            name = f"{command.fields['consumerGroup']}@{command.fields['topic']}"
            assert (with_them.kind, with_them.name) == ("subscription", name)
            assert without.kind == ""
        else:
            assert with_them == without


@pytest.mark.parametrize("name", ["java-json/broker-3", "java-binary/broker-3", "cpp/broker-1"])
def test_a_session_counts_the_messages_that_were_pulled(name: str) -> None:
    client, stem = name.split("/")
    sides = {side: (_CAPTURES / client / f"{stem}-to-{side.other.value}.bin").read_bytes() for side in Side}
    codes = {one.opaque: one.code for one in decode_all(sides[Side.CLIENT]) if not one.flag & FLAG_RESPONSE}
    pulled = [
        one for one in decode_all(sides[Side.BROKER]) if one.flag & FLAG_RESPONSE and codes[one.opaque] in CONSUMING
    ]
    session = open_session(limited=("subscription",))
    charges = []
    for side in Side:
        left = len(sides[side])
        while left:
            batch = session.receive(side, memoryview(sides[side])[-left:], 0)
            if batch is not None:
                session.decided(batch, 0)
                charges += batch.charges
            left = session.left_bytes(side)
    assert [charge.messages for charge in charges] == [
        len(list(decode_records(one.body))) if one.code == 0 else 0 for one in pulled
    ]
    assert sum(charge.messages for charge in charges) > 0
