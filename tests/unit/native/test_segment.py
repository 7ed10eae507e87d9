"""What is left of a chunk without its refused frames, and their answers."""

import itertools

import sluice_native
from hypothesis import given
from hypothesis import strategies as st
from playbook import frames
from playbook.extension import Extension


def _segment(extension: Extension, *opaques: int, flag: int = 0) -> sluice_native.Segment:
    return extension.scan(b"".join(frames.send("orders", opaque, flag=flag) for opaque in opaques))


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.sets(st.integers(0, 7)),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_what_is_kept_is_all_but_the_refused(bodies: list[int], refused: set[int], before: int, behind: int) -> None:
    sends = [frames.send("orders", index, body=bytes(size)) for index, size in enumerate(bodies)]
    chunk = b"".join(sends)
    segment = Extension().scan(chunk)
    inside = sorted(index for index in refused if index < len(sends))
    starts = [0, *itertools.accumulate(map(len, sends))]
    start, end = before, max(before, len(chunk) - behind)
    gone = {at for index in inside for at in range(starts[index], starts[index + 1])}
    kept = segment.kept(inside, start, end)
    assert [at for low, high in kept for at in range(low, high)] == [at for at in range(start, end) if at not in gone]
    assert all(low < high for low, high in kept)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(kept))
    assert segment.kept(tuple(inside), start, end) == kept


def test_of_a_range_the_frames_between_are_cut_out(extension: Extension) -> None:
    segment = _segment(extension, 1, 2, 3, 4)
    (_, first, *_), (_, last, *_) = segment.frame(1), segment.frame(3)
    assert segment.kept(range(1, 3), 0, segment.stop) == [(0, first), (last, segment.stop)]
    assert segment.kept(range(0), 0, segment.stop) == [(0, segment.stop)]
    assert segment.kept(range(4), 0, segment.stop) == []


def test_refused_frames_are_answered_and_no_longer_owed(extension: Extension) -> None:
    opaques = (1, -7, 0, 2**31 - 1, -(2**31), 10)
    segment = _segment(extension, *opaques)
    answers, count = segment.refuse(range(5), b'{"code":2,"opaque":', b"}")
    assert list(frames.split(answers)) == [frames.frame(b'{"code":2,"opaque":%d}' % opaque) for opaque in opaques[:5]]
    assert count == 5
    assert len(extension.owed) == 1
    assert 10 in extension.owed


def test_oneway_frames_are_not_answered(extension: Extension) -> None:
    extension.owed.add(2)
    chunk = frames.send("orders", 1) + frames.send("orders", 2, flag=frames.ONEWAY) + frames.send("orders", 3)
    segment = extension.scan(chunk)
    answers, count = segment.refuse([0, 1], b"<", b">")
    assert (answers, count) == (frames.frame(b"<1>"), 1)
    assert [opaque in extension.owed for opaque in (1, 2, 3)] == [False, True, True]
    assert segment.refuse([1], b"<", b">") == (b"", 0)
    assert segment.refuse([], b"<", b">") == (b"", 0)
