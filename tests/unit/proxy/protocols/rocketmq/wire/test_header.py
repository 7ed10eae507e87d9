"""The strict reading of JSON headers. The oracle tests compare its rules with the real broker's decoder."""

import struct

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.protocols.rocketmq.wire.codes import FLAG_RESPONSE
from proxy.protocols.rocketmq.wire.header import LENIENT, STRICT, UNPARSABLE, Header, classify, read_answer
from proxy.protocols.rocketmq.wire.lenient import read_json


def _json(code: int = 310, flag: int = 0, **fields: object) -> bytes:
    return msgspec.json.encode(
        {
            "code": code,
            "language": "JAVA",
            "version": 513,
            "opaque": 7,
            "flag": flag,
            "extFields": fields,
            "serializeTypeCurrentRPC": "JSON",
        }
    )


def _read(code: int = 310, flag: int = 0, **fields: object) -> Header:
    return classify(_json(code, flag, **fields), 0)


@pytest.mark.parametrize("code", [310, 320, 325])
def test_a_short_send_is_charged_to_its_topic(code: int) -> None:
    answer = _read(code, a="pg", b="orders", m="false")
    assert answer == Header("topic", "orders", code, 7, 0, "pg", False, 513, "JAVA", STRICT)


@pytest.mark.parametrize("code", [10, 324])
def test_a_spelled_out_send_is_charged_to_its_topic(code: int) -> None:
    answer = _read(code, producerGroup="pg", topic="orders", batch="true", b="other")
    assert answer == Header("topic", "orders", code, 7, 0, "pg", True, 513, "JAVA", STRICT)


@pytest.mark.parametrize("flag", [1, 3])
def test_a_response_is_never_limitable(flag: int) -> None:
    assert _read(310, flag, b="orders").kind == ""


@pytest.mark.parametrize(
    ("spelled", "is_batch"),
    [("true", True), ("TRUE", True), (True, True), ("false", False), (False, False), ("1", False), ("0", False)],
)
def test_a_batch_has_javas_true_in_its_field(spelled: object, *, is_batch: bool) -> None:
    assert _read(b="orders", m=spelled).is_batch is is_batch


@pytest.mark.parametrize("header_type", [2, 3, 127, 128, 255])
def test_there_are_no_other_header_types(header_type: int) -> None:
    assert classify(_json(b="orders"), header_type) is UNPARSABLE


def test_text_in_a_skipped_field_that_is_not_utf8_is_not_read_strictly() -> None:
    # The broker lets a lone lead byte swallow the quote behind it, and reads another topic here.
    header = b"""{"code":310,"opaque":7,"extFields":{"b":"cold","z":"\xc3","'b':'hot'}}//":""}}"""
    assert classify(header, 0) is UNPARSABLE


def test_a_reference_is_not_followed() -> None:
    header = b'{"code":310,"opaque":7,"extFields":{"$ref":"$"},"extFields":{"b":"orders"}}'
    assert classify(header, 0) is UNPARSABLE


# Invalid names: surrogates, escaped, raw and as UTF-8, and invalid bytes.
_PIECES = [
    rb"\ud800",
    rb"\ud83d",
    rb"\ude00",
    rb"\udfff",
    b"\xed\xa0\x80",
    "\U0001f600".encode(),
    b"\xc3",
    b"x",
]
_spelled = st.lists(st.sampled_from(_PIECES) | st.text(alphabet="%RETY_a", max_size=8).map(str.encode), max_size=5).map(
    b"".join
)


def _binary_fields(name: bytes, group: bytes) -> bytes:
    ext = b"".join(
        struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value
        for key, value in ((b"a", group), (b"b", name), (b"group", name), (b"topic", name), (b"producerGroup", group))
    )
    return struct.pack(">ii", 0, len(ext)) + ext


_JSON_FIELDS = b'"a":"%(group)b","b":"%(name)b","group":"%(name)b","topic":"%(name)b","producerGroup":"%(group)b"'


