"""The lines of the rejection log as Spark reads them.

``admin.rejection_log.records`` is the definition of the format, and the tests hold this against it: every field of
every record is here, by the same name. A line is read with all fields of all types, since Spark reads a line once only
that way; what does not belong to a record's type is null.
"""

from typing import Final, get_args

from admin.rejection_log.records import VERSION
from limiter.rejections import Outcome

VERSIONS: Final = (VERSION,)
"""Of the lines that are understood."""

HEAD: Final = ("v INT", "instance STRING", "run STRING", "n BIGINT", "at_s BIGINT")
"""What every record has."""
REJECTION: Final = (
    "kind STRING",
    "name STRING",
    "client STRING",
    "producer_group STRING",
    "rule STRING",
    "verdict STRING",
    "requests BIGINT",
    "messages BIGINT",
    "bytes BIGINT",
    "wait_max_us BIGINT",
)
LIMIT: Final = (
    "kind STRING",
    "name STRING",
    "rule STRING",
    "rate_per_s DOUBLE",
    "burst_s DOUBLE",
    "break_s DOUBLE",
    "count STRING",
    "bytes_per_s DOUBLE",
    "bytes_burst_s DOUBLE",
    "action STRING",
)
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)
"""Each an amount: requests, messages, bytes."""
SECONDS: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes")
"""Lists beside ``second``, as long as it is."""
TRAFFIC: Final = (
    *LIMIT,
    *(f"{outcome} ARRAY<BIGINT>" for outcome in OUTCOMES),
    "busy_answers BIGINT",
    "languages MAP<STRING, ARRAY<BIGINT>>",
    "clients BIGINT",
    "more_clients BOOLEAN",
    "second ARRAY<INT>",
    *(f"{seconds} ARRAY<BIGINT>" for seconds in SECONDS),
)
LIMIT_CHANGE: Final = (
    "change_id BIGINT",
    "action STRING",
    "kind STRING",
    "name STRING",
    "rate_before_per_s DOUBLE",
    "rate_after_per_s DOUBLE",
    "by STRING",
    "reason STRING",
)
HEARTBEAT: Final = (
    "version STRING",
    "seconds INT",
    "limiting BOOLEAN",
    "connections BIGINT",
    "bypassed_requests MAP<STRING, BIGINT>",
    "other BIGINT",
    "lost_records BIGINT",
)
TYPES: Final[dict[str, tuple[str, ...]]] = {
    "rejection": REJECTION,
    "traffic": TRAFFIC,
    "limit": LIMIT,
    "limit_change": LIMIT_CHANGE,
    "heartbeat": HEARTBEAT,
}
"""The types of records, each with its fields besides those of all."""
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "rejection": ("kind", "name", "client", "rule", "verdict", "requests", "messages", "bytes"),
    "traffic": ("kind", "name"),
    "limit": ("kind", "name"),
    "limit_change": ("change_id", "action"),
    "heartbeat": ("version", "seconds"),
}
"""What a record of this type cannot do without; whatever else is left out has its default."""


def fields() -> tuple[str, ...]:
    """Return the fields of all types together, each once, as ``name TYPE``."""
    return tuple(dict.fromkeys(field for group in (("type STRING", *HEAD), *TYPES.values()) for field in group))


RECORDS: Final = ", ".join((*fields(), "file STRING"))
"""What parsed records are, as a DDL schema; ``file`` is the one they were read from."""
BAD: Final = "file STRING, reason STRING, line STRING"
"""What could not be understood: where it was, why not, and the beginning of the line."""
