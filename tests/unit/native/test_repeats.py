"""The compiled extension recognizes the same repeats as Python: the table, the ids in headers, and all counts."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import sluice_native
from hypothesis import given
from hypothesis import strategies as st
from playbook import frames
from playbook.captures import distinct_frames
from playbook.extension import CLIENT, Extension, Reading, Recorder, feed
from playbook.spooling_rig import NS_PER_S, Connection, Shared

from limiter.counting.rejections import ResourceSecond
from limiter.counting.repeats import HALF_NS, SOON_NS, PythonRefusedIds
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from proxy.protocols.rocketmq.wire.header import classify
from proxy.protocols.rocketmq.wire.message_id import message_id

steps = st.tuples(
    st.integers(0, 12),
    st.integers(0, 1),
    st.sampled_from([0, 0, 0, 1, SOON_NS - 1, SOON_NS, HALF_NS - 1, HALF_NS, 2 * HALF_NS]),
    st.sampled_from([True, True, True, False]),
)


@given(st.sampled_from([2, 4, 6, 100]), st.lists(steps, max_size=80))
def test_both_tables_say_the_same(most: int, walk: list[tuple[int, int, int, bool]]) -> None:
    python, compiled = PythonRefusedIds(most), sluice_native.RefusedIds(most)
    now_ns = 0
    for number, key, passed_ns, refused in walk:
        now_ns += passed_ns
        seen = key - 1, b"%d" % number, now_ns, refused
        assert python.see(*seen) == compiled.see(*seen)
        assert len(python) == len(compiled) <= most


def _header(frame: bytes) -> tuple[bytes, int]:
    (word,) = struct.unpack_from(">I", frame, 4)
    return frame[8 : 8 + (word & 0xFFFFFF)], word >> 24


def _same_ids(sends: list[bytes]) -> Counter[bytes]:
    """Compare the compiled extension's ids of plain frames with Python's, and return them."""
    extension, ids = Extension(), sluice_native.RefusedIds()
    judge = Recorder(extension.limits, ids=ids)
    assert feed(extension.lend(judge), CLIENT, b"".join(sends)).frames == (len(sends), 0)
    headers = [classify(*_header(send)) for send in sends]
    keys = [hash(Resource(header.kind, header.name)) for header in headers]
    of_python = Counter((key, message_id(*_header(send))) for key, send in zip(keys, sends, strict=True))
    for key in keys:
        del of_python[key, b""]
    assert sum(repeats[0] for *_, repeats in judge.counted) == of_python.total() - len(of_python)
    assert sum(repeats[3] for *_, repeats in judge.counted) == of_python.total()
    assert len(ids) == len(of_python)
    assert all(ids.see(key, each, 0, True)[0] for key, each in of_python)
    return Counter(each for _, each in of_python)


def _is_plain(whole: bytes) -> bool:
    return isinstance(Extension().read_frame(whole), Reading)


names = st.sampled_from(["UNIQ_KEY", "MY_UNIQ_KEY", "UNIQ_KEY2", "QQQ", "KEYS", "originMsgId", ""])
values = st.text(max_size=4) | st.sampled_from(["0" * 254, "1" * 256, "UNIQ_KEY", 'a"b', "a\\b", "a\nb", "é"])
properties = st.dictionaries(names, values, max_size=4)


@given(st.lists(st.tuples(properties, st.booleans(), st.integers(0, 70)), min_size=1, max_size=5))
def test_both_read_the_same_ids(given_: list[tuple[dict[str, str], bool, int]]) -> None:
    sends = [frames.send("t", binary=binary, properties=some, filler=filler) for some, binary, filler in given_]
    _same_ids(list(filter(_is_plain, sends)))


def test_both_read_the_ids_that_real_clients_give() -> None:
    ids = _same_ids(list(filter(_is_plain, distinct_frames("to_broker"))))
    # Java and C++, and Java's send-backs, which have the ids of the original messages. Node gives none.
    assert {len(each) for each in ids} == {32, 56}


def test_a_client_with_another_id_for_each_attempt_counts_as_without_ids() -> None:
    for lends, language in product((False, True), (b'"JAVA"', b'"CPP" ')):
        shared = Shared(Rule("topic", "*", 0))
        shared.accounts.take(shared.now_ns, unfinished=False)
        connection = Connection(shared, on_trial=True, lends=lends)
        for opaque in range(40):
            send = frames.send("t", opaque, properties={"UNIQ_KEY": str(opaque)})
            connection.client(send.replace(b'"JAVA"', language))
        (second,) = filter(None, shared.accounts.steps_of(shared.accounts.take(shared.now_ns, unfinished=True)))
        assert [of.identified for of in second.resources] == [40 if b"JAVA" in language else 0]


RULES = [Rule("topic", "*", 3), Rule("topic", "b", 1, break_s=0), Rule("topic", "c", None)]
sends = st.tuples(
    st.sampled_from("abc"), st.sampled_from([None, *map(str, range(9))]), st.booleans(), st.sampled_from([0, 0, 0, 3])
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    with patch("proxy.deciding.rate_limit._log"):
        yield


def _frame(topic: str, opaque: int, message_id: str | None, *, binary: bool, batch: int) -> bytes:
    given_ = None if message_id is None else {"KEYS": "k", "UNIQ_KEY": message_id}
    if batch:
        return frames.send(topic, opaque, batch=True, body=frames.batch_body(batch), properties=given_)
    return frames.send(topic, opaque, binary=binary, properties=given_)


@given(st.lists(st.tuples(st.lists(sends, min_size=1, max_size=8), st.integers(0, 2 * NS_PER_S)), max_size=14))
def test_both_readings_count_the_same_and_all_that_there_is(walk: list[tuple[list[Any], int]]) -> None:
    found = {}
    for lends in (False, True):
        shared = Shared(*RULES)
        shared.accounts.take(shared.now_ns, unfinished=False)
        connection = Connection(shared, on_trial=False, lends=lends)
        known: set[tuple[str, str]] = set()
        expected: Counter[tuple[str, str]] = Counter()
        opaque = 0
        for some, passed_ns in walk:
            shared.now_ns += passed_ns
            chunk, first = [], opaque
            for topic, number, binary, batch in some:
                opaque += 1
                chunk.append(_frame(topic, opaque, number, binary=binary, batch=batch))
            connection.client(b"".join(chunk))
            refused = set(connection.refused)
            for at, (topic, number, _, batch) in enumerate(some, first + 1):
                if number is not None and (topic, number) in known:
                    expected[topic, "requests"] += 1
                    expected[topic, "messages"] += batch or 1
                    expected[topic, "bytes"] += len(chunk[at - first - 1])
                if number is not None and at in refused:
                    known.add((topic, number))
                    expected[topic, "identified"] += 1
                else:
                    known.discard((topic, number or ""))
        spans = shared.accounts.take(shared.now_ns, unfinished=True)
        seconds = list(filter(None, shared.accounts.steps_of(spans)))
        each: list[ResourceSecond] = [resource for second in seconds for resource in second.resources]
        counted: Counter[tuple[str, str]] = Counter()
        for of in each:
            name, repeated = of.resource.name, of.repeated
            counted[name, "requests"] += repeated.requests
            counted[name, "messages"] += repeated.messages
            counted[name, "bytes"] += repeated.size_bytes
            counted[name, "identified"] += of.identified
        assert +counted == +expected
        repeated_requests = sum(count for (_, what), count in expected.items() if what == "requests")
        assert sum(shared.tally.repeated_requests.values()) == repeated_requests
        found[lends] = {(second.at_s, of.resource): of for second in seconds for of in second.resources}
    assert found[False] == found[True]
