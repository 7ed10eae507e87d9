"""Busy answers: what a client is told whose request was refused.

Nothing is sent from here, and a oneway request gets no answer at all: that is for the session to know.
"""

import json
import struct
from functools import lru_cache
from typing import Final

from limiter.resource import Resource
from proxy.protocols.rocketmq.codes import (
    FLAG_RESPONSE,
    KIND_RETRY_GROUP,
    MAX_NAME_CHARS,
    RETRY_PREFIX,
    ResponseCode,
)

#: The protocol version in our answers, that of RocketMQ 5.5.0.
VERSION: Final = 513
_START: Final = (
    f'{{"code":{ResponseCode.SYSTEM_BUSY.value},"language":"JAVA","version":{VERSION},"flag":{FLAG_RESPONSE}'
)
_prefix = struct.Struct(">ii").pack


def busy_remark(resource: Resource, wait_us: int) -> str:
    """Return the remark of a busy answer; clients look for ``RateLimit`` in it.

    Args:
        resource: whose limit refused the request; a retry group is spelled as its topic.
        wait_us: microseconds until the same request could be admitted.
    """
    return f"{_remark_start(resource)}{wait_us}microsecs"


def _remark_start(resource: Resource) -> str:
    name = resource.name[:MAX_NAME_CHARS]
    return f"[RateLimit] for {RETRY_PREFIX if resource.kind == KIND_RETRY_GROUP else ''}{name} need wait:"


@lru_cache(maxsize=1024)
def _header_start(resource: Resource) -> str:
    """Return the JSON up to the wait: all that is the same for every answer about one resource."""
    return f'{_START},"remark":{json.dumps(_remark_start(resource))[:-1]}'


def busy_answer(resource: Resource, wait_us: int, opaque: int) -> bytes:
    """Return the whole frame of a busy answer; its header is always JSON, which every client reads.

    Args:
        resource: whose limit refused the request.
        wait_us: microseconds until the same request could be admitted.
        opaque: number of the refused request.
    """
    header = f'{_header_start(resource)}{wait_us}microsecs","opaque":{opaque}}}'.encode()
    size = len(header)
    return _prefix(size + 4, size) + header
