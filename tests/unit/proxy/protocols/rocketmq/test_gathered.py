"""Requests in columns: their groups are those of the same requests one by one, however a chunk mixes what was scanned
with what was read by itself.
"""

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from playbook.frames import ONEWAY, frame, heartbeat, send, send_back, send_batch
from playbook.playbook import READINGS, Reading, open_session

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Group, Refuse, Side, grouped

REFUSE = Refuse(Resource("topic", "a"), "rule", 5)
#: Read by itself: the name of a field is spelled with an escape.
ODD = frame(b'{"code":310,"flag":0,"opaque":1,"extFields":{"a":"producers","b":"a","\\u0063":"x"}}')


def _frames(topic: str) -> list[bytes]:
    return [
        send(topic),
        send(topic, group="other"),
        send(topic, flag=ONEWAY, body=b"x" * 50),
        send(topic, binary=True),
        send(topic, filler=3000),
        send_batch(topic, 3),
        send_back(topic),
        ODD.replace(b'"b":"a"', b'"b":"%s"' % topic.encode()),
    ]


plain = [send("a"), send("b"), send("a", flag=ONEWAY)]
any_frame = st.sampled_from([*plain, *_frames("a"), *_frames("b"), heartbeat()])
streams = st.lists(st.sampled_from(plain) | any_frame, min_size=1, max_size=40)


def _batch(stream: bytes, reading: Reading) -> Batch:
    session = open_session(reading=reading)
    batch = session.receive(Side.CLIENT, memoryview(stream), 0)
    assert batch is not None
    return batch


def merged(groups: Iterable[Group]) -> dict[object, list[tuple[int, int]]]:
    """Return what is decided alike, by what it is decided by: index and messages of each request."""
    alike: dict[object, list[tuple[int, int]]] = {}
    for group in groups:
        key = (group.resources, group.producer_group, group.consumes)
        alike.setdefault(key, []).extend(zip(group.indexes, group.messages, strict=True))
    return {key: sorted(requests) for key, requests in alike.items()}


@pytest.mark.parametrize("reading", READINGS)
@example([ODD, send("a"), send("b"), send("a")], 0)
@example([send("b"), ODD, send("a"), send("a"), send("b")], 1)
@given(streams, st.integers(0, 2**40 - 1))
def test_groups_and_sums_are_those_of_the_requests_one_by_one(
    reading: Reading, chunk: list[bytes], chosen: int
) -> None:
    batch = _batch(b"".join([*chunk, send("c")]), reading)
    requests = list(batch.requests)
    assert merged(batch.groups()) == merged(grouped(requests))
    for group in batch.groups():
        assert group.size_bytes is None or group.size_bytes == sum(
            requests[index].size_bytes for index in group.indexes
        )
        some = [index for place, index in enumerate(group.indexes) if chosen >> place & 1]
        assert list(batch.size_bytes(some)) == [requests[index].size_bytes for index in some]
        expecting = sum(requests[index].refusal == "answered" for index in some)
        assert batch.sums_of(group, some) == (sum(requests[index].size_bytes for index in some), expecting)


@pytest.mark.parametrize("reading", READINGS)
def test_what_was_scanned_between_others_is_in_no_other_group(reading: Reading) -> None:
    # Seen to go wrong: one read by itself, and others of its topic among another topic's behind it.
    batch = _batch(ODD + (send("a") + send("b")) * 20, reading)
    a, b = merged(batch.groups()).values()
    assert [index for index, _ in a] == [0, *range(1, 41, 2)]
    assert [index for index, _ in b] == list(range(2, 41, 2))
    batch.add_verdicts({index: REFUSE for index, _ in b})
