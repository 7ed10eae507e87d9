"""A RocketMQ session that reads by the compiled part."""

from itertools import chain

import pytest
from playbook.frames import send, send_batch
from playbook.playbook import open_session, turns

from proxy.deciding.batch import Side


def test_scans_and_single_frames_count_together() -> None:
    unit = send("a") * 20 + send_batch("a", 2)
    asked = turns(open_session(reading="compiled"), unit * 600)
    assert max(map(len, asked)) <= 22 * 256
    assert len(asked) == 3


@pytest.mark.parametrize("one_by_one", [True, False])
def test_parts_of_a_chunk_wait_for_a_turn_only_if_they_are_decided_one_by_one(*, one_by_one: bool) -> None:
    topics = [f"t{number}" for number in range(3000)]
    session = open_session(reading="compiled")
    asked = turns(session, b"".join(map(send, topics)), one_by_one=one_by_one)
    assert [len(turn) for turn in asked] == [256] * 11 + [184]
    assert list(chain.from_iterable(asked)) == topics
    assert session.takes_turns(Side.CLIENT) is one_by_one
    assert not session.reads_fast(Side.CLIENT)
