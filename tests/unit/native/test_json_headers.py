"""Which JSON headers are plain: everyday sends, and nothing that anybody might read otherwise."""

import pytest
from playbook.extension import Extension

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
        (_JAVA, ("topic", "orders", "pg", 310, 1_000_000_007, 0)),
        (_CPP, ("topic", "orders", "pg", 10, 2, 0)),
        (_NODE, ("topic", "orders", "pg", 310, 2, 0)),
        (_BACK, ("retry_group", "cg", "", 36, -40, 0)),
        (_send(b'"b":"%RETRY%cg"'), ("retry_group", "cg", "", 310, 7, 0)),
        (_send(b'"group":"%RETRY%cg"', b'"code":36,"opaque":7'), ("retry_group", "%RETRY%cg", "", 36, 7, 0)),
        (_send(b'"b":"%RETRYcg"'), ("topic", "%RETRYcg", "", 310, 7, 0)),
        (_send(b'"b":"gr\xc3\xb6\xc3\x9fe"'), ("topic", "größe", "", 310, 7, 0)),
        (_send(b'"b":"x","z":"\xf0\x9f\x98\x80"'), ("topic", "x", "", 310, 7, 0)),
        (_send(b'"b":"' + b"x" * 255 + b'"'), ("topic", "x" * 255, "", 310, 7, 0)),
        (_send(b'"b":"x","a":""'), ("topic", "x", "", 310, 7, 0)),
        (_send(b'"b":"x","group":"y","topic":"z"'), ("topic", "x", "", 310, 7, 0)),
        (_send(b'"b":"x","z":"costs 5$"'), ("topic", "x", "", 310, 7, 0)),
        (_send(top=b'"code":310,"opaque":2147483647,"flag":2'), ("topic", "orders", "", 310, 2**31 - 1, 2)),
        (_send(top=b'"code":310,"opaque":-2147483648,"flag":-2'), ("topic", "orders", "", 310, -(2**31), -2)),
        (_send(top=b'"code":310,"opaque":0'), ("topic", "orders", "", 310, 0, 0)),
        (_send().replace(b":", b" :\t").replace(b",", b"\n,\r") + b" \t\r\n", ("topic", "orders", "", 310, 7, 0)),
        (b" \n" + _send(), ("topic", "orders", "", 310, 7, 0)),
        (_send(b'"b":"x","":"","z":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD7ff\\ue000"'), ("topic", "x", "", 310, 7, 0)),
    ],
)
def test_an_everyday_send_is_plain(extension: Extension, header: bytes, reading: tuple[object, ...]) -> None:
    assert extension.read(header, 0) == reading
    assert extension.read(header, 0).agrees_with(classify(header, 0))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="empty object"),
        pytest.param(b"[" + _send() + b"]", id="array"),
        pytest.param(_send()[:-1], id="not closed"),
        pytest.param(_send()[:-2] + b"]}", id="closed by a bracket"),
        pytest.param(_send() + b"}", id="closed twice"),
        pytest.param(_send() + b"\0", id="NUL behind it"),
        pytest.param(_send() + b"x", id="text behind it"),
        pytest.param(_send() + b"//", id="comment behind it"),
        pytest.param(b"\xef\xbb\xbf" + _send(), id="byte order mark"),
        pytest.param(b"\f" + _send(), id="form feed"),
        pytest.param(_send()[:-1] + b",}", id="comma at the end"),
        pytest.param(_send(b'"b":"orders",'), id="comma at the fields' end"),
        pytest.param(_send(b'"b":"orders","a":"x" "c":"y"'), id="no comma"),
        pytest.param(_send(b'"b" "orders"'), id="no colon"),
        pytest.param(_send(b",".join([b'"b":"orders"'] * 2)), id="topic twice"),
        pytest.param(_send(b'"b":"orders","B":"x","b":"hot"'), id="two topics"),
        pytest.param(_send(b'"b":"orders","\\u0062":"hot"'), id="a second topic with an escape"),
        pytest.param(_send(b'"\\u0062":"orders"'), id="the topic's key with an escape"),
        pytest.param(_send(b'"b":"\\u006frders"'), id="the topic with an escape"),
        pytest.param(_send(b'"b":"orders","z\\n":"1"'), id="another key with an escape"),
        pytest.param(_send(b"'b':\"orders\""), id="single quotes"),
        pytest.param(_send(b'b:"orders"'), id="no quotes"),
        pytest.param(_send(b'"b":orders'), id="value without quotes"),
        pytest.param(_send(b'"B":"orders"'), id="upper case key"),
        pytest.param(_send(b'"topic":"orders"'), id="key of another request"),
        pytest.param(_send(b'"b":""'), id="empty topic"),
        pytest.param(_send(b'"b":"%RETRY%"'), id="empty retry group"),
        pytest.param(_send(b'"b":"' + b"x" * 256 + b'"'), id="long topic"),
        pytest.param(_send(b'"b":"x","a":"' + b"x" * 256 + b'"'), id="long group"),
        pytest.param(_send(b'"b":5'), id="topic that is a number"),
        pytest.param(_send(b'"b":null'), id="topic that is null"),
        pytest.param(_send(b'"b":["orders"]'), id="topic in an array"),
        pytest.param(_send(b'"b":"x","a":null'), id="group that is null"),
        pytest.param(_send(b'"b":"x","topic":5'), id="another request's topic that is a number"),
        pytest.param(_send(b'"b":"x","m":"true"'), id="batch"),
        pytest.param(_send(b'"b":"x","m":"TRUE"'), id="batch in upper case"),
        pytest.param(_send(b'"b":"x","m":"1"'), id="batch in numbers"),
        pytest.param(_send(b'"b":"x","m":true'), id="batch that is a literal"),
        pytest.param(_send(b'"b":"x","m":false'), id="no batch that is a literal"),
        pytest.param(_send(b'"b":"x","m":"false","m":"true"'), id="batch said twice"),
        pytest.param(_send(b'"b":"x","f":"4"'), id="half message"),
        pytest.param(_send(b'"b":"x","f":"128"'), id="inner batch"),
        pytest.param(_send(b'"b":"x","f":128'), id="inner batch as a number"),
        pytest.param(_send(b'"b":"x","f":-1'), id="all flags"),
        pytest.param(_send(b'"b":"x","f":"\\u00312"'), id="flags with an escape"),
        pytest.param(_send(b'"b":"rmq_sys_wheel_timer"'), id="internal topic"),
        pytest.param(_send(b'"b":"SCHEDULE_TOPIC_XXXX"'), id="internal topic of another name"),
        pytest.param(_send(b'"b":"x","z":{}'), id="object in a field"),
        pytest.param(_send(b'"b":"x","z":[]'), id="array in a field"),
        pytest.param(_send(b'"b":"x","z":1.5'), id="fraction"),
        pytest.param(_send(b'"b":"x","z":1e5'), id="exponent"),
        pytest.param(_send(b'"b":"x","z":01'), id="leading zero"),
        pytest.param(_send(b'"b":"x","z":-0'), id="minus zero"),
        pytest.param(_send(b'"b":"x","z":+1'), id="plus"),
        pytest.param(_send(b'"b":"x","z":-'), id="minus alone"),
        pytest.param(_send(b'"b":"x","z":1234567890123456789'), id="long number"),
        pytest.param(_send(b'"b":"x","z":True'), id="literal in another case"),
        pytest.param(_send(b'"b":"x","z":nul'), id="literal cut off"),
        pytest.param(_send(b'"b":"x","z":"\\q"'), id="unknown escape"),
        pytest.param(_send(b'"b":"x","z":"\\x41"'), id="escape of another language"),
        pytest.param(_send(b'"b":"x","z":"\\u12"'), id="escape cut off"),
        pytest.param(_send(b'"b":"x","z":"\\u00g0"'), id="escape without hex"),
        pytest.param(_send(b'"b":"x","z":"\\u+123"'), id="escape with a sign"),
        pytest.param(_send(b'"b":"x","z":"\\ud83d\\ude00"'), id="escaped halves"),
        pytest.param(_send(b'"b":"x","z":"\\uDFff"'), id="escaped half"),
        pytest.param(_send(b'"b":"x","z":"\1"'), id="control character"),
        pytest.param(_send(b'"b":"x","z":"\n"'), id="line break"),
        pytest.param(_send(b'"b":"or\0ders"'), id="NUL in the topic"),
        pytest.param(_send(b'"b":"x","z":"\xff"'), id="not UTF-8"),
        pytest.param(_send(b'"b":"x","z":"\xc3"'), id="half of a character"),
        pytest.param(_send(b'"b":"x","z":"\xed\xa0\x80"'), id="surrogate"),
        pytest.param(_send(b'"b":"x\xef\xbf\xbd"'), id="replacement character"),
        pytest.param(_send(b'"b":"x","$ref":"$"'), id="reference"),
        pytest.param(_send(b'"b":"x","z":"$ref"'), id="reference in a value"),
        pytest.param(_send(b'"b":"x","z":"\\"$ref"'), id="reference behind an escaped quote"),
        pytest.param(_send(b'"b":"$ref"'), id="reference in the topic"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"$ref":"$"'), id="reference at the top"),
        pytest.param(_send(top=b'"code":310'), id="no opaque"),
        pytest.param(_send(top=b'"opaque":7'), id="no code"),
        pytest.param(b'{"code":310,"opaque":7}', id="no fields"),
        pytest.param(b'{"code":310,"opaque":7,"extFields":null}', id="null for fields"),
        pytest.param(b'{"code":310,"opaque":7,"extFields":{}}', id="empty fields"),
        pytest.param(_send()[:-1] + b',"extFields":{"b":"hot"}}', id="fields twice"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"code":10'), id="code twice"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"opaque":8'), id="opaque twice"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"flag":0,"flag":1'), id="flag twice"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"flag":1'), id="answer"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"flag":3'), id="oneway answer"),
        pytest.param(_send(top=b'"code":11,"opaque":7'), id="another request"),
        pytest.param(_send(top=b'"code":"310","opaque":7'), id="code in quotes"),
        pytest.param(_send(top=b'"code":310.0,"opaque":7'), id="code with a fraction"),
        pytest.param(_send(top=b'"code":0310,"opaque":7'), id="code with a leading zero"),
        pytest.param(_send(top=b'"code":310,"opaque":2147483648'), id="opaque too high"),
        pytest.param(_send(top=b'"code":310,"opaque":-2147483649'), id="opaque too low"),
        pytest.param(_send(top=b'"code":310,"opaque":-0'), id="opaque minus zero"),
        pytest.param(_send(top=b'"code":4294967606,"opaque":7'), id="code that overflows to a send"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"body":"x"'), id="unknown key"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"Code":10'), id="code in another case"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"language":5'), id="language that is a number"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"remark":1'), id="remark that is a number"),
        pytest.param(_send(top=b'"code":310,"opaque":7,"version":"513"'), id="version in quotes"),
        pytest.param(_send().decode().encode("utf-16-le"), id="UTF-16"),
    ],
)
def test_what_may_be_read_otherwise_is_not_plain(extension: Extension, header: bytes) -> None:
    assert extension.read(header, 0) is None


