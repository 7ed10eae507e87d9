import gc
import weakref
from collections.abc import Iterator

import pytest

from admin.run.process import MIN_FROZEN, short_pauses


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    callbacks = list(gc.callbacks)
    yield
    gc.unfreeze()
    assert gc.callbacks == callbacks


class Knot:
    def __init__(self) -> None:
        self.itself = self


def test_survivors_of_a_full_collection_are_frozen() -> None:
    with short_pauses():
        knot = Knot()
        gc.collect()
        assert not any(each is knot for each in gc.get_objects())
        assert gc.get_freeze_count() > 0
    assert any(each is knot for each in gc.get_objects())


def test_new_garbage_is_collected_at_once_and_frozen_objects_at_the_end() -> None:
    with short_pauses():
        young = weakref.ref(Knot())
        gc.collect()
        assert young() is None
        knot: Knot | None = Knot()
        old = weakref.ref(knot)
        gc.collect()
        knot = None
        gc.collect()
        assert old() is not None
        most = max(gc.get_freeze_count(), MIN_FROZEN)
        many: list[list[int]] = [[] for _ in range(most)]
        gc.collect()
        gc.collect()
        assert old() is None
        assert gc.get_freeze_count() > len(many)