@given(_spelled, _spelled, st.sampled_from([10, 36, 310]), st.sampled_from(["strict", "lenient", "binary", "java"]))
@example(b"\xf0\x9f\x98\x80", b"x", 310, "strict")
@example(rb"\ud83d\ude00", rb"\ud800", 310, "lenient")
@example(b"x", b"\xed\xa0\x80", 310, "java")
def test_every_name_can_be_written_as_utf8(name: bytes, group: bytes, code: int, reading: str) -> None:
    if reading == "java":
        ext = b"\0\1a%b%b\0\1b%b%b" % (struct.pack(">i", len(group)), group, struct.pack(">i", len(name)), name)
        header = struct.pack(">hBhiiii", code, 0, 513, 1, 0, 0, len(ext)) + ext
        answer = classify(header, 1)
    elif reading == "binary":
        answer = classify(struct.pack(">hBhii", code, 0, 513, 1, 0) + _binary_fields(name, group), 1)
    else:
        quoted = b'"%d"' if reading == "lenient" else b"%d"
        fields = _JSON_FIELDS % {b"name": name, b"group": group}
        answer = classify(b'{"code":%b,"opaque":1,"extFields":{%b}}' % (quoted % code, fields), 0)
    answer.name.encode()
    answer.producer_group.encode()
    answer.language.encode()


def test_a_deeply_nested_header_is_read_without_an_error() -> None:
    assert classify(b'{"code":310,"opaque":7,"extFields":{"z":' + b"[" * 100_000, 0) is UNPARSABLE


def test_an_answer_is_found_in_either_header_type() -> None:
    json_answer = read_answer(
        b'{"code":0,"extFields":{"msgId":"1"},"flag":1,"language":"JAVA","opaque":9,"version":513}'
    )
    binary_answer = read_answer(b"\0\0" + b"\0" + b"\1\2" + b"\0\0\0\x09" + b"\0\0\0\1" + bytes(8))
    assert json_answer == binary_answer
    assert json_answer is not None
    assert json_answer.flag & FLAG_RESPONSE


@pytest.mark.parametrize("header", [b"", b"{", b"{}", b'{"code":0}', b"\0\0\0"])
def test_an_invalid_answer_is_none(header: bytes) -> None:
    assert read_answer(header) is None


# --- Requests that consume ------------------------------------------------------------------------


def _consuming(header: bytes) -> Header:
    return classify(header, 0, subscriptions=True)


@pytest.mark.parametrize("code", [11, 361, 200_050])
def test_a_request_that_consumes_is_charged_to_its_subscription(code: int) -> None:
    header = _consuming(_json(code, consumerGroup="g", topic="orders", queueId="0"))
    assert header == Header("subscription", "g@orders", code, 7, 0, "", False, 513, "JAVA", STRICT)


def test_a_name_may_hold_the_mark_itself() -> None:
    assert _consuming(_json(11, consumerGroup="a@b", topic="c@d")).name == "a@b@c@d"


@pytest.mark.parametrize("code", [11, 361, 200_050])
def test_without_limits_they_are_read_as_usual(code: int) -> None:
    header = _read(code, consumerGroup=5, topic="orders")
    assert header == Header("", "", code, 7, 0, "", False, 513, "JAVA", STRICT)


@pytest.mark.parametrize("missing", ["consumerGroup", "topic"])
@pytest.mark.parametrize("how", ["left out", "null"])
def test_one_that_names_no_subscription_is_for_the_broker_to_refuse(missing: str, how: str) -> None:
    fields: dict[str, object] = {"consumerGroup": "g", "topic": "orders"}
    del fields[missing]
    if how == "null":
        fields[missing] = None
    header = _consuming(_json(11, 0, **fields))
    assert (header.kind, header.code, header.reading) == ("", 11, LENIENT)


def test_escaped_and_repeated_fields_are_read_as_the_broker_does() -> None:
    header = _consuming(
        b"{'code':11,'opaque':7,'extFields':{'topic':'x','consumer\\u0047roup':'g','topic':'\\x6frders'}}"
    )
    assert (header.kind, header.name, header.reading) == ("subscription", "g@orders", LENIENT)


@pytest.mark.parametrize("flag", [1, 3])
def test_a_response_is_not_a_consuming_request(flag: int) -> None:
    assert _consuming(_json(11, flag, consumerGroup="g", topic="orders")).kind == ""


@given(group=st.text(max_size=300), topic=st.text(max_size=300))
def test_the_two_readings_of_a_subscription_agree(group: str, topic: str) -> None:
    header = _json(11, consumerGroup=group, topic=topic)
    strict, slow = _consuming(header), read_json(header, subscriptions=True)
    if UNPARSABLE not in (strict, slow):
        assert (strict.kind, strict.name) == (slow.kind, slow.name)
    else:
        assert slow is UNPARSABLE
