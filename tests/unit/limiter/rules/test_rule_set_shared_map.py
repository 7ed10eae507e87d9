from hypothesis import given
from hypothesis import strategies as st

from limiter.rules.rule_set import MOST_CHANGES, SharedMap

EDITS = st.lists(st.tuples(st.dictionaries(st.integers(0, 9), st.integers()), st.sets(st.integers(0, 9))), max_size=8)


@given(first=st.dictionaries(st.integers(0, 9), st.integers()), edits=EDITS)
def test_edits_are_those_of_a_dictionary_and_leave_the_map_before_alone(
    first: dict[int, int], edits: list[tuple[dict[int, int], set[int]]]
) -> None:
    maps = [SharedMap(dict(first))]
    expected = [first]
    for put, drop in edits:
        maps.append(maps[-1].edited(put, drop))
        expected.append({key: value for key, value in expected[-1].items() if key not in drop} | put)
    for shared, plain in zip(maps, expected, strict=True):
        assert dict(shared.items()) == plain
        assert (set(shared), len(shared)) == (set(plain), len(plain))
        assert [shared.get(key) for key in range(10)] == [plain.get(key) for key in range(10)]
        assert [key in shared for key in range(10)] == [key in plain for key in range(10)]


@given(edits=EDITS, others=EDITS)
def test_difference_is_told_by_identity_whether_much_is_shared_or_nothing(
    edits: list[tuple[dict[int, int], set[int]]], others: list[tuple[dict[int, int], set[int]]]
) -> None:
    values = [object() for _ in range(10)]
    root = SharedMap({key: values[key] for key in range(5)})
    one, other = root, root
    for put, drop in edits:
        one = one.edited({key: values[value % 10] for key, value in put.items()}, drop)
    for put, drop in others:
        other = other.edited({key: values[value % 10] for key, value in put.items()}, drop)
    expected = {key for key in range(10) if one.get(key) is not other.get(key)}
    assert set(one.differing(other)) == expected
    assert set(one.differing(SharedMap(dict(other.items())))) == expected


def test_many_changes_become_part_of_what_is_shared() -> None:
    shared: SharedMap[int, int] = SharedMap({})
    for number in range(3 * MOST_CHANGES):
        shared = shared.edited({number: number})
    assert dict(shared.items()) == {number: number for number in range(3 * MOST_CHANGES)}
