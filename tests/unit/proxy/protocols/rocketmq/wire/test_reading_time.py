"""Reading takes steps in proportion to the bytes, whatever a client writes."""

import re
import struct
import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from playbook import frames
from playbook.playbook import READINGS, Reading, open_session
from playbook.steps import opcodes

from proxy.deciding.batch import Side
from proxy.protocols.rocketmq.client_info import ClientInfo
from proxy.protocols.rocketmq.wire import lenient
from proxy.protocols.rocketmq.wire.frame import MAX_HEADER_BYTES
from proxy.protocols.rocketmq.wire.header import LENIENT, UNPARSABLE, classify, read_binary
from proxy.protocols.rocketmq.wire.lenient import MAX_JSON_BYTES, MAX_STEPS, read_json


class Matches:
    """Replaces a pattern's ``match``, and adds up the bytes it looks at: to the end without a match."""

    def __init__(self, match: Callable[[bytes, int], re.Match[bytes] | None]) -> None:
        self._match = match
        self.bytes_seen = 0

    def __call__(self, data: bytes, at: int) -> re.Match[bytes] | None:
        match = self._match(data, at)
        self.bytes_seen += (len(data) if match is None else match.end()) - at
        return match


@pytest.fixture
def matches(monkeypatch: pytest.MonkeyPatch) -> Sequence[Matches]:
    counted = [Matches(lenient._TOKEN), Matches(lenient._END)]
    for name, each in zip(("_TOKEN", "_END"), counted, strict=True):
        monkeypatch.setattr(lenient, name, each)
    return counted


BREAKS_OFF = (
    (b'{"code":34,', b" ", b"?"),
    (b'{"code":34,"', b'\\"', b""),
    (b'{"code":34,"', b"x", b""),
    (b"{'code':34,'", b"\\'", b""),
    (b'{"code":34', b"\0", b"?"),
    (b'{"code":34,"', b"\\x41\\x4", b""),
    (b'{"code":34,"', b"\xf0", b""),
    (b'{"code":34,"x":', b"1", b"?"),
    (b'{"code":34,', b"x", b"?"),
)


@pytest.mark.parametrize(("head", "unit", "tail"), BREAKS_OFF)
def test_an_incomplete_header_is_read_once(head: bytes, unit: bytes, tail: bytes, matches: Sequence[Matches]) -> None:
    header = head + unit * ((MAX_JSON_BYTES - 100) // len(unit)) + tail
    assert read_json(header) is UNPARSABLE
    assert sum(each.bytes_seen for each in matches) <= 2 * len(header)


# Beginning, repeated part, and end of headers that take many steps.
DEAR = (
    (b'{"code":"310","x":', b"[", b""),
    (b'{"code":"310","x":[', b"1,", b"1]}"),
    (b'{"code":"310"', b',"x":1', b"}"),
    (b'{"code":"310"', b',"' + b"x" * 32 + b'":1', b"}"),
    (b'{"code":"310"', b',"' + b"\\x78" * 31 + b'":1', b"}"),
    (b'{"code":"310","extFields":{"b":"x"', b',"' + b"\\n" * 60 + b'":1', b"}}"),
    (b'{"code":"310","extFields":{"b":"x","a":"', b"\\n", b'"}}'),
    (b'{"code":"310","extFields":{"b":"x","m":"', b"\\n", b'"}}'),
    (b'{"code":"310","extFields":{"b":"', b"\\n", b'"}}'),
    (b'{"code":"310","language":"', b"\\n", b'"}'),
    (b'{"opaque":"', b"\\n", b'"}'),
    (b'{"code":310,"opaque":1,"extFields":{"b":"x"', b',"b":"y"', b"}}"),
    (b'{"code":310,"opaque":1,"extFields":{"b":"x"', b',"f":' + b"9" * 4299, b"}}"),
)


@pytest.mark.parametrize("size", [1000, MAX_JSON_BYTES, MAX_HEADER_BYTES])
@pytest.mark.parametrize(("head", "unit", "tail"), DEAR)
def test_json_header_steps_are_bounded(head: bytes, unit: bytes, tail: bytes, size: int) -> None:
    header = head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail
    # Python steps for each of the reader's own: 110 to 150.
    assert opcodes(lambda: classify(header, 0)) < 200 * MAX_STEPS


@pytest.mark.parametrize(("code", "key"), [(310, "f"), (10, "sysFlag")])
def test_no_second_number_of_many_digits_is_made(code: int, key: str) -> None:
    # The strict reading would take time by the square of the digits. No other reader accepts this length.
    numbers = f'"{key}":{"9" * 4299},' * 50
    header = f'{{"code":{code},"opaque":1,"extFields":{{{numbers}"b":"x","topic":"x","{key}":0}}}}'
    assert classify(header.encode(), 0) is UNPARSABLE


def binary(fields: bytes, remark: bytes = b"r") -> bytes:
    fixed = struct.pack(">hBhiii", 310, 0, 513, 7, 0, len(remark))
    return fixed + remark + struct.pack(">i", len(fields)) + fields


@pytest.mark.parametrize("size", [1000, MAX_JSON_BYTES, MAX_HEADER_BYTES])
@pytest.mark.parametrize("unit", [bytes(6), b"\0\1k\0\0\0\1v", b"\0\1b\0\0\0\1v"])
def test_binary_header_steps_are_bounded(unit: bytes, size: int) -> None:
    header = binary(unit * (size // len(unit)))
    assert opcodes(lambda: read_binary(header)) < 10_000


def test_heartbeat_takes_few_steps_and_a_long_one_is_not_read() -> None:
    about = ClientInfo()
    for body in (b'{"x":"' + bytes(10_000_000), b"[" * 60_000):
        assert opcodes(lambda body=body: about.heartbeat(len(body), memoryview(body))) < 200  # type: ignore[misc]


@pytest.mark.parametrize("reading", READINGS)
def test_of_a_send_its_header_alone_is_copied(reading: Reading) -> None:
    chunk = memoryview(frames.send("a", body=bytes(1_000_000)) + frames.json_frame(34))
    session = open_session(reading=reading)
    tracemalloc.start()
    try:
        assert session.receive(Side.CLIENT, chunk, 0) is not None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


# --- Headers within the bounds are read -----------------------------------------------


def test_send_with_all_its_fields_and_as_many_properties_as_the_broker_takes_is_read() -> None:
    fields = ",".join(f'"{letter}":"{"x" * 20}"' for letter in "abcdefghijklmn")
    properties = "".join(f"KEY{number:04}\x01some value\x02" for number in range(1600))
    header = (
        f"{{'code':310,'language':'JAVA','version':1,'opaque':7,'flag':0,'extFields':{{{fields},'i':'{properties}'}}}}"
    )
    assert 30_000 < len(header) < MAX_JSON_BYTES
    assert (read_json(header.encode()).name, read_json(header.encode()).reading) == ("x" * 20, LENIENT)


def test_a_producer_group_is_cut_behind_the_longest_name_in_any_spelling() -> None:
    group = r"\ud83d\ude00" * 300
    header = read_json(f'{{"code":"310","extFields":{{"b":"x","a":"{group}"}}}}'.encode())
    assert header.producer_group == "\U0001f600" * 255


def test_a_text_too_long_to_be_true_is_false() -> None:
    for text, is_batch in ((r"\u0074\u0072\u0075\u0065", True), (r"\u0074" * 300, False)):
        header = read_json(f'{{"code":"310","extFields":{{"b":"x","m":"{text}"}}}}'.encode())
        assert (header.name, header.is_batch) == ("x", is_batch)
