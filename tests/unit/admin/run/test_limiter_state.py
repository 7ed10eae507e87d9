from pathlib import Path
from zlib import crc32

import msgspec
import pytest
import structlog

from admin.edits.store import Store
from admin.run import limiter_state
from limiter.buckets.saved import SavedLimiter, SavedShare
from limiter.deciding.limits import SavedLimits, Spent

LIMITER = SavedLimiter("topic", "orders", "topic:orders", False, 1, 2, -3, 4, 5, None, 6, 7, 8, 9, ())
SHARE = SavedShare("a", 1, 2, 3, 4)
LIMITS = SavedLimits(
    7,
    {"messages": [LIMITER, LIMITER._replace(shares=(SHARE,), open_next_free_ns=11)], "bytes": []},
    [Spent("bytes", "topic", "orders", "topic:orders", False, -5)],
)


def encoded(*values: object) -> bytes:
    body = msgspec.msgpack.encode(values)
    return crc32(body).to_bytes(4) + body


def test_it_is_loaded_as_it_was_saved() -> None:
    store = Store(None)
    assert limiter_state.load(store) is None
    limiter_state.save(store, LIMITS)
    assert limiter_state.load(store) == LIMITS


@pytest.mark.parametrize(
    ("saved", "why"),
    [
        (encoded(2, limiter_state.clock(), "all new"), "another version"),
        (encoded(1, "another", None), "before the machine was started"),
        (encoded(1, limiter_state.clock(), {"limits": 5}), "Expected"),
        (limiter_state.encode(LIMITS)[:-1], "damaged"),
        (b"", "damaged"),
    ],
)
def test_state_that_cannot_be_used_is_a_warning(saved: bytes, why: str) -> None:
    store = Store(None)
    store.save_limiters(saved)
    with structlog.testing.capture_logs() as logged:
        assert limiter_state.load(store) is None
    assert [why in line["reason"] for line in logged] == [True]


def test_a_disk_that_does_not_take_it_is_a_warning(state_dir: Path) -> None:
    store = Store(state_dir)
    with structlog.testing.capture_logs() as logged:
        limiter_state.save(store, LIMITS._replace(at_ns=2**70))
        state_dir.rename(state_dir.with_name("away"))
        limiter_state.save(store, LIMITS)
    assert [line["log_level"] for line in logged] == ["warning"] * 2
    store.close()
