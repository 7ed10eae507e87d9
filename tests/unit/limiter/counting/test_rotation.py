import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.counting.rotation import Rotation


def rotation(keys: str) -> Rotation[str, int]:
    made: Rotation[str, int] = Rotation()
    for number, key in enumerate(keys):
        made.place(key, number)
    return made


def test_items_are_looked_at_in_turn() -> None:
    made = rotation("abc")
    assert [made.look() for _ in range(4)] == [("a", 0), ("b", 1), ("c", 2), ("a", 0)]


def test_what_is_gone_is_not_looked_at() -> None:
    made = rotation("abc")
    del made["a"]
    assert made.look() == ("b", 1)


def test_what_is_placed_again_keeps_its_turn() -> None:
    made = rotation("ab")
    made.place("a", 7)
    assert made.look() == ("a", 7)


def test_there_is_nothing_to_look_at() -> None:
    made = rotation("a")
    del made["a"]
    with pytest.raises(IndexError):
        made.look()


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=300))
def test_all_are_looked_at_however_often_some_come_and_go(steps: list[tuple[bool, int]]) -> None:
    made: Rotation[int, int] = Rotation()
    most = 0
    for comes, key in steps:
        if comes:
            made.place(key, key)
        else:
            made.pop(key, None)
        most = max(most, len(made))
    assert len(made._order) <= 2 * most + 17
    assert made.keys() == ({made.look()[0] for _ in range(len(made._order))} if made else set())
