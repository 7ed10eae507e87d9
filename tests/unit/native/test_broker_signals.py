"""The compiled extension counts brokers' answers by the scope of a listener, as sessions do."""

import pytest
import sluice_native
from playbook import frames
from playbook.extension import BROKER, CLIENT, Extension

from limiter.counting.row import Second


def feed(lent: sluice_native.Lent, side: int, data: bytes) -> tuple[int, int]:
    """Read a chunk. Return the numbers of answers and busy ones."""
    *_, answers = lent.feed(side, data, 0, lambda: 0, Second(0))
    return answers


def answer(opaque: int, code: int) -> bytes:
    header = b'{"code":%d,"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON"}'
    return frames.frame(header % (code, opaque))


@pytest.mark.parametrize(("code", "busy"), [(0, 0), (1, 0), (2, 1), (215, 1), (14, 0)])
def test_only_busy_codes_say_that_a_broker_is_busy(extension: Extension, code: int, busy: int) -> None:
    owed = extension.requests(range(200))
    lent = extension.lend(extension.recorder(), owed)
    # The first is parsed, the others match its template, between successful answers.
    for opaque in range(100, 200, 2):
        assert feed(lent, BROKER, answer(opaque, code) + answer(opaque + 1, 0)) == (2, busy)
    assert (owed.sends, lent.unanswered()) == (100, 100)


def test_answers_to_other_requests_do_not_count(extension: Extension) -> None:
    lent = extension.lend(extension.recorder(), extension.requests())
    asked = frames.json_frame(105, {"topic": "t"}, opaque=1) + frames.json_frame(11, {"topic": "t"}, opaque=2)
    assert feed(lent, CLIENT, asked + frames.json_frame(14, {"topic": "t"}, opaque=3)) == (0, 0)
    assert lent.unanswered() == 0
    assert feed(lent, BROKER, b"".join(answer(opaque, 2) for opaque in range(5))) == (0, 0)
