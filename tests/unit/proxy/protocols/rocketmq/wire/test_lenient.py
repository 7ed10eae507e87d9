"""The lenient reading. The oracle tests compare its rules with the real broker's decoder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.rocketmq.wire.frame import LENIENT, UNPARSABLE, Header
from proxy.protocols.rocketmq.wire.lenient import MAX_STEPS, read_json

_SEND = Header("topic", "orders", 310, 7, 0, "pg", False, 513, "JAVA", LENIENT)


@pytest.mark.parametrize(
    "header",
    [
        '{"code":310,"opaque":7,"version":513,"extFields":{"a":"pg","b":"orders"}}',
        '{"code":"310","opaque":"7","version":"513","extFields":{"a":"pg","b":"orders"}}',
        '{"code":310.0,"opaque":+7,"version":0513,"extFields":{"a":"pg","b":"orders"}}',
        '{"code":11,"code":310,"opaque":7,"version":513,"extFields":{"b":"x","a":"pg","b":"orders"}}',
        r'{"c\u006fde":310,"opaque":7,"version":513,"extFields":{"a":"pg","\x62":"\u006frders"}}',
        "{'code':310,'opaque':7,'version':513,'extFields':{'a':'pg','b':'orders'}}",
        "{code:310,opaque:7,version:513,extFields:{a:'pg',b:'orders'}}",
        '\f{ "code"\t:\n310 , "opaque":7,"version":513,"extFields":{"a":"pg","b":"orders",},}\r\n\0',
        '{"code":310,"opaque":7,"version":513,"x":{"code":[11,{}]},"extFields":{"a":"pg","b":"orders"}}',
        '{"code":310,"opaque":7,"version":513,"extFields":{"b":"x"},"extFields":{"a":"pg","b":"orders"}}',
        '{"code":310,"opaque":7,"version":513,"extFields":"","extFields":{"a":"pg","b":"orders"},"language":0}',
        '{"code":310,"opaque":7,"flag":"","version":513,"flag":false,"extFields":{"a":"pg","b":"orders","n":"\\n"}}',
        '{"code":310,"opaque":7,"flag":null,"version":513,"extFields":{"a":"pg","b":"orders","z":{"b":"x"}}}',
        '{"code":310,"opaque":7,"version":513,"extFields":{"a":"pg","b":"orders","i":"k\x01v\x02"}}',
    ],
)
def test_valid_spellings_are_the_same_send(header: str) -> None:
    assert read_json(header.encode()) == _SEND


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        "[]",
        '{"code":310}x',
        '{"code":310,,}',
        '{"code":310 "flag":0}',
        '{"code":3.1e2}',
        '{"code":310L}',
        '{"code":[310]}',
        '{"code":4294967606}',
        '{"code":"abc"}',
        '{"Code":310}',
        '{"co_de":310}',
        r'{"code\u0000":310}',
        '{/**/"code":310}',
        '{"code":310,"extFields":[]}',
        '{"code":310,"extFields":{"b":["orders"]}}',
        '{"code":310,"extFields":{"b":007}}',
        '{"code":310,"extFields":{"b":"orders","m":["true"]}}',
        '{"code":310,"extFields":{"$ref":"$"}}',
        r'{"code":310,"extFields":{"b":"\q"}}',
        '{"code":310,"extFields":{"b":"' + "x" * 256 + '"}}',
        '{"code":310,"extFields":{"b":"' + r"\u0078" * 256 + '"}}',
        '{"code":310,"' + "x" * 33 + '":1}',
        r'{"code":310,"extFields":{"b":"x\ud800y"}}',
        r'{"code":310,"extFields":{"b":"\ude00\ud83d"}}',
        r'{"code":310,"\ud800":1}',
        r'{"code":310,"\ud83d\ude00":1}',
        '{"code":310,"\U0001f600":1}',
        '{"code":310,"' + "x" * 129 + '":1}',
        '{"code":310,"A\u009b-\u00c4\u00fe\u00ebXa":{"b":"orders"}}',
        '{"code":310,"x":' + "[" * 17 + "]" * 17 + "}",
        '{"\u9b6e\u6257\u6774\u94ef\u708d\u644c\u918f\u5686\u5450\u5eb1\u587e\u59a7":310}',
    ],
)
def test_malicious_header_is_unparsable(header: str) -> None:
    assert read_json(header.encode()) is UNPARSABLE


def test_a_short_send_falls_back_to_the_spelled_out_topic() -> None:
    assert read_json(b'{"code":310,"extFields":{"topic":"orders"}}').name == "orders"


@pytest.mark.parametrize("more", ['"x":1', '"x":[%s]'])
def test_a_header_of_too_many_steps_is_unparsable(more: str) -> None:
    few, many = ([more % ",".join("1" * count)] if "%" in more else [more] * count for count in (40, MAX_STEPS // 2))
    assert read_json(f'{{"code":"310",{",".join(few)}}}'.encode()).code == 310
    assert read_json(f'{{"code":"310",{",".join(many)}}}'.encode()) is UNPARSABLE


_TOKENS = ("{", "}", "[", "]", ":", ",", '"code"', "310", '"extFields"', '"b"', "'", '"', "\\", r"\u0062", "null", " ")


@given(st.lists(st.sampled_from(_TOKENS)).map("".join))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(read_json(text.encode()), Header)
