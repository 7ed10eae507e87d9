"""A RocketMQ session that is lent where possible behaves like one that never is."""

from collections.abc import Callable, Sequence
from random import Random

import pytest
from fuzz_targets.conversation import SINGLE, WHOLE, Conversation, Step
from fuzz_targets.rocketmq_compiled import check
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook import frames
from playbook.captures import distinct_frames

from proxy.deciding.batch import Side


def send(topic: str, opaque: int = 1, *, group: str = "pg", flag: int = 0, body: bytes = b"x") -> bytes:
    return frames.json_frame(310, {"a": group, "b": topic}, opaque=opaque, flag=flag, body=body)


SENDS: Sequence[Callable[[int], bytes]] = (
    lambda opaque: send("orders", opaque),
    lambda opaque: send("orders", opaque, flag=frames.ONEWAY),
    lambda opaque: send("payments", opaque, group="other", body=b"y" * 50),
    lambda opaque: send("%RETRY%g", opaque),
    lambda opaque: send("größe", opaque),
    lambda opaque: send("x" * 255, opaque),
    lambda opaque: send("x" * 256, opaque),
    lambda opaque: send("", opaque),
    lambda opaque: send("%RETRY%", opaque),
    lambda opaque: frames.binary_frame(310, {"a": "pg", "b": "orders"}, opaque=opaque),
    lambda opaque: frames.binary_frame(310, {"a": "pg", "b": "orders", "m": "true"}, opaque=opaque, body=b"z" * 30),
    lambda opaque: frames.json_frame(310, {"a": "pg", "b": "orders", "m": "true"}, opaque=opaque, body=b"z" * 30),
    lambda opaque: frames.json_frame(10, {"producerGroup": "pg", "topic": "orders"}, opaque=opaque),
    lambda opaque: frames.json_frame(36, {"group": "g"}, opaque=opaque),
    lambda opaque: frames.send("a", opaque, sys_flag="1"),
    lambda opaque: frames.send("a", opaque, sys_flag=1),
    lambda opaque: frames.send("a", opaque, sys_flag="128"),
    lambda opaque: frames.send("a", opaque, sys_flag=132, binary=False),
    lambda opaque: frames.send("a", opaque, sys_flag="128", binary=True),
    lambda opaque: frames.send("rmq_sys_wheel_timer", opaque),
    lambda opaque: frames.send("SCHEDULE_TOPIC_XXXX", opaque, binary=True),
    lambda opaque: frames.send_half("a", opaque),
    lambda opaque: frames.end_transaction(opaque, opaque, flag=0),
    lambda opaque: frames.json_frame(34, {}, opaque=opaque, body=b"{}"),
    lambda opaque: frames.json_frame(11, {"consumerGroup": "g", "topic": "t"}, opaque=opaque),
    lambda opaque: frames.json_frame(105, {"topic": "t"}, opaque=opaque),
    lambda opaque: frames.frame(b"{'code':310,\"opaque\":%d,extFields:{b:'odd'}}" % opaque),
    lambda opaque: frames.frame(b"nobody reads this"),
)
ANSWERS: Sequence[Callable[[int], bytes]] = (
    frames.answer,
    lambda opaque: frames.answer(opaque, body=bytes(40)),
    lambda opaque: frames.stored(opaque, 0),
    frames.broker_request,
    lambda opaque: frames.check_transaction(0),
)


def _stream(of: Sequence[Callable[[int], bytes]], recorded: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    made = st.tuples(st.sampled_from(of), st.integers(-5, 40)).map(lambda made: made[0](made[1]))
    return st.lists(made | made | made | st.sampled_from(recorded), max_size=15).map(b"".join)


steps = st.builds(
    Step, st.just(Side.CLIENT), st.sampled_from([WHOLE, SINGLE, 2, 20]), _stream(SENDS, distinct_frames("to_broker"))
) | st.builds(
    Step, st.just(Side.BROKER), st.sampled_from([WHOLE, SINGLE, 2, 20]), _stream(ANSWERS, distinct_frames("to_client"))
)


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 0xFFFF), st.lists(steps, max_size=5))
def test_both_do_the_same(options: int, seed: int, said: list[Step]) -> None:
    check(Conversation(options, seed, said))


@pytest.mark.parametrize("cut", [WHOLE, 2, 20])
def test_plain_conversation_is_read_by_the_compiled_extension(cut: int) -> None:
    random = Random(cut)
    steps = []
    for _ in range(20):
        opaques = [random.randrange(100) for _ in range(5)]
        steps += [
            Step(Side.CLIENT, cut, b"".join(map(frames.send, "abcab", opaques))),
            Step(Side.BROKER, cut, b"".join(map(frames.answer, opaques))),
        ]
    assert check(Conversation(1, 7, steps)) >= 35
