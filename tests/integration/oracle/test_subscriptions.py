"""Requests that consume: the group and topic that the real broker reads."""

import struct
from random import Random

import pytest
from oracle.asking import Comparison, Oracle, compare, frame, resource_of
from oracle.tricky import Tricks, binary, changed

from proxy.protocols.rocketmq.wire.header import STRICT, classify

pytestmark = pytest.mark.integration

_NUMBERS = "".join(
    f',"{key}":"1"'
    for key in (
        *("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion"),
        *("invisibleTime", "pollTime", "bornTime", "initMode"),
    )
)
_CODES = (11, 361, 200_050)
# A client might write these: all of them must be read.
_PLAUSIBLE_FIELDS = (
    '"consumerGroup":"g","topic":"T"',
    '"topic":"T","consumerGroup":"g"',
    "'consumerGroup':'g','topic':'T'",
    r'"consumer\u0047roup":"g","topic":"\x54"',
    '"consumerGroup":"g@h","topic":"T@U"',
    '"consumerGroup":"g","topic":"%RETRY%g"',
    '"consumerGroup":"g","topic":"T","topic":"U"',
    '"consumerGroup":"g","topic":"T","consumerGroup":"h"',
    '"consumerGroup":7,"topic":12',
    '"consumerGroup":true,"topic":false',
    '"consumerGroup":"","topic":"T"',
    '"consumerGroup":"g","topic":""',
    '"consumerGroup":"\u00e9","topic":"T"',
    '"consumerGroup":"g","topic":"T","z":{"topic":"U"}',
    '"consumerGroup":"g","topic":"T","group":"h","b":"U","a":"p"',
    f'"consumerGroup":"{"g" * 255}","topic":"{"T" * 255}"',
)
_REFUSED_FIELDS = (
    '"topic":"T"',
    '"consumerGroup":"g"',
    '"consumerGroup":null,"topic":"T"',
    '"consumerGroup":"g","topic":null',
    '"consumergroup":"g","topic":"T"',
)
_GAMES = (
    '"consumerGroup":["g"],"topic":"T"',
    '"consumerGroup":{"x":1},"topic":"T"',
    '"consumerGroup":1.5,"topic":"T"',
    '"consumerGroup":"g","topic":1e3',
    f'"consumerGroup":"{"g" * 256}","topic":"T"',
    f'"consumerGroup":"g","topic":"{"T" * 256}"',
    r'"consumerGroup":"\ud800","topic":"T"',
    '"$ref":"$","consumerGroup":"g","topic":"T"',
    r'"topic\u0000":"U","consumerGroup":"g","topic":"T"',
)


def _headers(fields: tuple[str, ...], *, numbers: str = _NUMBERS) -> list[tuple[bytes, int]]:
    return [
        (f'{{"code":{code},"opaque":7,"extFields":{{{field}{numbers}}}}}'.encode(), 0)
        for code in _CODES
        for field in fields
    ]


def _compare(oracle: Oracle, headers: list[tuple[bytes, int]]) -> Comparison:
    comparison = compare(oracle, headers, subscriptions=True)
    assert not comparison.wrong, "\n".join(comparison.wrong)
    return comparison


def test_valid_headers_are_read_as_the_broker_reads_them(oracle: Oracle) -> None:
    headers = _headers(_PLAUSIBLE_FIELDS)
    comparison = _compare(oracle, headers)
    assert comparison.unparsed == []
    readings = oracle.read([frame(header) for header, _ in headers])
    assert all(resource_of(reading, subscriptions=True) for reading in readings)


def test_request_without_a_subscription_is_refused_by_the_broker(oracle: Oracle) -> None:
    headers = _headers(_REFUSED_FIELDS)
    readings = oracle.read([frame(header) for header, _ in headers])
    assert [resource_of(reading, subscriptions=True) for reading in readings] == [None] * len(headers)
    assert [classify(header, kind, subscriptions=True).kind for header, kind in headers] == [""] * len(headers)


def test_no_trick_names_another_subscription_than_the_broker(oracle: Oracle) -> None:
    _compare(oracle, _headers(_GAMES))


def test_the_last_of_two_ext_fields_counts_as_a_whole(oracle: Oracle) -> None:
    header = (
        f'{{"code":11,"opaque":7,"extFields":{{"consumerGroup":"g","topic":"T"{_NUMBERS}}},'
        f'"extFields":{{"topic":"U"{_NUMBERS}}}}}'
    )
    _compare(oracle, [(header.encode(), 0)])


def test_binary_headers_are_read_as_the_broker_reads_them(oracle: Oracle) -> None:
    random = Random(361)
    comparison = _compare(oracle, [(binary(random, consuming=True), 1) for _ in range(5_000)])
    assert comparison.counts["strict, limitable"] > 1_000


def test_made_up_json_names_no_other_subscription(oracle: Oracle) -> None:
    random = Random(11)
    headers = [
        (Tricks(random, random.choice((0.05, 0.1, 0.2, 0.3, 0.6, 1.0)), consuming=True).header(), 0)
        for _ in range(10_000)
    ]
    comparison = _compare(oracle, headers)
    assert comparison.counts["strict, limitable"] > 500
    assert comparison.counts["lenient, limitable"] > 250


def test_changed_headers_name_no_other_subscription(oracle: Oracle) -> None:
    random = Random(200_050)
    real = [header for header, _ in _headers(_PLAUSIBLE_FIELDS[:3])]
    comparison = _compare(oracle, [(changed(random, random.choice(real), real), 0) for _ in range(5_000)])
    assert comparison.counts["strict, limitable"] > 100


def test_a_strict_reading_stays_strict(oracle: Oracle) -> None:
    for header, kind in _headers(_PLAUSIBLE_FIELDS[:2]):
        assert classify(header, kind, subscriptions=True).reading == STRICT
    assert _compare(oracle, _headers(_PLAUSIBLE_FIELDS[:2])).counts["strict, limitable"] == 2 * len(_CODES)


def test_a_code_cannot_be_hidden_by_cutting_it_to_16_bits(oracle: Oracle) -> None:
    low = struct.unpack(">h", struct.pack(">i", 200_050)[2:])[0]
    header = binary(Random(1), consuming=True)
    _compare(oracle, [(struct.pack(">h", low) + header[2:], 1)])