def test_a_long_value_is_read_to_its_end(extension: Extension) -> None:
    for length in range(40):
        for end, plain in ((b'"', True), (b'\\n"', True), (b'\1"', False), (b'\xc3"', False)):
            header = _send(b'"b":"x","z":"' + b"x" * length + end)
            assert (extension.read(header, 0) is not None) is plain


def test_the_keys_of_a_header_are_those_of_the_reading_in_python(extension: Extension) -> None:
    values = dict.fromkeys(_JsonHeader.__struct_fields__, "1")
    values |= {"code": "310", "extFields": '{"b":"orders"}', "flag": "0", "version": "513"}
    values |= {"language": '"JAVA"', "remark": '"none"', "serializeTypeCurrentRPC": '"JSON"'}
    header = "{" + ",".join(f'"{key}":{value}' for key, value in values.items()) + "}"
    assert extension.read(header.encode(), 0) == ("topic", "orders", "", 310, 1, 0)


@pytest.mark.parametrize(("first", "next_one"), [(b"10", b"00"), (b"-5", b"-0"), (b"12", b"1-"), (b"12", b"-1")])
def test_a_number_like_the_one_before_is_checked_by_itself(extension: Extension, first: bytes, next_one: bytes) -> None:
    for header in (_send(top=b'"code":310,"opaque":%b'), _send(b'"b":"orders","z":%b')):
        assert extension.read(header % first, 0) is not None
        afresh = Extension().read(header % next_one, 0)
        assert extension.read(header % next_one, 0) == afresh
        assert (afresh is not None) is (next_one == b"-1")
