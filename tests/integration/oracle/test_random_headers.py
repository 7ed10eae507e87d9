"""Random headers, compared with the real broker's reading."""

import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from harness.paths import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.asking import Oracle, compare
from oracle.tricky import Tricks, binary, changed

pytestmark = [pytest.mark.integration, pytest.mark.long]

_CAPTURES = ROOT / "tests" / "captures" / "rocketmq"
# From hardly any tricks to a trick in every other token.
_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.6, 1.0)
_MANY = 10_000

_asks_the_oracle = settings(max_examples=500, deadline=None)


def _headers(capture: Path) -> list[tuple[bytes, int]]:
    data = capture.read_bytes()
    headers = []
    at = 0
    while at < len(data):
        length, word = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        headers.append((data[at + 8 : at + 8 + (word & 0xFFFFFF)], word >> 24))
        at += 4 + length
    return headers


@pytest.fixture(scope="session")
def recorded() -> Sequence[tuple[bytes, int]]:
    """The headers of everything that real clients sent."""
    return [header for path in sorted(_CAPTURES.glob("*/*-to-broker.bin")) for header in _headers(path)]


def test_recorded_headers_are_read_strictly_and_as_the_broker_reads_them(
    oracle: Oracle, recorded: Sequence[tuple[bytes, int]]
) -> None:
    comparison = compare(oracle, recorded)
    assert comparison.wrong == []
    assert set(comparison.counts) == {"strict, limitable", "strict, other"}


def test_made_up_json_names_no_other_resource(oracle: Oracle) -> None:
    random = Random(310)
    comparison = compare(oracle, [(Tricks(random, random.choice(_LEVELS)).header(), 0) for _ in range(_MANY)])
    assert comparison.wrong == []
    # The test is only useful while the broker reads enough of the headers.
    assert comparison.counts["lenient, limitable"] > 250
    assert comparison.counts["strict, limitable"] > 500


def test_changed_real_headers_name_no_other_resource(oracle: Oracle, recorded: Sequence[tuple[bytes, int]]) -> None:
    random = Random(10)
    others = [header for header, _ in recorded]
    comparison = compare(
        oracle, [(changed(random, header, others), kind) for header, kind in random.choices(recorded, k=_MANY)]
    )
    assert comparison.wrong == []
    assert comparison.counts["lenient, limitable"] > 50


def test_made_up_binary_headers_name_no_other_resource(oracle: Oracle) -> None:
    random = Random(36)
    comparison = compare(oracle, [(binary(random), 1) for _ in range(_MANY)])
    assert comparison.wrong == []
    assert comparison.counts["strict, limitable"] > 2500


_TOKENS = (
    *('"code"', '"flag"', '"opaque"', '"extFields"', '"b"', '"topic"', '"group"', '"m"', '"$ref"', '"x"', "'b'", "b"),
    *("310", "10", "36", "1", "0", '"310"', '"U"', '"$"', "true", "null", "1.5", '""', "-", "e", "L"),
    *(
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        '"',
        "'",
        "\\",
        r"\u0062",
        r"\x62",
        "/*",
        "*/",
        "//",
        " ",
        "\n",
        "\0",
        "\x1a",
        "\u00e9",
    ),
)
_soup = st.lists(st.sampled_from(_TOKENS), max_size=8).map("".join)


@given(member=_soup, field=_soup, after=_soup)
@_asks_the_oracle
def test_no_tokens_can_be_found_that_name_another_resource(oracle: Oracle, member: str, field: str, after: str) -> None:
    header = f'{{"code":310,"opaque":7,{member}"extFields":{{"b":"T"{field}}}{after}}}'
    assert compare(oracle, [(header.encode(), 0)]).wrong == []


_keys = st.sampled_from((b"a", b"b", b"m", b"z", b"topic", b"", b"\0\1b", b"b\0"))
_values = st.sampled_from(
    (b"T", b"", b"true", b"false", b"%RETRY%g", b"\0\1b\0\0\0\1U", b"\0\1m\0\0\0\4true")
) | st.binary(max_size=8)
_off_by = st.just(0) | st.integers(-9, 9)


@given(
    fields=st.lists(st.tuples(_keys, _off_by, _values, _off_by), max_size=6),
    ext_off_by=_off_by,
    code=st.sampled_from((310, 320, 325, 10)),
    tail=st.binary(max_size=3),
)
@_asks_the_oracle
def test_no_binary_fields_can_be_found_that_name_another_resource(
    oracle: Oracle, fields: list[tuple[bytes, int, bytes, int]], ext_off_by: int, code: int, tail: bytes
) -> None:
    ext = b"".join(
        struct.pack(">h", len(key) + key_off_by) + key + struct.pack(">i", len(value) + value_off_by) + value
        for key, key_off_by, value, value_off_by in fields
    )
    header = struct.pack(">hBhiiii", code, 0, 513, 7, 0, 0, len(ext) + ext_off_by) + ext + tail
    assert compare(oracle, [(header, 1)]).wrong == []
