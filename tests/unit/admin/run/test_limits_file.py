"""The limits' state as a file: read as written, and left aside whatever is wrong with it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import structlog

from admin.run import limits_file
from limiter.buckets.saved import SavedLimiter, SavedShare
from limiter.deciding.limits import SavedLimits, Spent

LIMITER = SavedLimiter("topic", "orders", "topic:orders", False, 1, 2, -3, 4, 5, None, 6, 7, 8, 9, ())
SHARE = SavedShare("a", 1, 2, 3, 4)
LIMITS = SavedLimits(
    7,
    {"messages": [LIMITER, LIMITER._replace(shares=(SHARE,), open_next_free_ns=11)], "bytes": []},
    [Spent("bytes", "topic", "orders", "topic:orders", False, -5)],
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert limits_file.read(tmp_path) is None
    limits_file.write(tmp_path, LIMITS)
    assert limits_file.read(tmp_path) == LIMITS
    assert (tmp_path / limits_file.NAME).stat().st_mode & 0o777 == 0o600


def other_version(body: bytes) -> bytes:
    return msgspec.msgpack.encode([2, limits_file.clock(), "all new"])


def other_boot(body: bytes) -> bytes:
    return msgspec.msgpack.encode([1, "another", None])


def not_limits(body: bytes) -> bytes:
    return msgspec.msgpack.encode([1, limits_file.clock(), {"limits": 5}])


def shortened(body: bytes) -> bytes:
    return body[:-1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_version, "another version"),
        (other_boot, "before the machine was started"),
        (not_limits, "Expected"),
        (shortened, "truncated"),
    ],
)
def test_what_cannot_be_used_is_a_warning(tmp_path: Path, change: Callable[[bytes], bytes], why: str) -> None:
    body = change(limits_file.encode(LIMITS)[4:])
    (tmp_path / limits_file.NAME).write_bytes(limits_file.crc32(body).to_bytes(4) + body)
    with structlog.testing.capture_logs() as logged:
        assert limits_file.read(tmp_path) is None
    assert [why in line["reason"] for line in logged] == [True]


@pytest.mark.parametrize("data", [b"", b"1", b"12345678"])
def test_what_is_damaged_is_a_warning(tmp_path: Path, data: bytes) -> None:
    (tmp_path / limits_file.NAME).write_bytes(data)
    with structlog.testing.capture_logs() as logged:
        assert limits_file.read(tmp_path) is None
    assert len(logged) == 1


def test_a_disk_that_does_not_take_it_is_a_warning(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logged:
        limits_file.write(tmp_path / "nowhere", LIMITS)
        limits_file.write(tmp_path, LIMITS._replace(at_ns=2**70))
    assert [line["log_level"] for line in logged] == ["warning"] * 2
