from pathlib import Path

import msgspec
import pytest
import structlog

from admin.edits import limiter_state
from admin.edits.store import Store
from limiter.buckets.saved import SavedLimiter, SavedShare
from limiter.deciding.limits import SavedLimits, Spent

LIMITER = SavedLimiter("topic", "orders", "topic:orders", False, 1, 2, -3, 4, 5, None, 6, 7, 8, 9, ())
SHARE = SavedShare("a", 1, 2, 3, 4)
LIMITS = SavedLimits(
    7,
    {"messages": [LIMITER, LIMITER._replace(shares=(SHARE,), open_next_free_ns=11)], "bytes": []},
    [Spent("bytes", "topic", "orders", "topic:orders", False, -5)],
)
VERSION = limiter_state._VERSION


def test_it_is_loaded_as_it_was_saved() -> None:
    store = Store(None)
    assert store.saved_limits() is None
    store.save_limits(LIMITS)
    assert store.saved_limits() == LIMITS


@pytest.mark.parametrize(
    ("saved", "why"),
    [
        (msgspec.msgpack.encode((VERSION + 1, limiter_state.clock(), "all new")), "another version"),
        (msgspec.msgpack.encode((VERSION, "another", None)), "before the machine last booted"),
        (msgspec.msgpack.encode((VERSION, limiter_state.clock(), {"limits": 5})), "Expected"),
        (limiter_state.encode(LIMITS)[:-1], "truncated"),
        (b"", "truncated"),
    ],
)
def test_state_that_cannot_be_used_is_a_warning(saved: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(None)
    with monkeypatch.context() as patched:
        patched.setattr(limiter_state, "encode", lambda _: saved)
        store.save_limits(LIMITS)
    with structlog.testing.capture_logs() as logged:
        assert store.saved_limits() is None
    assert [why in line["reason"] for line in logged] == [True]


def test_a_disk_that_does_not_take_it_is_a_warning(state_dir: Path) -> None:
    store = Store(state_dir)
    with structlog.testing.capture_logs() as logged:
        store.save_limits(LIMITS._replace(at_ns=2**70))
        state_dir.rename(state_dir.with_name("away"))
        store.save_limits(LIMITS)
    assert [line["log_level"] for line in logged] == ["warning"] * 2
    store.close()
