"""Busy answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.resource import Resource
from proxy.protocols.rocketmq.command import decode
from proxy.protocols.rocketmq.replies import busy_answer, busy_remark


def test_a_busy_answer_has_code_remark_and_the_requests_number() -> None:
    answer = decode(busy_answer(Resource("topic", "orders"), 12_345, 7))
    assert (answer.code, answer.flag, answer.opaque) == (2, 1, 7)
    assert answer.remark == "[RateLimit] for orders need wait:12345microsecs"
    assert (answer.body, answer.fields) == (b"", {})


def test_a_retry_group_is_shown_as_its_topic() -> None:
    resource = Resource("retry_group", "cg")
    answer = decode(busy_answer(resource, 1, 7))
    assert answer.remark == busy_remark(resource, 1) == "[RateLimit] for %RETRY%cg need wait:1microsecs"


@given(st.text(max_size=255), st.integers(min_value=0), st.integers(-(2**31), 2**31 - 1))
def test_any_name_makes_an_answer_that_can_be_read(name: str, wait_us: int, opaque: int) -> None:
    resource = Resource("topic", name)
    frame = busy_answer(resource, wait_us, opaque)
    header = json.loads(frame[8:])
    assert (header["remark"], header["opaque"]) == (busy_remark(resource, wait_us), opaque)
    assert frame[:8] == (len(frame) - 4).to_bytes(4, "big") + (len(frame) - 8).to_bytes(4, "big")


@pytest.mark.parametrize("kind", ["topic", "retry_group"])
def test_a_name_longer_than_any_topic_is_cut(kind: str) -> None:
    assert len(busy_answer(Resource(kind, "x" * 100_000), 1, 7)) < 500
