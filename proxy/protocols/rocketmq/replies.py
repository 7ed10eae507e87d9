"""Busy answers to refused requests; the session writes them, and none to a oneway request."""

import json
import struct
from functools import lru_cache
from typing import Final

from limiter.rules.resource import Resource
from proxy.deciding.batch import Refuse
from proxy.protocols.rocketmq.forbidden import Forbidden
from proxy.protocols.rocketmq.wire.codes import (
    BUSY_CODES,
    FLAG_RESPONSE,
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    MAX_NAME_CHARS,
    RETRY_PREFIX,
    ResponseCode,
)

# The protocol version in our answers: RocketMQ 5.5.0.
VERSION: Final = 513
_prefix = struct.Struct(">ii").pack


def busy_answer(refuse: Refuse, opaque: int, kind: str) -> bytes:
    """Return the whole frame of a busy answer, with a JSON header, which every client reads.

    The remark names the resource, the wait in microseconds and the rule. If the rule can never admit the request, it
    names the largest size in place of the wait. Clients look for ``RateLimit`` in it. The code is the rule's if clients
    take that for busy; else FLOW_CONTROL for requests that consume, which clients repeat soon, and SYSTEM_BUSY for all
    others. ``kind`` is that of the request's own resource.
    """
    head, tail = around_opaque(refuse, kind)
    header = b"%b%d%b" % (head, opaque, tail)
    size = len(header)
    return _prefix(size + 4, size) + header


@lru_cache(maxsize=1024)  # one refusal often answers all requests of a chunk
def around_opaque(refuse: Refuse, kind: str = KIND_TOPIC) -> tuple[bytes, bytes]:
    """Return the header of a busy answer before and behind the opaque; see ``busy_answer``."""
    code = refuse.busy_code
    if isinstance(refuse, Forbidden) and code is not None:
        remark = refuse.remark
    else:
        if code not in BUSY_CODES:
            busy = ResponseCode.FLOW_CONTROL if kind == KIND_SUBSCRIPTION else ResponseCode.SYSTEM_BUSY
            code = busy.value
        remark = _remark(refuse)
    header = {"code": code, "language": "JAVA", "version": VERSION, "flag": FLAG_RESPONSE, "remark": remark}
    return json.dumps(header, separators=(",", ":"))[:-1].encode() + b',"opaque":', b"}"


def _remark(refuse: Refuse) -> str:
    name, rule = _spell(refuse.resource), refuse.rule[:MAX_NAME_CHARS]
    if refuse.most is not None:
        return f"[RateLimit] for {name} at most {refuse.most} {refuse.most_of} at once, rule {rule}"
    return f"[RateLimit] for {name} need wait:{refuse.wait_us}microsecs, rule {rule}"


def _spell(resource: Resource) -> str:
    kind, name = resource
    name = name[:MAX_NAME_CHARS]
    if kind == KIND_RETRY_GROUP:
        return RETRY_PREFIX + name
    return name if kind in {KIND_TOPIC, KIND_SUBSCRIPTION} else f"{kind.replace('_', ' ')} {name}"
