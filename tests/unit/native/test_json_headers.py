"""Common JSON headers are plain. test_soundness.py checks that plain headers have only one reading."""

import json

import pytest
from playbook.extension import Extension, Passed

from proxy.protocols.rocketmq.answers import LONG_POLLS
from proxy.protocols.rocketmq.refusals import INTERNAL_PREFIX, INTERNAL_TOPICS
from proxy.protocols.rocketmq.wire.codes import HEARD, LIMITABLE, PLAIN_SYS_FLAG_VALUES, SENDS, RequestCode
from proxy.protocols.rocketmq.wire.header import _JsonHeader, classify

_JAVA = (
    rb'{"code":310,"extFields":{"a":"pg","b":"orders","c":"TBW102","d":"4","e":"1","f":"0","g":"1795252796322","h":"0",'
    rb'"i":"UNIQ_KEY\u0001FD00000000\u0002WAIT\u0001true\u0002","j":"0","k":"false","m":"false","n":"broker-a"},'
    rb'"flag":0,"language":"JAVA","opaque":1000000007,"serializeTypeCurrentRPC":"JSON","version":513}'
)
_CPP = (
    rb'{"code":10,"extFields":{"AccessKey":"","batch":"0","defaultTopicQueueNums":4,"flag":0,"producerGroup":"pg",'
    rb'"properties":"KEYS\u0001k0\u0002","queueId":0,"topic":"orders"},"flag":0,"language":"CPP","opaque":2,"remark":"",'
    b'"version":63}\n'
)
_NODE = (
    rb'{"code":310,"language":"JAVA","opaque":2,"flag":0,"version":121,"extFields":{"a":"pg","b":"orders","d":4,'
    rb'"g":1795252875949,"i":"TAGS\u0001tag\u0002","j":0,"k":false}}'
)
_BACK = b'{"code":36,"extFields":{"delayLevel":0,"group":"cg"},"flag":0,"opaque":-40,"remark":null}'


def _send(ext: bytes = b'"b":"orders"', top: bytes = b'"code":310,"opaque":7') -> bytes:
    return b'{%b,"extFields":{%b}}' % (top, ext)


@pytest.mark.parametrize(
    ("header", "reading"),
    [
        (_JAVA, ("topic", "orders", "pg", 1_000_000_007)),
        (_CPP, ("topic", "orders", "pg", 2)),
        (_NODE, ("topic", "orders", "pg", 2)),
        (_BACK, ("retry_group", "cg", "", -40)),
        (_send(b'"b":"%RETRY%cg"'), ("retry_group", "cg", "", 7)),
        (_send(b'"group":"%RETRY%cg"', b'"code":36,"opaque":7'), ("retry_group", "%RETRY%cg", "", 7)),
        (_send(b'"b":"%RETRYcg"'), ("topic", "%RETRYcg", "", 7)),
        (_send(b'"b":"gr\xc3\xb6\xc3\x9fe"'), ("topic", "größe", "", 7)),
        (_send(b'"b":"x","z":"\xf0\x9f\x98\x80"'), ("topic", "x", "", 7)),
        (_send(b'"b":"' + b"x" * 255 + b'"'), ("topic", "x" * 255, "", 7)),
        (_send(b'"b":"x","a":""'), ("topic", "x", "", 7)),
        (_send(b'"b":"x","group":"y","topic":"z"'), ("topic", "x", "", 7)),
        (_send(b'"b":"x","z":"costs 5$"'), ("topic", "x", "", 7)),
        (_send(top=b'"code":310,"opaque":2147483647,"flag":2'), ("topic", "orders", "", None)),
        (_send(top=b'"code":310,"opaque":-2147483648,"flag":-2'), ("topic", "orders", "", None)),
        (_send(top=b'"code":310,"opaque":0'), ("topic", "orders", "", 0)),
        (_send().replace(b":", b" :\t").replace(b",", b"\n,\r") + b" \t\r\n", ("topic", "orders", "", 7)),
        (b" \n" + _send(), ("topic", "orders", "", 7)),
        (_send(b'"b":"x","":"","z":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD7ff\\ue000"'), ("topic", "x", "", 7)),
    ],
)
def test_an_everyday_send_is_plain(extension: Extension, header: bytes, reading: tuple[object, ...]) -> None:
    assert extension.read_header(header, 0) == reading
    assert extension.read_header(header, 0).agrees_with(classify(header, 0))


def test_a_long_value_is_read_to_its_end(extension: Extension) -> None:
    for length in range(40):
        for end, plain in ((b'"', True), (b'\\n"', True), (b'\1"', False), (b'\xc3"', False)):
            header = _send(b'"b":"x","z":"' + b"x" * length + end)
            assert (extension.read_header(header, 0) is not None) is plain


def test_the_keys_of_a_header_are_those_of_the_reading_in_python(extension: Extension) -> None:
    values = dict.fromkeys(_JsonHeader.__struct_fields__, "1")
    values |= {"code": "310", "extFields": '{"b":"orders"}', "flag": "0", "version": "513"}
    values |= {"language": '"JAVA"', "remark": '"none"', "serializeTypeCurrentRPC": '"JSON"'}
    header = "{" + ",".join(f'"{key}":{value}' for key, value in values.items()) + "}"
    assert extension.read_header(header.encode(), 0) == ("topic", "orders", "", 1)


@pytest.mark.parametrize(("first", "next_one"), [(b"10", b"00"), (b"-5", b"-0"), (b"12", b"1-"), (b"12", b"-1")])
def test_a_number_like_the_one_before_is_checked_by_itself(extension: Extension, first: bytes, next_one: bytes) -> None:
    for header in (_send(top=b'"code":310,"opaque":%b'), _send(b'"b":"orders","z":%b')):
        assert extension.read_header(header % first, 0) is not None
        afresh = Extension().read_header(header % next_one, 0)
        assert extension.read_header(header % next_one, 0) == afresh
        assert (afresh is not None) is (next_one == b"-1")


def test_it_knows_the_requests_that_python_knows(extension: Extension) -> None:
    codes = {*range(500), *RequestCode, *HEARD, *LIMITABLE, *LONG_POLLS}
    read = {code: extension.read_header(b'{"code":%d,"opaque":7}' % code, 0) for code in codes}
    foreign = {*LIMITABLE, *HEARD, RequestCode.CHECK_TRANSACTION_STATE.value}
    assert {code for code, found in read.items() if found is None} == foreign
    polls = {code for code, found in read.items() if isinstance(found, Passed) and found.polls}
    assert polls == LONG_POLLS


@pytest.mark.parametrize("code", SENDS)
def test_it_knows_the_fields_that_python_knows(extension: Extension, code: int) -> None:
    fields = SENDS[code]
    batch = "false" if fields.batch else None
    pairs = {fields.resource: "orders", fields.producer_group: "pg", fields.batch: batch}

    def read(**others: object) -> object:
        ext = {name: value for name, value in (pairs | others).items() if name and value is not None}
        header = json.dumps({"code": code, "opaque": 7, "extFields": ext}).encode()
        found = extension.read_header(header, 0)
        assert found is None or found.agrees_with(classify(header, 0))
        return found

    assert read() is not None
    assert fields.sys_flag is None or all(read(**{fields.sys_flag: flag}) for flag in PLAIN_SYS_FLAG_VALUES)
    assert not any(read(**{fields.resource: topic}) for topic in {*INTERNAL_TOPICS, f"{INTERNAL_PREFIX}x"})
    assert read(**{fields.resource: "x" * 255}) is not None
    assert read(**{fields.resource: "x" * 256}) is None
    if fields.batch:
        assert read(**{fields.batch: "true"}) is None
