"""Message properties, and messages that arrive later."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loopback.intake import property_of, with_property
from proxy.protocols.rocketmq.batch_body import decode_properties, encode_properties

_WORDS = st.text("aAbBDELAY_ 1", max_size=6)
_NAMES = _WORDS.filter(bool)


@given(st.dictionaries(_NAMES, _WORDS, max_size=5), _NAMES, _WORDS)
def test_properties_are_found_and_set_as_in_a_dictionary(known: dict[str, str], name: str, value: str) -> None:
    text = encode_properties(known)
    for spelling in (text, text.removesuffix("\x02")):
        assert property_of(spelling, name) == known.get(name)
        changed = with_property(spelling, name, value)
        assert property_of(changed, name) == value
        assert decode_properties(changed) == known | {name: value}
        assert changed.count(f"{name}\x01") >= 1


def test_name_inside_another_name_or_value_is_not_found() -> None:
    properties = "XTAGS\x01a\x02KEYS\x01TAGS\x02"
    assert property_of(properties, "TAGS") is None
    assert property_of(properties, "KEYS") == "TAGS"


def test_message_with_a_delay_level_is_seen_only_after_it(client: Any, bench: Any) -> None:
    answer = client.produce(properties="DELAY\x012\x02TAGS\x01t\x02")
    assert answer.code == 0
    assert bench.broker.delayed == 1
    bench.wait(4.9)
    assert client.consume() == []
    bench.wait(0.1)
    (record,) = client.consume()
    properties = decode_properties(record.message.properties.decode())
    assert properties["DELAY"] == "2"
    assert properties["REAL_TOPIC"] == "orders"
    assert properties["REAL_QID"] == "0"
    assert properties["TAGS"] == "t"
    assert record.store_ms - record.message.born_ms == 5000
    assert bench.broker.delayed == 0


def test_too_high_a_level_is_the_highest_and_no_level_is_at_once(client: Any, bench: Any) -> None:
    client.produce(properties="DELAY\x0199\x02")
    for level in ("0", "-1", "x", "9" * 5000, "²"):
        assert client.produce(properties=f"DELAY\x01{level}\x02").code == 0
    assert len(client.consume()) == 5
    bench.wait(7199)
    assert len(client.consume()) == 5
    bench.wait(1)
    assert len(client.consume()) == 6


def test_delayed_messages_are_bounded(make_bench: Any) -> None:
    bench = make_bench(max_delayed_bytes=2000)
    client = bench.client()
    codes = [client.produce(body=b"x" * 500, properties="DELAY\x011\x02").code for _ in range(5)]
    assert codes == [0, 0, 0, 1, 1]
    bench.wait(1)
    assert client.produce(body=b"x" * 500, properties="DELAY\x011\x02").code == 0


@pytest.mark.parametrize("given_key", ["", "MINE"])
def test_every_message_has_a_unique_key(client: Any, given_key: str) -> None:
    properties = f"UNIQ_KEY\x01{given_key}\x02" if given_key else ""
    keys = [client.produce(properties=properties).fields["transactionId"] for _ in range(2)]
    stored = [decode_properties(record.message.properties.decode())["UNIQ_KEY"] for record in client.consume()]
    assert stored == keys
    if given_key:
        assert keys == [given_key] * 2
    else:
        assert len(set(keys)) == 2
        assert all(len(key) == 32 for key in keys)
