"""Busy answers: what a client is told whose request was refused.

Nothing is sent from here, and a oneway request gets no answer at all: that is for the session to know.
"""

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

#: The protocol version in our answers, that of RocketMQ 5.5.0.
VERSION: Final = 513
_prefix = struct.Struct(">ii").pack


def _start(code: int) -> str:
    return f'{{"code":{code},"language":"JAVA","version":{VERSION},"flag":{FLAG_RESPONSE},"remark":'


_START: Final = {code: _start(code) for code in sorted(BUSY_CODES)}


def _too_large(refuse: Refuse) -> str:
    return (
        f"[RateLimit] for {_spell(refuse.resource)} at most {refuse.most} {refuse.most_of} at once, "
        f"rule {refuse.rule[:MAX_NAME_CHARS]}"
    )


def _before_wait(resource: Resource) -> str:
    return f"[RateLimit] for {_spell(resource)} need wait:"


def _after_wait(rule: str) -> str:
    return f"microsecs, rule {rule[:MAX_NAME_CHARS]}"


def _spell(resource: Resource) -> str:
    """Spell what is limited: what is sent to by its name as clients know it, all else with its kind."""
    kind, name = resource
    name = name[:MAX_NAME_CHARS]
    if kind == KIND_RETRY_GROUP:
        return RETRY_PREFIX + name
    return name if kind in {KIND_TOPIC, KIND_SUBSCRIPTION} else f"{kind.replace('_', ' ')} {name}"


@lru_cache(maxsize=1024)
def _header_start(resource: Resource, code: int) -> str:
    """Return the JSON up to the wait: all that is the same for every answer about one resource."""
    return _START[code] + json.dumps(_before_wait(resource))[:-1]


@lru_cache(maxsize=1024)
def _forbidden_start(code: int, remark: str) -> str:
    """Return the JSON up to the number of a refusal that is none by a limit."""
    return _start(code) + json.dumps(remark) + ',"opaque":'


@lru_cache(maxsize=1024)
def _header_middle(rule: str) -> str:
    """Return the JSON between the wait and the number: the same for every refusal by one rule."""
    return f'{json.dumps(_after_wait(rule))[1:]},"opaque":'


def around_opaque(refuse: Refuse, kind: str = KIND_TOPIC) -> tuple[bytes, bytes]:
    """Return what stands before and behind the opaque in the header of a busy answer; see ``busy_answer``."""
    if isinstance(refuse, Forbidden) and refuse.busy_code is not None:
        return _forbidden_start(refuse.busy_code, refuse.remark).encode(), b"}"
    code = refuse.busy_code
    if code not in BUSY_CODES:
        code = _FLOW_CONTROL if kind == KIND_SUBSCRIPTION else _SYSTEM_BUSY
    if refuse.most is not None:
        return f'{_START[code]}{json.dumps(_too_large(refuse))},"opaque":'.encode(), b"}"
    start, middle = _header_start(refuse.resource, code), _header_middle(refuse.rule)
    return f"{start}{refuse.wait_us}{middle}".encode(), b"}"


def busy_answer(refuse: Refuse, opaque: int, kind: str) -> bytes:
    """Return the whole frame of a busy answer; its header is always JSON, which every client reads.

    The remark names what is over its limit, the wait in microseconds, and the rule; to a request that is too large for
    the rule ever to admit it, how large it may be instead of the wait. Clients look for ``RateLimit`` in it.

    Its code is the rule's if that is one that clients take for busy; else FLOW_CONTROL for what consumes, upon
    which clients ask again soon, and SYSTEM_BUSY for all else.

    Args:
        refuse: by what it was refused.
        opaque: number of the refused request.
        kind: of the request's own resource.
    """
    head, tail = around_opaque(refuse, kind)
    header = b"%b%d%b" % (head, opaque, tail)
    size = len(header)
    return _prefix(size + 4, size) + header


_FLOW_CONTROL: Final = ResponseCode.FLOW_CONTROL.value
_SYSTEM_BUSY: Final = ResponseCode.SYSTEM_BUSY.value
